"""lookahead drafter: its window as paths of a tree, how steps move it on, and its pool."""

import numpy as np
import pytest

from forerun.batch import Outcome
from forerun.errors import UsageError
from forerun.sequence import FinishReason
from forerun.speculation.drafter import Seen, make_drafter
from forerun.speculation.drafters.lookahead import LookaheadDrafter
from forerun.speculation.tree import DraftTree
from tests.fakes import FakeBackend, Setup, path_logits, prompt_of, request, run
from tests.speculation.free_drafters import CASES, accepted_with, propose, run_like_plain, sequence_of


class Successors:
    """A step whose row of tree row r predicts token 1000 + r; remembers what it was asked for."""

    def __init__(self):
        self.asked = []

    def top(self, outputs, count):
        assert count == 1
        self.asked.append(list(outputs))
        return np.array([[1000 + output] for output in outputs], np.int32).reshape(len(outputs), 1)


def begun(tokens, **options):
    drafter, sequence = LookaheadDrafter(**options), sequence_of(tokens)
    drafter.begin(sequence)
    return drafter, sequence


def with_window(columns, tokens=(5, 6, 7, 8), **options):
    drafter, sequence = begun(tokens, from_text=False, **options)
    propose(drafter, sequence)
    drafter._texts[0].columns = [list(column) for column in columns]
    return drafter, sequence


def step(drafter, sequence, tree, tokens, accepted=()):
    """A step verified `tree` and came to `tokens`; returns the rows whose argmax was asked for."""
    sequence.tokens += tokens
    result = Successors()
    drafter.observe([Seen(sequence, Outcome(tree, accepted, tuple(tokens), tuple(range(len(tokens)))), 0, result)])
    return result.asked


def paths_of(tree):
    leaves = set(range(1, len(tree))) - set(tree.parents)
    return sorted([tree.tokens[row] for row in tree.path(leaf)] for leaf in leaves)


class TestWindow:
    def test_columns_hang_below_the_trunk(self):
        drafter, sequence = with_window([[11, 12, 13], [21, 22, 23]])
        assert paths_of(propose(drafter, sequence)) == [[11, 12, 13], [11, 21, 22, 23]]

    def test_equal_guesses_are_one_node(self):
        drafter, sequence = with_window([[11, 21, 13], [21, 22, 23]])
        assert paths_of(propose(drafter, sequence)) == [[11, 21, 13], [11, 21, 22, 23]]

    def test_a_step_moves_it_on_by_one_token(self):
        drafter, sequence = with_window([[11, 12, 13], [21, 22, 23]])
        tree = propose(drafter, sequence)
        rows = {tree.tokens[row]: row for row in range(len(tree))}
        assert step(drafter, sequence, tree, [9]) == [[rows[13], rows[23]]]
        assert drafter._texts[0].columns == [[12, 13, 1000 + rows[13]], [22, 23, 1000 + rows[23]]]
        assert drafter._texts[0].pool.behind(11) == [(12, 13, 1000 + rows[13])]
        assert drafter._texts[0].pool.behind(21) == [(22, 23, 1000 + rows[23])]

    def test_columns_that_the_text_has_passed_are_dropped(self):
        drafter, sequence = with_window([[11, 12, 13], [21, 22, 23]])
        tree = propose(drafter, sequence)
        rows = {tree.tokens[row]: row for row in range(len(tree))}
        step(drafter, sequence, tree, [11, 9], accepted=(rows[11],))
        columns = drafter._texts[0].columns
        assert columns[0] == [22, 23, 1000 + rows[23]]
        assert [len(column) for column in columns] == [3, 3]
        step(drafter, sequence, propose(drafter, sequence), [1, 2, 3, 4, 5, 6])
        assert [len(column) for column in drafter._texts[0].columns] == [3, 3]

    def test_of_a_pruned_draft_the_verified_part_is_used(self):
        drafter, sequence = with_window([[11, 12, 13], [21, 22, 23]])
        tree = propose(drafter, sequence)
        rows = {tree.tokens[row]: row for row in range(len(tree))}
        kept = tree.keep([rows[11], rows[12], rows[21]])
        assert step(drafter, sequence, kept, [9]) == [[kept.tokens.index(12), kept.tokens.index(21)]]
        one, other = drafter._texts[0].columns
        assert one[:2] == [12, 1000 + kept.tokens.index(12)]
        assert other[:2] == [1000 + kept.tokens.index(21), 23]
        assert len(one) == len(other) == 3
        assert drafter._texts[0].pool.behind(11) == [(12, 1000 + kept.tokens.index(12))]

    @pytest.mark.parametrize("tree", [DraftTree.root_only(8), DraftTree.chain(8, [77, 78], source="other")])
    def test_a_draft_without_its_nodes_asks_for_nothing(self, tree):
        drafter, sequence = with_window([[11, 12, 13], [21, 22, 23]])
        propose(drafter, sequence)
        assert step(drafter, sequence, tree, [9]) == []
        assert [column[:2] for column in drafter._texts[0].columns] == [[12, 13], [22, 23]]

    def test_the_shortest_window(self):
        drafter, sequence = with_window([[11]], window=1, ngram=2)
        tree = propose(drafter, sequence)
        assert tree.tokens == (8, 11)
        step(drafter, sequence, tree, [9])
        assert drafter._texts[0].columns == [[1001]]

    def test_rows_of_a_step(self):
        drafter, sequence = begun(prompt_of(1, 40))
        for _ in range(50):
            tree = propose(drafter, sequence, 63, 63)
            assert len(tree) <= 13
            step(drafter, sequence, tree, [sequence.tokens[-7]])


class TestPool:
    def test_ngrams_of_the_text_are_drafted(self):
        drafter, sequence = begun([1, 2, 3, 4, 9, 1])
        assert [2, 3, 4] in paths_of(propose(drafter, sequence))
        drafter, sequence = begun([1, 2, 3, 4, 9, 1], from_text=False)
        assert [2, 3, 4] not in paths_of(propose(drafter, sequence))

    def test_the_latest_are_kept(self):
        drafter, sequence = begun([1, 2, 3, 4, 1, 5, 6, 7, 1, 8, 9, 10, 1])
        assert drafter._texts[0].pool.behind(1) == []
        propose(drafter, sequence)
        assert drafter._texts[0].pool.behind(1) == [(8, 9, 10), (5, 6, 7)]

    def test_what_comes_again_is_the_latest(self):
        drafter, sequence = begun([1, 2, 3, 4, 1, 5, 6, 7, 1, 2, 3, 4, 1, 8, 9, 10])
        propose(drafter, sequence)
        assert drafter._texts[0].pool.behind(1) == [(8, 9, 10), (2, 3, 4)]

    @pytest.mark.parametrize("pauses", [[4], [5, 6, 13], list(range(1, 30))])
    def test_catching_up_after_any_pauses_gives_the_same_pool(self, pauses):
        text = [(i * i) % 7 for i in range(30)]
        drafter, sequence = begun(text[:1])
        for length in [*pauses, 30]:
            sequence.tokens[:] = text[:length]
            propose(drafter, sequence)
        other, whole = begun(text)
        propose(other, whole)
        assert drafter._texts[0].pool._tails == other._texts[0].pool._tails

    def test_pool_nodes_are_trusted_more_than_the_window(self):
        drafter, sequence = begun([1, 2, 3, 4, 9, 1])
        drafter._texts[0].columns = [[50, 51, 52], [60, 61, 62]]
        tree = propose(drafter, sequence)
        scores = dict(zip(tree.tokens, tree.score, strict=True))
        assert 0 < scores[50] < scores[2] < 1
        assert set(tree.prune(3).tokens[1:]) == {2, 3, 4}

    @pytest.mark.parametrize("is_right", [True, False])
    def test_scores_follow_what_came_true(self, is_right):
        drafter, sequence = begun([1, 2, 3, 4, 9, 1])
        for _ in range(200):
            drafter._texts[0].columns = [[50, 51, 52], [60, 61, 62]]
            sequence.tokens[:] = [1, 2, 3, 4, 9, 1]
            tree = propose(drafter, sequence)
            row = tree.child(0, 2)
            step(drafter, sequence, tree.keep([row]), [2, 9] if is_right else [9], [1] if is_right else [])
        assert drafter._in_pool.at(1).value > 0.9 if is_right else drafter._in_pool.at(1).value < 0.1
        assert drafter._in_window.at(1).value == pytest.approx(0.05)

    def test_a_sequence_that_ended_teaches_nothing(self):
        drafter, sequence = with_window([[11, 12, 13], [21, 22, 23]])
        sequence.finish = FinishReason.LENGTH
        assert step(drafter, sequence, propose(drafter, sequence), [9]) == []
        assert drafter._texts[0].columns == [[11, 12, 13], [21, 22, 23]]


@pytest.mark.parametrize(
    ("shape", "batch", "sampling", "from_text"), [(*case, text) for case in CASES for text in (False, True)]
)
def test_lossless(shape, batch, sampling, from_text):
    drafter = LookaheadDrafter(from_text=from_text)
    run_like_plain(drafter, shape, batch, sampling, max_depth=12)
    assert not drafter._texts


def test_lossless_through_preemption():
    engine = run_like_plain(LookaheadDrafter(), "tree", 8, "greedy", num_blocks=10)
    assert engine.scheduler.num_preemptions > 0


@pytest.mark.parametrize("options", [{"window": 1, "ngram": 2, "guesses": 1}, {"window": 5, "ngram": 3, "guesses": 4}])
def test_lossless_with_other_windows(options):
    assert accepted_with(lambda: LookaheadDrafter(**options), max_depth=15) > 0


def test_the_window_alone_finds_what_the_target_will_say():
    """Logits that depend on the last token alone: every n-gram of the window is right for its first token."""
    drafter = LookaheadDrafter(from_text=False)
    backend = FakeBackend(lambda path, vocab: path_logits(path[-1:], vocab))
    engine = Setup(prefill_slowdown=1e9, drafter=drafter, max_depth=12, backend=backend).engine()
    run(engine, [request(prompt_of(1, 5), ignore_eos=True, max_tokens=60)])
    assert engine.speculator.stats.accepted > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window must"),
        ({"ngram": 1}, "ngram must"),
        ({"guesses": 0}, "guesses must"),
        ({"window": 16, "guesses": 16}, "got 96"),
        ({"depth": 1}, "depth"),
    ],
)
def test_options_are_checked(options, message):
    with pytest.raises(UsageError, match=message):
        make_drafter("lookahead", options)
