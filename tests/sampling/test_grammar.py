"""Masks of tree rows: what a fork of the matcher allows behind each row's path; and the bits themselves."""

import numpy as np
import pytest

from forerun.errors import GrammarError
from forerun.sampling.grammar import allowed_of, allows, cut_to_grammar, cut_to_limits, mask_rows, path_masks, unpack
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


def test_a_row_of_ids_is_looked_up_at_once() -> None:
    mask = np.array([0x80000001, 0x00000002], np.uint32)
    tokens = np.array([-1, 0, 1, 31, 32, 33, 63, 64], np.int32)
    assert allowed_of(mask, tokens).tolist() == [allows(mask, token) for token in tokens.tolist()]


def test_a_path_is_forked_once_whoever_asks() -> None:
    forks = []

    class Counting(Successor):
        def fork(self) -> "Counting":
            forks.append(self.last)
            return Counting(self.last)

    sequence = sequence_of(Counting(7))
    tree = DraftTree.from_paths(7, [[8, 8], [7, 8]])
    masks = path_masks(sequence)
    assert masks is not None
    assert masks.behind([8, 8]) is not None
    assert cut_to_grammar(sequence, tree) is tree
    assert mask_rows(sequence, tree) is not None
    assert sorted(forks) == [7, 7, 7, 8]  # one for each node
    sequence.tokens.append(8)
    sequence.token_mask.advance(8)  # type: ignore[union-attr]
    assert tokens_of(mask_rows(sequence, DraftTree.root_only(8))) == [[8, 9]]  # type: ignore[arg-type]


def test_masks_are_kept_though_the_matcher_uses_its_array_again() -> None:
    array = np.zeros(2, np.uint32)

    class Reusing(Successor):
        def allowed(self) -> np.ndarray:
            array[:] = super().allowed()
            return array

        def fork(self) -> "Reusing":
            return Reusing(self.last)

    sequence = sequence_of(Reusing(7))
    masks = mask_rows(sequence, DraftTree.chain(7, [8, 8]))
    assert masks is not None
    assert tokens_of(masks) == [[7, 8], [8, 9], [8, 9]]


def test_nothing_follows_a_path_that_ends_or_is_refused() -> None:
    masks = path_masks(sequence_of(Successor(8)))
    assert masks is not None
    assert masks.behind([9]) is None  # the end
    assert masks.behind([3]) is None
    assert masks.behind([3, 8]) is None


@pytest.mark.parametrize(
    ("paths", "kept"),
    [
        ([[8, 8, 8]], (7, 8, 8, 8)),
        ([[8, 9, 9]], (7, 8, 9)),  # the end stays, what is behind it goes
        ([[8, 3, 8]], (7, 8)),
        ([[3, 8], [8, 8]], (7, 8, 8)),
        ([[3]], (7,)),
    ],
)
def test_a_draft_is_cut_at_the_first_token_that_is_refused(paths: list[list[int]], kept: tuple[int, ...]) -> None:
    tree = DraftTree.from_paths(7, paths)
    assert cut_to_grammar(sequence_of(Successor(7)), tree).tokens == kept
    assert cut_to_grammar(sequence_of(None), tree) is tree


class Slow(Successor):
    """Gives up behind token 8, as a grammar that takes too long does."""

    def allowed(self) -> np.ndarray:
        if self.last == 8:
            raise GrammarError("too slow")
        return super().allowed()

    def fork(self) -> "Slow":
        return Slow(self.last)


def test_a_draft_is_cut_where_its_masks_take_too_long() -> None:
    tree, sequence = DraftTree.from_paths(7, [[7, 7, 8], [7, 8, 8], [8]]), sequence_of(Slow(7))
    assert cut_to_limits(sequence, tree).tokens == (7, 7, 7)
    assert cut_to_grammar(sequence, tree).tokens == (7, 7, 7, 8, 8, 8)  # the row behind an 8 is not asked for here
    masks = path_masks(sequence)
    assert masks is not None
    assert masks.ahead([8]) is None
    with pytest.raises(GrammarError):
        masks.behind([8])
    assert cut_to_limits(sequence_of(Successor(7)), tree) is tree
    assert cut_to_limits(sequence_of(None), tree) is tree
    drawn = DraftTree.of([7, 7, 8], [-1, 0, 1], [1.0, 0.5, 0.5], "x", {0: np.ones(VOCAB), 1: np.ones(VOCAB)})
    assert cut_to_limits(sequence_of(Slow(7)), drawn).num_nodes == 0
    ending = sequence_of(Slow(8))  # its own row is for the step to mask, which fails
    assert cut_to_limits(ending, DraftTree.chain(8, [8], [0.5], "x")).num_nodes == 0
    with pytest.raises(GrammarError):
        mask_rows(ending, DraftTree.root_only(8))


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
