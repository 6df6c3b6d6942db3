"""The growing tree: it holds the likeliest nodes, computes nothing in vain, and numbers what it computes as it lies."""

import itertools
import random

import numpy as np
import pytest

from forerun.speculation.drafter import Worth
from forerun.speculation.tree_search import TreeSearch


def scores_of(path: list[int], width: int) -> list[tuple[int, float]]:
    """A fixed pseudo-random model: (token, probability) of a path's children, best first."""
    rng = random.Random(repr(path))
    weights = sorted((rng.random() ** 2 for _ in range(width + 1)), reverse=True)
    return [(10 * len(path) + i, weight / sum(weights)) for i, weight in enumerate(weights[:width])]


def grow(max_nodes: int, max_depth: int, width: int, min_survival: float = 0.0) -> TreeSearch:
    search = TreeSearch(99, max_nodes, max_depth, width, min_survival)
    while search.frontier:
        for node in search.frontier:
            children = scores_of(search.path(node), width)
            search.add(node, [token for token, _ in children], [score for _, score in children])
        search.grow()
    return search


def everything(max_depth: int, width: int) -> list[float]:
    """Values of all paths of the model, likeliest first."""
    values, level = [], [([], 1.0)]
    for _ in range(max_depth):
        level = [([*path, token], value * score) for path, value in level for token, score in scores_of(path, width)]
        values += [value for _, value in level]
    return sorted(values, reverse=True)


@pytest.mark.parametrize("max_nodes", [1, 3, 6, 12])
@pytest.mark.parametrize("max_depth", [1, 2, 4])
def test_a_wide_frontier_finds_the_likeliest_nodes(max_nodes: int, max_depth: int) -> None:
    width = 16  # as wide as a level can matter: then the search is exhaustive
    tree = grow(max_nodes, max_depth, width).tree("d")
    assert tree is not None
    assert sorted(tree.survival[1:], reverse=True) == pytest.approx(everything(max_depth, width)[:max_nodes])


@pytest.mark.parametrize(
    ("max_nodes", "max_depth", "width"), list(itertools.product([1, 4, 15, 63], [1, 3, 8], [1, 2, 4]))
)
def test_limits_hold(max_nodes: int, max_depth: int, width: int) -> None:
    search = grow(max_nodes, max_depth, width)
    tree = search.tree("d")
    assert tree is not None
    assert tree.num_nodes <= max_nodes
    assert max(tree.depths) <= max_depth
    assert search.num_slots <= max_nodes
    assert tree.source == "d"


def test_a_chain_computes_all_but_its_last_node() -> None:
    search = grow(5, 5, 1)
    tree = search.tree("d")
    assert tree is not None
    assert tree.is_chain
    assert (tree.num_nodes, search.num_slots) == (5, 4)
    assert search.leading_chain() == list(tree.tokens[1:5])
    assert [token for token, _ in search.best_path()] == list(tree.tokens[1:])


@pytest.mark.parametrize(("max_nodes", "max_depth", "width"), list(itertools.product([4, 9, 20], [2, 5], [2, 3])))
def test_rows_are_slots_up_to_the_first_computed_node_that_was_dropped(max_nodes, max_depth, width) -> None:
    search = grow(max_nodes, max_depth, width)
    tree = search.tree("d")
    assert tree is not None
    paths = [[tree.tokens[node] for node in tree.path(row)] for row in range(len(tree))]
    in_slots = [search.path_in_slot(number) for number in range(search.num_slots + 1)]
    kept = [path for path in in_slots if path in paths]
    assert paths[: len(kept)] == kept  # computed nodes come first, in their order


def test_masks_are_those_of_the_slots() -> None:
    search = TreeSearch(99, 10, 4, 2)
    search.add(0, [1, 2], [0.5, 0.45])
    first, second = search.grow()
    assert (search.ancestors(first), search.ancestors(second)) == (0, 0b101)  # the first lies at its position
    search.add(first, [3], [0.6])
    search.add(second, [4], [0.9])
    nodes = search.grow()
    assert [search.token(node) for node in nodes] == [3, 4]
    assert [search.ancestors(node) for node in nodes] == [0b1011, 0b10101]
    assert [search.number(node) for node in nodes] == [3, 4]
    assert search.leading_chain() == [1]


def test_unlikely_paths_are_left() -> None:
    search = grow(30, 6, 2, min_survival=0.3)
    tree = search.tree("d")
    assert tree is not None
    assert min(tree.survival) >= 0.3
    assert search.num_slots <= tree.num_nodes
    assert grow(30, 6, 1, min_survival=0.99).tree("d") is None


class TestWorth:
    """Paths that are not worth a pass of the drafter are proposed, and not continued."""

    WORTH = Worth(lambda depth, score: score / depth, 0.4)  # deeper nodes are trusted less than they say

    def test_a_chain_ends_at_its_first_doubtful_node(self) -> None:
        search = TreeSearch(99, 10, 8, worth=self.WORTH)
        search.add(0, [1], [0.9])
        assert search.grow() == [1]
        search.add(1, [2], [0.8])  # 0.9 * 0.8 / 2 < 0.4
        assert search.grow() == []
        tree = search.tree("d")
        assert tree is not None
        assert tree.tokens == (99, 1, 2)

    def test_what_was_drawn_does_not_decide_how_far_it_goes(self) -> None:
        search = TreeSearch(99, 10, 8, worth=self.WORTH)
        search.add(0, [1], [0.1], np.array([0.9, 0.1]))
        assert search.grow() == [1]
