"""prediction drafter: where the answer stands in its prediction, and what follows there."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import UsageError
from forerun.speculation.drafter import Ask
from forerun.speculation.drafters.prediction import PredictionDrafter
from tests.speculation.free_drafters import sequence_of

END = 99
TEXT = list(range(10, 40))


class Running:
    """A sequence with a prediction, and its drafter."""

    def __init__(self, prediction, **options):
        sequence = sequence_of([1, 2, 3])
        self.sequence = replace(
            sequence, request=replace(sequence.request, prediction=tuple(prediction), eos_ids=(END,))
        )
        self.drafter = PredictionDrafter(**options)
        self.drafter.begin(self.sequence)

    def say(self, *tokens):
        self.sequence.tokens.extend(tokens)

    def tree(self, length=4):
        (tree,) = self.drafter.propose([Ask(self.sequence, length, length)])
        return tree

    def draft(self, length=4):
        tree = self.tree(length)
        return None if tree is None else list(tree.tokens[1:])


def test_the_answer_is_expected_to_be_the_prediction():
    it = Running(TEXT)
    assert it.draft() == TEXT[:4]
    it.say(*TEXT[:7])
    assert it.draft() == TEXT[7:11]
    assert it.tree().source == "prediction"


def test_behind_it_comes_the_end():
    it = Running(TEXT)
    it.say(*TEXT[:28])
    assert it.draft() == [*TEXT[28:], END]
    it.say(*TEXT[28:])
    assert it.draft() == [END]
    it.say(5)
    assert it.draft() is None


def test_one_token_was_replaced():
    it = Running(TEXT)
    it.say(*TEXT[:5], 7)
    assert it.draft() == TEXT[6:10]
    it.say(*TEXT[6:8])
    assert it.draft() == TEXT[8:12]


def test_tokens_were_inserted():
    it = Running(TEXT)
    it.say(*TEXT[:5], 7, 8, 9, *TEXT[5:7])
    assert it.draft() == TEXT[7:11]


def test_tokens_were_left_out():
    it = Running(TEXT)
    it.say(*TEXT[:5], TEXT[12])
    assert it.draft() == TEXT[13:17]  # one token is enough within the window
    it = Running(TEXT)
    it.say(*TEXT[:2], TEXT[25], TEXT[26])
    assert it.draft() == [TEXT[27], TEXT[28], TEXT[29], END]


def test_what_stands_before_the_prediction_is_passed_over():
    it = Running(TEXT)
    it.say(5, 6, 7, 8, *TEXT[:2])
    assert it.draft() == TEXT[2:6]


def test_of_several_places_the_longest_run_wins_then_the_nearest():
    #             0  1  2  3  4  5  6  7  8  9 10 11
    prediction = [1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3, 6]
    it = Running(prediction)
    it.say(7, 8, 2, 3)
    assert it.draft(1) == [6]
    it = Running(prediction)
    it.say(1, 2, 3, 4, 7, 2, 3)
    assert it.draft(1) == [5]


def test_scores_grow_with_what_agrees():
    it = Running(TEXT)
    it.say(*TEXT[:5], 7)
    lost = it.tree(1).score[1]
    it.say(*TEXT[6:9])
    found = it.tree(1).score[1]
    it.say(*TEXT[9:20])
    assert lost < found < it.tree(1).score[1] < 1


def test_no_more_than_was_asked_and_nothing_without_a_prediction():
    it = Running(TEXT)
    assert it.draft(1) == TEXT[:1]
    assert it.draft(30) == TEXT
    assert Running([]).draft() is None


def test_an_end_that_is_ignored_is_not_proposed():
    it = Running(TEXT)
    it.sequence.request = replace(it.sequence.request, params=replace(it.sequence.params, ignore_eos=True))
    it.say(*TEXT)
    assert it.draft() is None


def test_a_sequence_that_has_ended_leaves_nothing():
    it = Running(TEXT)
    it.drafter.end(it.sequence.id)
    assert it.drafter._places == {}
    assert it.draft() is None


@given(
    prediction=st.lists(st.integers(0, 3), max_size=40),
    said=st.lists(st.integers(0, 3), max_size=60),
    min_run=st.integers(1, 4),
)
def test_it_does_not_matter_how_often_it_is_asked(prediction, said, min_run):
    one, often = Running(prediction, min_run=min_run), Running(prediction, min_run=min_run)
    one.say(*said)
    for token in said:
        often.say(token)
        often.draft()
    assert one.tree() == often.tree()


def test_options_are_checked():
    with pytest.raises(UsageError, match="min_run"):
        PredictionDrafter(min_run=0)
