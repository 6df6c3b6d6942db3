"""n-gram drafter: what it proposes, and what it keeps."""

import pytest

from forerun.errors import UsageError
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.drafter import Ask, known_drafters, make_drafter, register
from forerun.speculation.drafters.ngram import NgramDrafter


def sequence_of(tokens, number=0):
    request = Request("r", tuple(tokens), SamplingParams(seed=0))
    return Sequence(number, request, 0, 0, (0, 0), list(tokens), len(tokens))


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
