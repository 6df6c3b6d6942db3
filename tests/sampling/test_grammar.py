"""Masks of tree rows: what a fork of the matcher allows behind each row's path; and the bits themselves."""

import numpy as np
import pytest

from forerun.sampling.grammar import allows, mask_rows, unpack
from forerun.sampling.processors import History, process
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.tree import DraftTree

VOCAB = 40
EVERYTHING = [0xFFFFFFFF, 0xFFFFFFFF]


class Successor:
    """Allows the token itself and the next one; token 39 has no successor. Counts what it is asked."""

    def __init__(self, last: int) -> None:
        self.last = last

    def allowed(self) -> np.ndarray:
        mask = np.zeros(2, np.uint32)
        for token in {self.last, min(self.last + 1, VOCAB - 1)}:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask

    def advance(self, token: int) -> None:
        assert token in (self.last, self.last + 1)
        self.last = token

    def fork(self) -> "Successor":
        return Successor(self.last)


def sequence_of(mask: Successor | None, **params: object) -> Sequence:
    request = Request("r", (7,), SamplingParams(**params), eos_ids=(9,))  # type: ignore[arg-type]
    return Sequence(0, request, 0, 1, (7, 8), [7], 1, token_mask=mask)


def tokens_of(masks: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(unpack(mask, VOCAB)).tolist() for mask in masks]


def test_every_row_sees_what_its_path_allows() -> None:
    tree = DraftTree.from_paths(7, [[8, 8], [7, 8]])
    matcher = Successor(7)
    masks = mask_rows(sequence_of(matcher), tree)
    assert masks is not None
    assert tree.tokens == (7, 8, 8, 7, 8)
    assert tokens_of(masks) == [[7, 8], [8, 9], [8, 9], [7, 8], [8, 9]]
    assert matcher.last == 7  # it stands behind the last token still


def test_rows_that_no_walk_visits_allow_everything() -> None:
    masks = mask_rows(sequence_of(Successor(8)), DraftTree.from_paths(7, [[3, 4], [9, 9]]))
    assert masks is not None
    assert tokens_of(masks[:1]) == [[8, 9]]
    assert masks[1:].tolist() == [EVERYTHING] * 4  # 3 is not allowed, 9 ends the sequence


def test_an_ignored_end_is_a_token_like_others() -> None:
    masks = mask_rows(sequence_of(Successor(8), ignore_eos=True), DraftTree.from_paths(7, [[9, 9]]))
    assert masks is not None
    assert tokens_of(masks) == [[8, 9], [9, 10], [9, 10]]


def test_ids_outside_the_vocabulary_are_not_allowed() -> None:
    mask = np.array(EVERYTHING, np.uint32)
    assert [allows(mask, token) for token in (-1, 0, 63, 64)] == [False, True, True, False]
    assert unpack(mask[:1], VOCAB).tolist() == [True] * 32 + [False] * 8


def test_no_grammar_no_masks() -> None:
    assert mask_rows(sequence_of(None), DraftTree.root_only(7)) is None


def test_a_path_leads_to_its_rows_mask(make_request) -> None:
    tree = DraftTree.from_paths(7, [[8, 9], [3]])
    masks = np.array([[1 << 8], [1 << 9], [1 << 4], [1 << 5]], np.uint32)
    request = make_request(tree=tree, masks=masks)
    history = History(request)
    row = np.zeros(32, np.float32)
    other = history.copy()

    def drawn(history: History) -> int:
        survivors = process(row, request, 10, history)
        assert survivors is not None
        return int(survivors.ids[0])

    assert drawn(history) == 8
    history.add(8)
    assert drawn(history) == 9
    other.add(3)
    assert drawn(other) == 5
    other.add(17)
    assert other.node is None
    assert drawn(other) == 0  # off the tree there is no mask


@pytest.mark.parametrize("token", [0, 31])
def test_unpack_starts_at_the_lowest_bit(token: int) -> None:
    assert np.flatnonzero(unpack(np.array([1 << token], np.uint32), 32)).tolist() == [token]
