"""eagle behind the whole engine: it drafts what the published pass over the whole sequence says; heads that know the
target are always right; random ones change nothing."""

from itertools import pairwise

import numpy as np
import pytest

from forerun.errors import UnsupportedModel, UsageError
from forerun.sequence import SamplingParams, SpeculationParams
from forerun.speculation.drafter import make_drafter
from tests import heads_dense
from tests.head_files import (
    LOOKUP_SPEC,
    NEXT,
    RANDOM_SPEC,
    VOCAB,
    eagle1_arrays,
    eagle3_arrays,
    eagle_config,
    follower,
    square,
    write,
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
HIDDEN = RANDOM_SPEC.hidden
ARRAYS = {1: eagle1_arrays(HIDDEN), 3: eagle3_arrays(HIDDEN, VOCAB, COLUMNS)}
KINDS = ("tokens", "features", "version 3")


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return loader(tmp_path_factory.mktemp("targets"))


@pytest.fixture(scope="module")
def random_heads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("heads")
    aux = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [index - 1 for index in (1, 2, 3)]}}
    return {
        version: write(folder / str(version), eagle_config(version, HIDDEN, VOCAB, **(aux if version == 3 else {})), a)
        for version, a in ARRAYS.items()
    }


def write_perfect(folder, kind):
    """Heads whose layers add nothing but, in version 3, the step from a token to the one behind it."""
    hidden = LOOKUP_SPEC.hidden
    step, same = square(follower(1)), np.eye(hidden, dtype=np.float32)
    size = np.float32((1 / hidden + LOOKUP_SPEC.norm_eps) ** -0.5)  # of a token's hidden state behind the norm
    if kind == "version 3":
        arrays = eagle3_arrays(hidden, VOCAB, VOCAB)
        # silu(g) * u is large for the one token of the state and zero for all others
        gate, up, down = (f"midlayer.mlp.{part}_proj.weight" for part in ("gate", "up", "down"))
        arrays |= {gate: 4 * same, up: same, down: (step - same) / (4 * size * size)}
        arrays["midlayer.self_attn.o_proj.weight"] *= 0
        arrays |= {name: np.ones_like(arrays[name]) for name in arrays if name.endswith("norm.weight")}
        arrays["fc.weight"] = np.concatenate([same, 0 * same, 0 * same], axis=1)
        mixed = np.random.default_rng(0).permutation(VOCAB)  # columns in another order than the target's
        arrays |= {"d2t": mixed - np.arange(VOCAB), "lm_head.weight": follower(1)[mixed]}
        aux = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        changes = {"intermediate_size": hidden, "draft_vocab_size": VOCAB, "eagle_config": aux}
        return write(folder, eagle_config(3, hidden, VOCAB, **changes), arrays)
    arrays = eagle1_arrays(hidden, bias=False)
    arrays["layers.0.self_attn.o_proj.weight"] *= 0
    arrays["layers.0.mlp.down_proj.weight"] *= 0
    parts = [size * same, 0 * same] if kind == "tokens" else [0 * same, step]
    arrays["fc.weight"] = np.concatenate(parts, axis=1)
    return write(folder, eagle_config(1, hidden, VOCAB), arrays)


# ---- against the published pass over the whole sequence ----


class Dense(DenseTarget):
    """Drafts a chain from scratch with the head in plain numpy."""

    def __init__(self, version, captures):
        super().__init__(captures)
        self.version, self.arrays = version, ARRAYS[version]

    def chain(self, tokens, depth):
        """(token, probability) of each drafted token; tokens  the whole sequence, the last one not computed"""
        hidden = self.hidden(tokens)
        if self.version == 3:
            hidden = hidden @ self.arrays["fc.weight"].T
        features = np.concatenate([np.zeros_like(hidden[:1]), hidden])
        embed, found, tokens = self.weights.read("embed"), [], list(tokens)
        for _ in range(depth):
            states = getattr(heads_dense, f"eagle{self.version}")(self.arrays, embed[tokens], features)
            if self.version == 3:
                scores = heads_dense.eagle3_scores(self.arrays, states[-1:])[0]
                ids = self.arrays["d2t"] + np.arange(COLUMNS)
            else:
                scores, ids = self.weights.read("output") @ states[-1], np.arange(VOCAB)
            weights = np.exp(scores - scores.max())
            best = int(scores.argmax())
            found.append((int(ids[best]), float(weights[best] / weights.sum())))
            tokens.append(found[-1][0])
            features = np.concatenate([features, states[-1:]])
        return found


def check(llm, heads, version, *args, **changes):
    return checked_run(llm, wish("eagle", heads[version], width=1), lambda c: Dense(version, c), *args, **changes)


@pytest.mark.parametrize("version", [1, 3])
class TestDraftsWhatTheWholeSequenceSays:
    """Every hidden state, slot and position is where the published pass has it, after any history."""

    @pytest.mark.parametrize("chunk", [0, 1, 7])
    def test_in_chunks(self, target, random_heads, version, chunk):
        assert check(target("random", EXACT), random_heads, version, max_chunk=chunk) > 25

    def test_after_preemptions(self, target, random_heads, version):
        llm = target("random", EXACT)
        changes = {"prefix_caching": False}
        assert check(llm, random_heads, version, 40, kv_blocks=9, **changes) > 30
        assert llm.engine.scheduler.num_preemptions > 0

    def test_from_the_cache(self, target, random_heads, version):
        """Slots of cached tokens were filled by the first run, the last, shared in part, too."""
        assert check(target("random", EXACT), random_heads, version, again=True) > 50


@pytest.fixture(scope="module")
def heads(tmp_path_factory):
    return {kind: write_perfect(tmp_path_factory.mktemp("perfect") / kind, kind) for kind in KINDS}


class TestHeadsThatKnowTheTarget:
    """Every node of a chain is accepted: a hidden state or a token of another row, step or sequence would miss."""

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("backend", EVERY)
    def test_are_always_right(self, target, heads, backend, kind):
        stats = run(target("lookup", backend), wish("eagle", heads[kind], width=1), backend=backend, texts=following)
        assert stats.accepted == stats.drafted > 50

    @pytest.mark.parametrize("kind", KINDS)
    def test_lead_every_tree(self, target, heads, kind):
        stats = run(target("lookup"), wish("eagle", heads[kind], depth=8, width=3), texts=following)
        assert stats.by_drafter["eagle"].accepted_at[0] == stats.drafts > 5
        assert stats.accepted > stats.drafts

    def test_of_tokens_follow_what_is_sampled(self, target, heads):
        llm, head = target("lookup"), heads["tokens"]
        stats = run(llm, wish("eagle", head, width=1), temperature=2.0, seed=3, max_tokens=40)
        assert stats.accepted == stats.drafted > 80
        sampled = llm.generate(following(1), SamplingParams(max_tokens=40, temperature=2.0, seed=3))[0].token_ids
        assert any(NEXT[a] != b for a, b in pairwise(sampled)), "nothing was left to chance"

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("chunk", [1, 7])
    def test_in_batches_and_chunks(self, target, heads, kind, chunk):
        changes = {"max_chunk": chunk, "max_num_seqs": 4}
        stats = run(target("lookup"), wish("eagle", heads[kind], width=1), 9, changes=changes, texts=following)
        assert stats.accepted == stats.drafted > 100

    def test_several_choices(self, target, heads):
        stats = run(target("lookup"), wish("eagle", heads["features"], width=1), count=2, n=3, texts=following)
        assert stats.accepted == stats.drafted > 80

    def test_a_long_prompt_is_filled_in_parts(self, target, heads):
        stats = run(target("lookup"), wish("eagle", heads["tokens"], width=1), count=1, length=300)
        assert stats.accepted == stats.drafted > 10

    def test_a_conversation_goes_on_with_drafts(self, target, heads):
        """The second prompt is the first with its answer and more: its blocks are known to be filled."""
        llm = target("lookup")
        wanted = SamplingParams(max_tokens=20, ignore_eos=True)
        run(llm, wish("eagle", heads["features"], width=1), count=1, texts=following)
        (first,) = following(1)
        answer = list(llm.generate([first], wanted)[0].token_ids)
        before = llm.engine.speculator.stats.drafts
        found = llm.generate([[*first, *answer, *first[:9]]], wanted)[0]
        assert found.stats.cached_prompt_tokens >= 48
        assert llm.engine.speculator.stats.drafts > before

    def test_blocks_that_were_not_filled_are_not_drafted_from(self, target, heads):
        """Their sequence ran without the drafter."""
        llm = target("lookup")
        llm.reconfigure(speculation=wish("eagle", heads["features"], width=1), options=OPTIONS[BEST])
        (text,) = following(1, 120)
        off = SamplingParams(max_tokens=4, ignore_eos=True, speculation=SpeculationParams(drafter="off"))
        llm.generate([text], off)
        found = llm.generate([text], SamplingParams(max_tokens=20, ignore_eos=True))[0]
        assert found.stats.cached_prompt_tokens > 100
        assert llm.engine.speculator.stats.drafts == 0
        assert llm.engine.speculator.stats.drafter_errors == 0


def test_no_head_drafts_what_a_grammar_forbids(target, random_heads):
    check_masked(target("random"), wish("eagle", random_heads[3], width=3))


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("version", [1, 3])
@pytest.mark.parametrize("backend", [BEST, "portable", "reference"])
def test_no_head_changes_an_answer(target, random_heads, backend, version, width):
    speculation = wish("eagle", random_heads[version], depth=6, width=width)
    drafted, _ = check_lossless(target("random", backend), speculation, backend)
    assert drafted > 50


class TestErrors:
    @pytest.mark.parametrize(
        ("options", "fact"),
        [
            ({}, "needs a trained head"),
            ({"head": "x", "width": 17}, "eagle.width"),
            ({"head": "x", "min_survival": 1.0}, "eagle.min_survival"),
        ],
    )
    def test_options(self, options, fact):
        with pytest.raises(UsageError, match=fact):
            make_drafter("eagle", options)

    def test_another_models_head(self, target, tmp_path):
        head = write(tmp_path / "head", eagle_config(1, 32, VOCAB), eagle1_arrays(32))
        with pytest.raises(UnsupportedModel, match="width 32") as found:
            target("random").reconfigure(speculation=wish("eagle", head), options=OPTIONS[BEST])
        assert "\n" not in str(found.value)
