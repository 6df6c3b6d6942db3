"""DraftTree: construction, refusals, everything derived from (tokens, parents)."""

import numpy as np
import pytest

from forerun.speculation.tree import MAX_NODES, DraftTree

# root 10 ── 1: 11 ── 2: 12
#         └─ 3: 13 ── 4: 12 ── 5: 14
TREE = DraftTree.of((10, 11, 12, 13, 12, 14), (-1, 0, 1, 0, 3, 4), (1.0, 0.9, 0.5, 0.8, 0.9, 0.1), "test")


def test_derived_facts():
    assert len(TREE) == 6
    assert TREE.num_nodes == 5
    assert TREE.depths == (0, 1, 2, 1, 2, 3)
    assert TREE.ancestors == (0b1, 0b11, 0b111, 0b1001, 0b11001, 0b111001)
    assert not TREE.is_chain
    assert [TREE.path(row) for row in range(6)] == [(), (1,), (1, 2), (3,), (3, 4), (3, 4, 5)]
    assert TREE.child(0, 11) == 1
    assert TREE.child(3, 12) == 4
    assert TREE.child(0, 12) is None
    assert TREE.child(5, 10) is None


def test_chain_and_root_only():
    chain = DraftTree.chain(1, [2, 3, 4], source="s")
    assert chain == DraftTree.of((1, 2, 3, 4), (-1, 0, 1, 2), (1.0,) * 4, "s")
    assert chain.is_chain
    assert DraftTree.chain(1, []) == DraftTree.root_only(1)
    assert DraftTree.root_only(1).is_chain
    assert DraftTree.chain(1, [2, 3], score=[0.5, 0.25]).score == (1.0, 0.5, 0.25)


def test_the_largest_tree_still_fits_64_bits():
    chain = DraftTree.chain(0, range(1, MAX_NODES + 1))
    assert chain.ancestors[-1] == 2**64 - 1
    with pytest.raises(ValueError, match="1 to 64 rows, got 65"):
        DraftTree.chain(0, range(MAX_NODES + 1))


@pytest.mark.parametrize(
    ("tokens", "parents", "score", "message"),
    [
        ((), (), (), "1 to 64 rows"),
        ((1,), (0,), (1.0,), "root's parent is -1"),
        ((1, 2), (-1,), (1.0, 1.0), "one entry a row"),
        ((1, 2), (-1, 0), (1.0,), "one entry a row"),
        ((1, 2), (-1, 1), (1.0, 1.0), "before the node"),
        ((1, 2, 3), (-1, 2, 0), (1.0,) * 3, "before the node"),
        ((1, 2), (-1, -1), (1.0, 1.0), "before the node"),
        ((1, 2, 2), (-1, 0, 0), (1.0,) * 3, "same token"),
    ],
)
def test_what_is_no_tree_is_refused(tokens, parents, score, message):
    with pytest.raises(ValueError, match=message):
        DraftTree(tokens, parents, score)


def test_equal_tokens_under_different_parents_are_fine():
    assert DraftTree((1, 2, 2), (-1, 0, 1), (1.0,) * 3).is_chain


def test_from_paths_joins_common_beginnings():
    tree = DraftTree.from_paths(10, [[1, 2, 3], [1, 2, 4], [5], [1], []], source="paths")
    assert tree.tokens == (10, 1, 2, 3, 4, 5)
    assert tree.parents == (-1, 0, 1, 2, 2, 0)
    assert DraftTree.from_paths(10, []) == DraftTree.root_only(10)


class TestPrune:
    def test_keeps_the_most_likely_nodes_and_their_ancestors(self):
        # survival: 1: .9, 2: .45, 3: .8, 4: .72, 5: .072
        assert TREE.prune(2).tokens == (10, 11, 13)
        assert TREE.prune(3).tokens == (10, 11, 13, 12)
        assert TREE.prune(3).parents == (-1, 0, 0, 2)
        assert TREE.prune(3).score == (1.0, 0.9, 0.8, 0.9)
        assert TREE.prune(4).tokens == (10, 11, 12, 13, 12)
        assert TREE.prune(3).source == "test"

    def test_depth_limit(self):
        assert TREE.prune(5, max_depth=1).tokens == (10, 11, 13)
        assert TREE.prune(5, max_depth=2).num_nodes == 4
        assert TREE.prune(5, max_depth=0) == DraftTree.root_only(10)

    def test_nothing_to_do(self):
        assert TREE.prune(5) is TREE
        assert TREE.prune(99, 99) is TREE

    @pytest.mark.parametrize("limit", [0, -1])
    def test_to_the_root(self, limit):
        assert TREE.prune(limit).num_nodes == 0

    def test_a_chain_stays_a_chain(self):
        assert DraftTree.chain(0, range(9)).prune(4) == DraftTree.chain(0, range(4))

    @pytest.mark.parametrize("score", [-1.0, -5.0, 7.0, float("nan"), float("inf")])
    def test_nonsense_scores_leave_a_tree(self, score):
        tree = DraftTree((0, 1, 2, 3), (-1, 0, 1, 2), (1.0, score, score, score))
        assert tree.prune(2).tokens == (0, 1, 2)


class TestMerge:
    def test_union_with_the_larger_score(self):
        other = DraftTree.of((10, 13, 12, 9), (-1, 0, 1, 2), (1.0, 0.3, 0.95, 0.5), "other")
        merged = TREE.merge(other)
        assert merged.tokens == (*TREE.tokens, 9)
        assert merged.parents == (*TREE.parents, 4)
        assert merged.score == (1.0, 0.9, 0.5, 0.8, 0.95, 0.1, 0.5)
        assert merged.source == "test+other"

    def test_with_itself(self):
        assert TREE.merge(TREE) == TREE

    def test_root_only_adds_nothing_and_no_name(self):
        assert TREE.merge(DraftTree.root_only(10)) == TREE

    def test_other_root(self):
        with pytest.raises(ValueError, match="same root"):
            TREE.merge(DraftTree.root_only(11))

    def test_too_large(self):
        one, other = DraftTree.chain(0, range(1, 41)), DraftTree.chain(0, range(2, 42))
        assert one.merge(other).num_nodes == MAX_NODES
        assert one.merge(other).tokens[:41] == one.tokens

    def test_each_node_keeps_the_name_that_goes_with_its_score(self):
        other = DraftTree.of((10, 13, 11), (-1, 0, 0), (1.0, 0.95, 0.1), "other")
        assert TREE.merge(other).sources == ("", "test", "test", "other", "test", "test")

    def test_drawn_trees_are_not_merged(self):
        drawn = DraftTree((10, 11), (-1, 0), (1.0, 0.5), (), {0: np.ones(3) / 3})
        with pytest.raises(ValueError, match="random"):
            TREE.merge(drawn)


class TestDrawn:
    """A tree whose nodes were drawn at random."""

    tree = DraftTree((10, 11, 12, 13), (-1, 0, 0, 2), (1.0, 0.1, 0.9, 0.9), (), {0: np.ones(3) / 3, 2: np.ones(3) / 3})

    def test_is_cut_in_the_order_of_its_rows(self):
        assert self.tree.prune(1).tokens == (10, 11)
        assert self.tree.prune(2).tokens == (10, 11, 12)

    def test_keeps_the_distributions_of_its_rows(self):
        assert set(self.tree.prune(2).draft_probs) == {0, 2}
        assert set(self.tree.keep([2, 3]).draft_probs) == {0, 1}
