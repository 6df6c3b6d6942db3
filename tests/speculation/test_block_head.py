"""block-head behind the whole engine: it drafts what its layout says over the whole sequence; heads that know the
target are always right; random ones change nothing."""

import numpy as np
import pytest

from forerun.errors import ModelFileError, UnsupportedModel, UsageError
from forerun.models.files.heads_block import write_block_head
from forerun.sequence import SamplingParams, SpeculationParams
from forerun.speculation.drafter import make_drafter
from tests import heads_dense
from tests.head_files import (
    LOOKUP_SPEC,
    RANDOM_SPEC,
    VOCAB,
    block_arrays,
    block_spec,
    follower,
)
from tests.speculation.head_targets import (
    BEST,
    EVERY,
    EXACT,
    OPTIONS,
    DenseTarget,
    check_lossless,
    check_masked,
    checked_run,
    following,
    loader,
    run,
    wish,
)

COLUMNS = 300
TOKENS = np.random.default_rng(2).permutation(VOCAB)[:COLUMNS]
SPEC = block_spec(RANDOM_SPEC.hidden, (1, 3, 5), COLUMNS, markov_rank=4, has_confidence=True)
ARRAYS = block_arrays(SPEC, VOCAB)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loader(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="module")
def random_head(tmp_path_factory):
    path = tmp_path_factory.mktemp("heads") / "block_head.safetensors"
    write_block_head(path, SPEC, VOCAB, ARRAYS, TOKENS)
    return path.parent


class Dense(DenseTarget):
    """Drafts a chain from scratch in plain numpy."""

    def chain(self, tokens, depth):
        embed = self.weights.read("embed")
        rows = embed[[tokens[-1], *[SPEC.mask_token] * (depth - 1)]]
        rows[1:] += ARRAYS["head.mask_hidden"] + ARRAYS["head.positions"][: depth - 1]
        _, states = heads_dense.block_head(ARRAYS, SPEC, self.hidden(tokens), rows, len(tokens) - 1)
        found, before = [], tokens[-1]
        for state in states:
            scores = ARRAYS["head.output"] @ state + ARRAYS["head.markov.before"][before] @ ARRAYS["head.markov.after"]
            probs = np.exp(scores - scores.max())
            probs /= probs.sum()
            entropy = -(probs * np.log(probs)).sum()
            z = ARRAYS["head.confidence"] @ [*state, probs.max(), entropy] + ARRAYS["head.confidence.bias"][0]
            before = int(TOKENS[scores.argmax()])
            found.append((before, 1 / (1 + np.exp(-z))))
        return found


class TestDraftsWhatTheWholeSequenceSays:
    def check(self, llm, head, *args, **changes):
        return checked_run(llm, wish("block-head", head, width=1), Dense, *args, **changes)

    @pytest.mark.parametrize("chunk", [0, 1, 7])
    def test_in_chunks(self, target, random_head, chunk):
        assert self.check(target("random", EXACT), random_head, max_chunk=chunk) > 25

    def test_after_preemptions(self, target, random_head):
        llm = target("random", EXACT)
        assert self.check(llm, random_head, 40, kv_blocks=9, prefix_caching=False) > 30
        assert llm.engine.scheduler.num_preemptions > 0

    def test_from_the_cache(self, target, random_head):
        assert self.check(target("random", EXACT), random_head, again=True) > 50


def perfect(folder, kind):
    """Heads whose layers add nothing: they know the token before by their table, or one hidden state."""
    rank = VOCAB if kind == "table" else 0
    spec = block_spec(LOOKUP_SPEC.hidden, (LOOKUP_SPEC.num_layers,), VOCAB, markov_rank=rank)
    arrays = block_arrays(spec, VOCAB)
    for name in arrays:
        if name.endswith(("attn.o", "mlp.down", "mask_hidden", "positions")):
            arrays[name] = np.zeros_like(arrays[name])
        elif "norm" in name:
            arrays[name] = np.ones_like(arrays[name])
    if kind == "table":
        arrays["head.output"] *= 0
        arrays["head.markov.before"] = np.eye(VOCAB, dtype=np.float32)
        arrays["head.markov.after"] = np.ascontiguousarray(follower(1, 13.25)[:, :VOCAB].T)
    else:  # the fused state of the token before outweighs the last token's embedding
        arrays["head.fc.0"] = np.eye(LOOKUP_SPEC.hidden, dtype=np.float32)
        arrays["head.output"] = follower(2)
    path = folder / f"{kind}.safetensors"
    write_block_head(path, spec, VOCAB, arrays)
    return path


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("perfect")
    return {kind: perfect(folder, kind) for kind in ("table", "state")}


class TestHeadsThatKnowTheTarget:
    @pytest.mark.parametrize("backend", EVERY)
    def test_are_always_right(self, target, heads, backend):
        stats = run(target("lookup", backend), wish("block-head", heads["table"], width=1, depth=6), backend=backend)
        assert stats.accepted == stats.drafted > 50
        assert len(stats.by_drafter["block-head"].accepted_at) == 5  # the head has five rows

    @pytest.mark.parametrize("chunk", [0, 1, 7])
    def test_read_the_right_state(self, target, heads, chunk):
        changes = {"max_chunk": chunk, "max_num_seqs": 4}
        speculation = wish("block-head", heads["state"], width=1, depth=1)
        stats = run(target("lookup"), speculation, 9, changes=changes, texts=following)
        assert stats.accepted == stats.drafted > 80

    def test_lead_every_tree(self, target, heads):
        stats = run(target("lookup"), wish("block-head", heads["table"], depth=8, width=3))
        assert stats.by_drafter["block-head"].accepted_at[0] == stats.drafts > 5

    def test_follow_what_is_sampled(self, target, heads):
        """The table holds the target's own scores behind the token that was drawn, and the noise is the target's."""
        stats = run(target("lookup"), wish("block-head", heads["table"], width=1), temperature=2.0, seed=3)
        assert stats.accepted == stats.drafted > 50

    def test_blocks_that_were_not_filled_are_not_drafted_from(self, target, heads):
        llm = target("lookup")
        llm.reconfigure(speculation=wish("block-head", heads["table"], width=1), options=OPTIONS[BEST])
        (text,) = following(1, 120)
        off = SamplingParams(max_tokens=4, ignore_eos=True, speculation=SpeculationParams(drafter="off"))
        llm.generate([text], off)
        found = llm.generate([text], SamplingParams(max_tokens=20, ignore_eos=True))[0]
        assert found.stats.cached_prompt_tokens > 100
        assert llm.engine.speculator.stats.drafts == 0
        assert llm.engine.speculator.stats.drafter_errors == 0


def test_no_head_drafts_what_a_grammar_forbids(target, random_head):
    check_masked(target("random"), wish("block-head", random_head, width=3))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("backend", [BEST, "portable", "reference"])
def test_no_head_changes_an_answer(target, random_head, backend, width):
    speculation = wish("block-head", random_head, depth=6, width=width)
    drafted, _ = check_lossless(target("random", backend), speculation, backend)
    assert drafted > 50


def test_another_models_head(target, tmp_path):
    spec = block_spec(32, (1, 2), 40)
    write_block_head(tmp_path / "head.safetensors", spec, VOCAB, block_arrays(spec, VOCAB), TOKENS[:40])
    (tmp_path / "empty").mkdir()
    for path, error, fact in (
        (tmp_path / "head.safetensors", UnsupportedModel, "width 32"),
        (tmp_path / "empty", ModelFileError, "has none of"),
    ):
        with pytest.raises(error, match=fact):
            target("random").reconfigure(speculation=wish("block-head", path), options=OPTIONS[BEST])
    with pytest.raises(UsageError, match="needs a trained head"):
        make_drafter("block-head", {})
