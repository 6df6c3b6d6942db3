"""The walk: which drafted rows are kept, and which tokens come out."""

import itertools
import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from forerun.batch import NOT_DRAWN, NOT_FINITE, Batch, Drawn, DrawRequest
from forerun.speculation.tree import DraftTree
from forerun.speculation.verify import verify

TREE = DraftTree((10, 11, 12, 13, 12), (-1, 0, 1, 0, 3), (1.0,) * 5)


def verify_trees(trees, tokens):
    """Outcomes of trees whose output rows follow one another."""
    firsts = np.cumsum([0, *(len(tree) for tree in trees)])
    draws = tuple(DrawRequest(int(first), tree, 5, (0, 0)) for first, tree in zip(firsts, trees, strict=False))
    empty = np.empty(0, np.int32)
    rows = np.arange(firsts[-1], dtype=np.int32)
    batch = Batch(empty, empty, empty, empty, empty, empty, empty, np.empty(0, np.uint64), rows, draws)
    drawn = Drawn(np.array(tokens, np.int32), np.full(len(tokens), np.nan), ((),) * len(tokens), (b"",) * len(tokens))
    return verify(batch, drawn)


def test_plain_decoding_is_a_tree_without_nodes():
    (outcome,) = verify_trees([DraftTree.root_only(10)], [7])
    assert (outcome.accepted, outcome.tokens, outcome.rows, outcome.is_finite) == ((), (7,), (0,), True)


@pytest.mark.parametrize(
    ("drawn", "accepted", "tokens", "rows"),
    [
        ([9, -1, -1, -1, -1], (), (9,), (0,)),
        ([11, 5, -1, -1, -1], (1,), (11, 5), (0, 1)),
        ([11, 12, 6, -1, -1], (1, 2), (11, 12, 6), (0, 1, 2)),
        ([13, -1, -1, 12, 8], (3, 4), (13, 12, 8), (0, 3, 4)),
        ([13, -1, -1, 11, -1], (3,), (13, 11), (0, 3)),  # 11 is a child of the root, not of row 3
        ([12, -1, -1, -1, -1], (), (12,), (0,)),  # 12 is a grandchild only
    ],
)
def test_the_walk_follows_the_drawn_tokens(drawn, accepted, tokens, rows):
    (outcome,) = verify_trees([TREE], drawn)
    assert (outcome.accepted, outcome.tokens, outcome.rows) == (accepted, tokens, rows)
    assert outcome.tree is TREE
    assert outcome.is_finite


def test_each_sequence_reads_its_own_rows():
    first, second = verify_trees([DraftTree.chain(1, [2]), DraftTree.chain(1, [2])], [2, 3, 9, -1])
    assert (first.tokens, first.rows) == ((2, 3), (0, 1))
    assert (second.tokens, second.rows) == ((9,), (2,))


@pytest.mark.parametrize(
    ("drawn", "accepted", "tokens"),
    [([NOT_FINITE, -1, -1, -1, -1], (), ()), ([11, NOT_FINITE, -1, -1, -1], (1,), (11,))],
)
def test_what_came_before_a_row_with_nan_stands(drawn, accepted, tokens):
    (outcome,) = verify_trees([TREE], drawn)
    assert (outcome.accepted, outcome.tokens, outcome.is_finite) == (accepted, tokens, False)


def test_a_backend_that_did_not_draw_a_walked_row_is_an_error():
    with pytest.raises(ValueError, match="row 1 lies on the walked path"):
        verify_trees([TREE], [11, NOT_DRAWN, -1, -1, -1])


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree.root_only(0),
        DraftTree((0, 1, 2), (-1, 0, 1), (1.0,) * 3),
        DraftTree((0, 1, 2, 0), (-1, 0, 0, 1), (1.0,) * 4),
        DraftTree((0, 2, 2, 1), (-1, 0, 1, 1), (1.0,) * 4),
    ],
)
def test_every_draw_of_every_row_adds_up_to_the_targets_law(tree):
    """Exactly, in fractions: whatever was drafted, what is emitted begins as the target alone would begin."""

    def law(path: tuple[int, ...]) -> list[Fraction]:
        weights = [1 + (3 * sum(path) + 5 * len(path) + 2 * token) % 7 for token in range(3)]
        return [Fraction(weight, sum(weights)) for weight in weights]

    paths = [tuple(tree.tokens[node] for node in tree.path(row)) for row in range(len(tree))]
    found: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for draws in itertools.product(range(3), repeat=len(tree)):
        chance = math.prod((law(path)[token] for path, token in zip(paths, draws, strict=True)), start=Fraction(1))
        (outcome,) = verify_trees([tree], draws)
        found[outcome.tokens] += chance
    assert sum(found.values()) == 1
    for tokens, chance in found.items():
        expected = math.prod((law(tokens[:i])[token] for i, token in enumerate(tokens)), start=Fraction(1))
        assert chance == expected
