"""medusa behind the whole engine: heads that know the target are always right, random ones change nothing."""

import numpy as np
import pytest

from forerun.errors import ModelFileError, ModelNotFound, UnsupportedModel, UsageError
from forerun.llm import LLM
from forerun.speculation.drafter import make_drafter
from tests.head_files import LOOKUP_SPEC, RANDOM_SPEC, VOCAB, follower, medusa_arrays, medusa_config, write
from tests.speculation.head_targets import (
    BEST,
    EVERY,
    OPTIONS,
    check_lossless,
    check_masked,
    following,
    loader,
    run,
    wish,
)

HEADS = 4


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loader(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="module")
def perfect(tmp_path_factory):
    """Heads that look up the token 2, 3, ... steps behind the one whose hidden state they read."""
    hidden = LOOKUP_SPEC.hidden
    arrays = {}
    for head in range(HEADS):
        arrays[f"{head}.0.linear.weight"] = np.zeros((hidden, hidden), np.float32)
        arrays[f"{head}.0.linear.bias"] = np.zeros(hidden, np.float32)
        arrays[f"{head}.1.weight"] = follower(2 + head)
    folder = tmp_path_factory.mktemp("heads") / "perfect"
    return write(folder, medusa_config(HEADS), arrays, "medusa_lm_head.safetensors")


@pytest.fixture(scope="module")
def random_heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    arrays = medusa_arrays(RANDOM_SPEC.hidden, VOCAB, HEADS)
    return write(folder / "random", medusa_config(HEADS), arrays, "medusa_lm_head.safetensors")


class TestHeadsThatKnowTheTarget:
    """Every node of a chain is accepted: a hidden state of another row, step or sequence would miss."""

    @pytest.mark.parametrize("backend", EVERY)
    def test_are_always_right(self, target, perfect, backend):
        stats = run(target("lookup", backend), wish("medusa", perfect, width=1), backend=backend)
        assert stats.accepted == stats.drafted >= 3 * 17
        assert stats.by_drafter["medusa"].accepted_at[HEADS - 1] > 0

    @pytest.mark.parametrize("width", [2, 4])
    def test_lead_every_tree(self, target, perfect, width):
        stats = run(target("lookup"), wish("medusa", perfect, depth=4, width=width))
        assert stats.by_drafter["medusa"].accepted_at[0] == stats.drafts > 5

    @pytest.mark.parametrize("chunk", [1, 7])
    def test_in_batches_and_chunks(self, target, perfect, chunk):
        changes = {"max_chunk": chunk, "max_num_seqs": 4}
        stats = run(target("lookup"), wish("medusa", perfect, width=1), count=9, changes=changes, texts=following)
        assert stats.accepted == stats.drafted > 100

    def test_after_preemptions_and_from_the_cache(self, target, perfect):
        llm = target("lookup")
        stats = run(llm, wish("medusa", perfect, width=1), count=4, kv_blocks=10, max_tokens=40)
        assert llm.engine.scheduler.num_preemptions > 0
        assert stats.accepted == stats.drafted > 60

    def test_the_first_step_after_a_whole_hit_is_plain(self, target, perfect):
        """All but the last token of the prompt are cached: no hidden state has been seen."""
        llm = target("lookup")
        first = run(llm, wish("medusa", perfect, width=1), count=1)
        drafts = first.drafts
        prompt = [[(7 * i * i + 3 * i) % 290 + 1 for i in range(40)]]
        sequence = llm.generate(prompt)[0]
        assert sequence.stats.cached_prompt_tokens == 39
        stats = llm.engine.speculator.stats
        assert stats.drafts > drafts
        assert stats.accepted == stats.drafted

    def test_several_choices(self, target, perfect):
        stats = run(target("lookup"), wish("medusa", perfect, width=1), count=2, n=3)
        assert stats.accepted == stats.drafted > 80

    def test_beside_another_drafter(self, target, perfect):
        llm = target("lookup")
        speculation = wish("medusa", perfect, width=1)
        both = type(speculation)("ngram+medusa", 4, 64, speculation.options)
        stats = run(llm, both)
        assert stats.by_drafter["medusa"].accepted > 0

    def test_heads_that_share_the_targets_matrix(self, target, tmp_path):
        """The block moves token t's hidden state to that of the token behind it, so that it must be added and rectified
        as published: x + silu(W x + b) with large numbers, where silu is the identity or zero."""
        hidden = LOOKUP_SPEC.hidden
        step = np.zeros((hidden, hidden), np.float32)
        step[:VOCAB] = follower(1, 4.0)
        arrays = {"0.0.linear.weight": step, "0.0.linear.bias": np.zeros(hidden, np.float32)}
        head = write(tmp_path, medusa_config(1), arrays, "medusa_lm_head.safetensors")
        stats = run(target("lookup"), wish("medusa", head, width=1, depth=1))
        assert stats.accepted == stats.drafted > 20


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("backend", EVERY)
def test_no_head_changes_an_answer(target, random_heads, backend, width):
    drafted, _ = check_lossless(target("random", backend), wish("medusa", random_heads, depth=6, width=width), backend)
    assert drafted > 50


def test_no_head_drafts_what_a_grammar_forbids(target, random_heads):
    check_masked(target("random"), wish("medusa", random_heads, depth=3, width=3))


@pytest.mark.parametrize("backend", [BEST, "reference"])
def test_a_good_head_changes_no_answer_either(target, perfect, backend):
    drafted, accepted = check_lossless(target("lookup", backend), wish("medusa", perfect, depth=6, width=3), backend)
    assert accepted > 0.1 * drafted > 10


def test_loading_at_once_equals_reconfiguring(target, perfect, tmp_path):
    path = target("lookup")._opened.name
    llm = LLM(path, speculation=wish("medusa", perfect, width=1), threads=1, options=OPTIONS[BEST])
    stats = run(llm, wish("medusa", perfect, width=1))
    assert stats.accepted == stats.drafted > 50


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "fact"),
        [
            ({}, "needs a trained head"),
            ({"head": "x", "width": 0}, "medusa.width"),
            ({"head": "x", "max_depth": 64}, "medusa.max_depth"),
        ],
    )
    def test_options(self, options, fact):
        with pytest.raises(UsageError, match=fact):
            make_drafter("medusa", options)

    def test_checkpoints(self, target, tmp_path):
        llm = target("random")
        other = write(tmp_path / "other", medusa_config(1), medusa_arrays(32, VOCAB, 1), "medusa_lm_head.safetensors")
        (tmp_path / "empty").mkdir()
        for path, error, fact in (
            (tmp_path / "nowhere", ModelNotFound, "does not exist"),
            (tmp_path / "empty", ModelFileError, "has none of"),
            (other, UnsupportedModel, "width 32"),
        ):
            with pytest.raises(error, match=fact) as found:
                llm.reconfigure(speculation=wish("medusa", path), options=OPTIONS[BEST])
            assert "\n" not in str(found.value)
        llm.reconfigure(speculation="off", options=OPTIONS[BEST])
