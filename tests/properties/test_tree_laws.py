"""Laws of DraftTree for any tree."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.speculation.tree import DraftTree

few = settings(max_examples=80, deadline=None)


@st.composite
def trees(draw, root=0, max_nodes=20):
    """Any tree: each node hangs below any earlier row, with few tokens, so that trees overlap."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    tokens, parents, score, taken = [root], [-1], [1.0], set()
    for _ in range(draw(st.integers(0, max_nodes))):
        place = (rng.randrange(len(tokens)), rng.randrange(6))
        if place not in taken:
            taken.add(place)
            parents.append(place[0])
            tokens.append(place[1])
            score.append(rng.choice((0.0, 0.25, 0.5, 0.5, 0.9, 1.0)))
    return DraftTree(tuple(tokens), tuple(parents), tuple(score))


def paths(tree):
    """All token paths from the root, the identity of a tree apart from the order of its rows."""
    return {tuple(tree.tokens[r] for r in tree.path(row)) for row in range(len(tree))}


@few
@given(trees())
def test_derived_data_agree(tree):
    for row in range(len(tree)):
        path = tree.path(row)
        assert tree.depths[row] == len(path)
        assert tree.ancestors[row] == sum(1 << r for r in {0, row, *path})
        assert tree.ancestors[row].bit_length() == row + 1, "a row's highest ancestor bit is its own"
        if row:
            assert tree.child(tree.parents[row], tree.tokens[row]) == row
            assert row >= tree.depths[row], "moves to a smaller slot only"
    assert len(paths(tree)) == len(tree)
    assert tree.is_chain == (max(tree.depths) == tree.num_nodes and tree.parents == tuple(range(-1, tree.num_nodes)))


@few
@given(trees())
def test_from_paths_rebuilds_any_tree(tree):
    rebuilt = DraftTree.from_paths(tree.tokens[0], sorted(paths(tree)))
    assert paths(rebuilt) == paths(tree)


@few
@given(trees(), st.integers(0, 25), st.integers(0, 8))
def test_prune_keeps_the_best_nodes_with_their_ancestors(tree, max_nodes, max_depth):
    pruned = tree.prune(max_nodes, max_depth)
    assert pruned.num_nodes <= max_nodes
    assert max(pruned.depths) <= max_depth
    assert paths(pruned) <= paths(tree)

    def survival(row):
        product = 1.0
        for r in tree.path(row):
            product *= tree.score[r]
        return product

    value = {tuple(tree.tokens[r] for r in tree.path(row)): survival(row) for row in range(len(tree))}
    left = [value[path] for path in paths(tree) - paths(pruned) if len(path) <= max_depth]
    kept = [value[path] for path in paths(pruned)]
    assert not left or min(kept) >= max(left)
    assert pruned.prune(max_nodes, max_depth) == pruned
    if left:
        assert pruned.num_nodes == max_nodes


@few
@given(trees(), trees(), trees())
def test_merge_is_a_union(one, other, third):
    merged = one.merge(other)
    assert paths(merged) == paths(one) | paths(other)
    assert paths(merged) == paths(other.merge(one))
    assert one.merge(one) == one
    if len(paths(merged) | paths(third)) <= 64:
        assert paths(merged.merge(third)) == paths(one.merge(other.merge(third)))
    score = {tuple(merged.tokens[r] for r in merged.path(row)): merged.score[row] for row in range(len(merged))}
    for tree in (one, other):
        for row in range(len(tree)):
            assert score[tuple(tree.tokens[r] for r in tree.path(row))] >= tree.score[row]


@few
@given(trees(), st.randoms(use_true_random=False))
def test_moves_of_an_accepted_path_in_ascending_depth_lose_nothing(tree, rng):
    """What scheduler.commit relies on: copying row r to slot depth, one after the other, never overwrites a row that
    is still to be copied."""
    slots = list(range(len(tree)))
    path = tree.path(rng.randrange(len(tree)))
    for depth, row in enumerate(path, start=1):
        slots[depth] = slots[row]
    assert slots[: len(path) + 1] == [0, *path]
