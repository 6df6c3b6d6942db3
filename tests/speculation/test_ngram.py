"""n-gram drafter: what it proposes, and what it keeps."""

import pytest

from forerun.batch import Outcome
from forerun.errors import UsageError
from forerun.sequence import FinishReason
from forerun.speculation.drafter import Ask, Seen, known_drafters, make_drafter, register
from forerun.speculation.drafters.ngram import KEPT, NgramDrafter, match_length
from forerun.speculation.tree import DraftTree
from tests.speculation.free_drafters import CASES, propose, run_like_plain, sequence_of


def draft(tokens, max_nodes=4, drafter=None, **options):
    drafter = drafter or NgramDrafter(**options)
    sequence = sequence_of(tokens)
    drafter.begin(sequence)
    (tree,) = drafter.propose([Ask(sequence, max_nodes, max_nodes)])
    return None if tree is None else list(tree.tokens[1:])


def test_proposes_what_followed_the_last_time():
    sequence = sequence_of([1, 2, 3, 4, 5, 1, 2])
    drafter = NgramDrafter()
    drafter.begin(sequence)
    (tree,) = drafter.propose([Ask(sequence, 3, 3)])
    assert tree.tokens == (2, 3, 4, 5)
    assert tree.is_chain
    assert tree.source == "ngram"


def test_nothing_known_nothing_proposed():
    assert draft([1, 2, 3, 4, 5]) is None
    assert draft([1]) is None
    assert draft([1, 2, 3, 2]) is None  # one token known, min_n is 2
    assert draft([1, 2, 3, 2], min_n=1) == [3, 2, 3, 2]


def test_the_longest_suffix_wins_over_a_more_recent_shorter_one():
    #        a  b  c  X        b  c  Y        a  b  c
    assert draft([1, 2, 3, 7, 9, 2, 3, 8, 9, 1, 2, 3], max_nodes=1) == [7]
    assert draft([1, 2, 3, 7, 9, 2, 3, 8, 9, 1, 2, 3], max_nodes=1, max_n=2) == [8]


def test_the_most_recent_occurrence_wins():
    assert draft([1, 2, 7, 1, 2, 8, 1, 2], max_nodes=1) == [8]


def test_a_continuation_that_reaches_the_end_goes_on_periodically():
    assert draft([5, 1, 2, 3, 1, 2, 3], max_nodes=7) == [1, 2, 3, 1, 2, 3, 1]
    assert draft([4, 4, 4], max_nodes=5) == [4] * 5


def test_the_last_token_itself_is_no_occurrence():
    """The suffix always matches itself at the end of the text; that says nothing about what follows."""
    assert draft([1, 2]) is None


@pytest.mark.parametrize(("max_nodes", "max_depth", "length"), [(5, 3, 3), (2, 9, 2)])
def test_length_is_what_was_asked(max_nodes, max_depth, length):
    drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3, 1, 2])
    drafter.begin(sequence)
    (tree,) = drafter.propose([Ask(sequence, max_nodes, max_depth)])
    assert tree.num_nodes == length


@pytest.mark.parametrize("pauses", [[1], [2, 5], [3, 4, 11], list(range(1, 30))])
def test_catching_up_after_any_pauses_gives_the_same_drafts(pauses):
    text = [(i * i) % 7 for i in range(30)]
    sequence, drafter = sequence_of(text[:1]), NgramDrafter()
    drafter.begin(sequence)
    for length in pauses:
        sequence.tokens[:] = text[:length]
        drafter.propose([Ask(sequence, 4, 4)])
    sequence.tokens[:] = text
    (tree,) = drafter.propose([Ask(sequence, 4, 4)])
    assert list(tree.tokens[1:]) == draft(text)


def test_sequences_do_not_see_each_other():
    drafter = NgramDrafter()
    one, other = sequence_of([1, 2, 3, 1, 2], 1), sequence_of([5, 6, 1, 2], 2)
    drafter.begin(one)
    drafter.begin(other)
    trees = drafter.propose([Ask(one, 2, 2), Ask(other, 2, 2)])
    assert trees[0] is not None
    assert trees[1] is None


def test_memory_is_dropped_at_the_end():
    drafter = NgramDrafter()
    for number in range(5):
        drafter.begin(sequence_of([1, 2, 1, 2], number))
    for number in range(5):
        drafter.end(number)
        drafter.end(number)  # twice is harmless
    assert not drafter._indexes


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (-1, 2), (3, 2), (1, 17)])
def test_impossible_sizes_are_refused(min_n, max_n):
    with pytest.raises(UsageError, match=rf"got {min_n} and {max_n}"):
        NgramDrafter(min_n, max_n)


class TestFrequent:
    def test_the_most_frequent_continuation_wins(self):
        text = [1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2]
        assert draft(text, max_nodes=1) == [8]
        assert draft(text, max_nodes=1, choice="frequent") == [7]

    def test_it_goes_on_from_where_that_happened_last(self):
        assert draft([1, 2, 7, 4, 1, 2, 7, 5, 1, 2, 8, 6, 1, 2], choice="frequent") == [7, 5, 1, 2]

    def test_the_more_recent_of_equally_frequent_ones_wins(self):
        assert draft([1, 2, 7, 1, 2, 8, 1, 2], max_nodes=1, choice="frequent") == [8]

    def test_the_score_says_how_often_it_went_on_so(self):
        drafter, sequence = NgramDrafter(choice="frequent"), sequence_of([1, 2, 7, 3, 1, 2, 7, 4, 1, 2, 8, 5, 1, 2])
        drafter.begin(sequence)
        assert propose(drafter, sequence).score[1] == pytest.approx(2 / 3 * 2 / 4)

    def test_memory_of_one_ngram_is_bounded(self):
        text = [token for i in range(500) for token in (1, 2, 100 + i, 1, 2, 7)]
        drafter, sequence = NgramDrafter(max_n=2, choice="frequent"), sequence_of([*text, 1, 2])
        drafter.begin(sequence)
        assert propose(drafter, sequence, max_nodes=1).tokens == (2, 7)
        ends = drafter._indexes[sequence.id]._ends
        assert max(map(len, ends._ends.values())) == KEPT


class TestScores:
    @staticmethod
    def scores(tokens, drafter=None, **options):
        drafter, sequence = drafter or NgramDrafter(**options), sequence_of(tokens)
        drafter.begin(sequence)
        return propose(drafter, sequence, max_nodes=8).score[1:]

    def test_longer_matches_are_trusted_more(self):
        short = self.scores([1, 2, 3, 4, 5, 1, 2])
        long = self.scores([*range(20), 99, *range(10)])
        assert short[0] == pytest.approx(2 / 4)
        assert long[0] > short[0]
        assert list(short) == sorted(short)  # each accepted node makes the match longer
        assert all(0 < score < 1 for score in short + long)

    def test_a_match_is_measured_beyond_max_n(self):
        assert self.scores([*range(20), 99, *range(16)])[0] == pytest.approx(16 / 18)
        assert match_length([7] * 100, 99) == 32

    def test_a_third_period_is_trusted_more_than_a_second(self):
        assert self.scores([1, 2, 3] * 3)[0] > self.scores([1, 2, 3] * 2)[0]

    @pytest.mark.parametrize("is_right", [True, False])
    def test_scores_follow_what_came_true(self, is_right):
        drafter, tokens = NgramDrafter(), [1, 2, 3, 4, 5, 1, 2]
        before = self.scores(tokens, drafter)[0]
        for _ in range(100):
            sequence = sequence_of(tokens)
            drafter.begin(sequence)
            tree = propose(drafter, sequence, max_nodes=1)
            outcome = Outcome(tree, (1,), (3, 4), (0, 1)) if is_right else Outcome(tree, (), (9,), (0,))
            drafter.observe([Seen(sequence, outcome, 0, None)])
        after = self.scores(tokens, drafter)[0]
        assert after > 0.9 if is_right else after < 0.1
        assert before == 0.5

    def test_what_was_cut_short_does_not_count(self):
        drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3, 4, 5, 1, 2])
        for _ in range(50):
            drafter.begin(sequence)
            sequence.finish = None
            tree = propose(drafter, sequence, max_nodes=1)
            sequence.finish = FinishReason.LENGTH
            drafter.observe([Seen(sequence, Outcome(tree, (), (3,), (0,)), 0, None)])
        assert self.scores(sequence.tokens, drafter)[0] == 0.5

    def test_nodes_of_other_drafters_do_not_count(self):
        drafter, sequence = NgramDrafter(), sequence_of([1, 2, 3, 4, 5, 1, 2])
        for _ in range(50):
            drafter.begin(sequence)
            propose(drafter, sequence, max_nodes=1)
            foreign = DraftTree.chain(2, [3], source="other")
            drafter.observe([Seen(sequence, Outcome(foreign, (), (9,), (0,)), 0, None)])
        assert self.scores(sequence.tokens, drafter)[0] == 0.5


@pytest.mark.parametrize(
    ("shape", "batch", "sampling", "choice"), [(*case, choice) for case in CASES for choice in ("recent", "frequent")]
)
def test_lossless(shape, batch, sampling, choice):
    drafter = NgramDrafter(min_n=1, choice=choice)
    run_like_plain(drafter, shape, batch, sampling)
    assert not drafter._indexes


def test_lossless_through_preemption():
    engine = run_like_plain(NgramDrafter(min_n=1), "tree", 8, "greedy", num_blocks=10)
    assert engine.scheduler.num_preemptions > 0


def test_an_unknown_choice_is_refused():
    with pytest.raises(UsageError, match="recent or frequent, got 'best'"):
        NgramDrafter(choice="best")


class TestRegistry:
    def test_built_in_names(self):
        assert "ngram" in known_drafters()
        assert make_drafter("ngram", {"max_n": 3}).name == "ngram"

    def test_unknown_name_lists_the_known_ones(self):
        with pytest.raises(UsageError, match=r"unknown drafter 'oracle'.*off.*ngram"):
            make_drafter("oracle", {})

    def test_unknown_option(self):
        with pytest.raises(UsageError, match=r"'ngram' does not take these options.*depth"):
            make_drafter("ngram", {"depth": 3})

    def test_anybody_may_register(self, monkeypatch):
        monkeypatch.setattr("forerun.speculation.drafter._FACTORIES", {})
        register("mine", NgramDrafter)
        assert known_drafters() == ["mine"]
