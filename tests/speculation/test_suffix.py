"""suffix drafter: what it proposes, what it shares and with whom, and what it keeps."""

import time

import numpy as np
import pytest

from forerun.errors import UsageError
from forerun.speculation.drafter import make_drafter
from forerun.speculation.drafters.suffix import SHARD_BYTES, SuffixDrafter
from tests.speculation.free_drafters import CASES, propose, run_like_plain, sequence_of


def begun(tokens, number=0, drafter=None, **options):
    drafter, sequence = drafter or SuffixDrafter(**options), sequence_of(tokens, number)
    drafter.begin(sequence)
    return drafter, sequence


def finish(drafter, prompt, output, salt="", number=99):
    """A sequence comes, says `output` and goes."""
    sequence = sequence_of([*prompt, *output], number, salt, num_prompt=len(prompt))
    drafter.begin(sequence)
    drafter.end(number)


def test_proposes_what_followed():
    drafter, sequence = begun([8, 9, 1, 2, 3, 4, 5, 8, 9, 1, 2])
    tree = propose(drafter, sequence, max_nodes=3)
    assert tree.tokens == (2, 3, 4, 5)
    assert tree.is_chain
    assert tree.source == "suffix"
    assert all(0 < score < 1 for score in tree.score[1:])


def test_ways_that_a_text_went_on_become_branches():
    drafter, sequence = begun([1, 2, 7, 4, 1, 2, 8, 5, 1, 2, 7, 6, 1, 2])
    tree = propose(drafter, sequence)
    assert [tree.tokens[row] for row in range(1, len(tree)) if tree.parents[row] == 0] == [7, 8]


def test_nothing_known_nothing_proposed():
    drafter, sequence = begun([1, 2, 3, 4, 5])
    assert propose(drafter, sequence) is None


def test_the_longer_the_match_the_more_nodes():
    text = [*range(1, 30)] * 3
    for length, nodes in ((1, 3), (5, 7), (20, 22)):
        drafter, sequence = begun([*text, 99, *text[:length]], alpha=1.0, offset=2.0, min_prob=0.001)
        tree = propose(drafter, sequence, max_nodes=40, max_depth=40)
        assert tree.num_nodes == nodes


@pytest.mark.parametrize("pauses", [[1], [2, 5], [3, 4, 11], list(range(1, 30))])
def test_catching_up_after_any_pauses_gives_the_same_drafts(pauses):
    text = [(i * i) % 7 for i in range(30)]
    drafter, sequence = begun(text[:1])
    for length in pauses:
        sequence.tokens[:] = text[:length]
        propose(drafter, sequence)
    sequence.tokens[:] = text
    assert propose(drafter, sequence) == propose(*begun(text))


def test_sequences_do_not_see_each_other():
    drafter, one = begun([1, 2, 3, 1, 2], 1)
    _, other = begun([5, 6, 1, 2], 2, drafter)
    assert propose(drafter, one) is not None
    assert propose(drafter, other) is None


def test_memory_is_dropped_at_the_end():
    drafter = SuffixDrafter()
    for number in range(5):
        _, sequence = begun([1, 2, 1, 2], number, drafter)
        propose(drafter, sequence)
    assert drafter.num_bytes > 0
    for number in range(5):
        drafter.end(number)
        drafter.end(number)  # twice is harmless
    assert drafter.num_bytes == 0


class TestShared:
    def test_off_by_default(self):
        drafter = SuffixDrafter()
        finish(drafter, [9], [1, 2, 3, 4])
        assert propose(*begun([1, 2], drafter=drafter)) is None

    def test_what_was_answered_before_is_proposed(self):
        drafter = SuffixDrafter(shared=True)
        finish(drafter, [9], [1, 2, 3, 4])
        assert propose(*begun([7, 1, 2], drafter=drafter)).tokens == (2, 3, 4)

    def test_prompts_are_not_shared(self):
        drafter = SuffixDrafter(shared=True)
        finish(drafter, [1, 2, 3, 4], [8, 9])
        assert propose(*begun([7, 1, 2], drafter=drafter)) is None

    def test_own_text_and_shared_text_are_one_tree(self):
        drafter = SuffixDrafter(shared=True)
        finish(drafter, [9], [1, 2, 5])
        tree = propose(*begun([1, 2, 3, 1, 2], drafter=drafter))
        assert {tree.tokens[row] for row in range(1, len(tree)) if tree.parents[row] == 0} == {3, 5}

    def test_salts_separate(self):
        drafter = SuffixDrafter(shared=True)
        finish(drafter, [9], [1, 2, 3, 4], salt="a")
        for number, (salt, is_known) in enumerate([("a", True), ("b", False), ("", False)]):
            sequence = sequence_of([1, 2], number, salt)
            drafter.begin(sequence)
            assert (propose(drafter, sequence) is not None) == is_known

    def test_places_survive_new_text_and_forgotten_shards(self):
        drafter = SuffixDrafter(shared=True, shared_bytes=1 << 20)
        rng = np.random.default_rng(0)
        _, sequence = begun([1, 2, 3], drafter=drafter)
        for number in range(200):
            finish(drafter, [9], rng.integers(0, 50, 300).tolist(), number=1000 + number)
            sequence.tokens.append(int(rng.integers(0, 50)))
            propose(drafter, sequence)
        assert len(drafter._texts[sequence.id].places) <= len(drafter._corpus.of("")) + 1

    @pytest.mark.parametrize("salts", [1, 3, 300])
    def test_the_budget_holds(self, salts):
        budget = 1 << 20
        drafter = SuffixDrafter(shared=True, shared_bytes=budget)
        rng = np.random.default_rng(0)
        for number in range(600):
            length = 50_000 if number == 77 else int(rng.integers(2, 400))
            finish(drafter, [9], rng.integers(0, 5000, length).tolist(), salt=str(number % salts))
            shards = [shard for salt in range(salts) for shard in drafter._corpus.of(str(salt))]
            assert sum(SHARD_BYTES + shard.automaton.bytes for shard in shards) == drafter.num_bytes <= budget
        assert drafter.num_bytes > budget // 2

    def test_what_is_of_use_is_forgotten_last(self):
        drafter = SuffixDrafter(shared=True, shared_bytes=1 << 20)
        finish(drafter, [9], [1, 2, 3, 4], salt="used")
        finish(drafter, [9], [1, 2, 3, 4], salt="idle")
        _, sequence = drafter, sequence_of([1, 2], 5, "used")
        drafter.begin(sequence)
        for number in range(300):
            assert propose(drafter, sequence) is not None
            finish(drafter, [9], list(range(300)), salt=f"other {number}")
        assert not drafter._corpus.of("idle")


@pytest.mark.parametrize(
    ("shape", "batch", "sampling", "shared"),
    [(*case, shared) for case in CASES for shared in (False, True)],
)
def test_lossless(shape, batch, sampling, shared):
    drafter = SuffixDrafter(shared=shared)
    run_like_plain(drafter, shape, batch, sampling)
    if shared:  # again, with what was said the first time
        run_like_plain(drafter, shape, batch, sampling)
    assert not drafter._texts


def test_lossless_through_preemption():
    engine = run_like_plain(SuffixDrafter(), "tree", 8, "greedy", num_blocks=10)
    assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_match": 0}, "min_match"),
        ({"min_prob": 0.0}, "min_prob"),
        ({"min_prob": 1.0}, "min_prob"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": 0.0, "offset": 0.0}, "both 0"),
        ({"alpha": float("nan")}, "alpha"),
        ({"shared_bytes": 1000}, "shared_bytes"),
        ({"depth": 3}, "depth"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        make_drafter("suffix", options)


def test_a_long_context_is_as_fast_as_a_short_one():
    """The aim is 50 us at 32k tokens; the bound is 20 times that, of the fastest tenth, so that no load breaks it."""
    rng = np.random.default_rng(0)
    phrases = [rng.integers(0, 5000, 12).tolist() for _ in range(400)]
    text = [token for pick in rng.integers(0, 400, 2800) for token in phrases[pick]][:32_768]
    drafter, sequence = begun(text)
    propose(drafter, sequence)
    seconds = []
    for token in phrases[7] * 20:
        sequence.tokens.append(token)
        start = time.perf_counter()
        propose(drafter, sequence)
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[len(seconds) // 10] < 20 * 50e-6
