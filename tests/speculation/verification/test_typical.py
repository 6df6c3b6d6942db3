"""Typical acceptance: what it keeps, and that it needs no luck."""

import math

import numpy as np
import pytest

from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.typical import DELTA, EPSILON, accept_typical, threshold


class NoChance:
    """Refuses to decide."""

    def accept(self, part, whole):
        raise AssertionError("typical acceptance makes no random decision")

    pick = accept


def judge(tree, rows):
    return accept_typical(tree, lambda row: rows[row], NoChance())


def test_threshold():
    assert threshold(np.array([1.0, 0.0])) == EPSILON
    flat = np.full(1000, 1e-3)
    assert threshold(flat) == pytest.approx(DELTA * math.exp(-math.log(1000)))


def test_likely_tokens_are_kept_and_the_next_one_is_greedy():
    p = np.array([0.1, 0.6, 0.3])
    assert judge(DraftTree.chain(9, [0, 2]), [p, p, p]) == ((1, 2), 1)


def test_an_unlikely_token_ends_the_path():
    p = np.array([0.05, 0.65, 0.3])
    assert judge(DraftTree.chain(9, [2, 0, 1]), [p, p, p, p]) == ((1,), 1)


def test_an_uncertain_target_accepts_what_a_certain_one_does_not():
    flat = np.array([0.02, *[0.98 / 49] * 49])
    peaked = np.array([0.02, 0.98, *[0.0] * 48])
    tree = DraftTree.chain(9, [0])
    assert judge(tree, [flat, flat]).accepted == (1,)
    assert judge(tree, [peaked, peaked]) == ((), 1)


def test_the_deepest_path_wins_then_the_likeliest():
    p = np.array([0.2, 0.5, 0.3])
    assert judge(DraftTree.from_paths(9, [[1], [0, 0]]), [p] * 4).accepted == (2, 3)
    assert judge(DraftTree.from_paths(9, [[0], [2], [1]]), [p] * 4).accepted == (3,)


def test_equal_paths_go_to_the_lowest_row():
    p = np.array([0.4, 0.4, 0.2])
    assert judge(DraftTree.from_paths(9, [[1], [0]]), [p] * 3).accepted == (1,)


def test_a_row_that_is_not_finite():
    p = np.array([0.5, 0.5])
    tree = DraftTree.chain(9, [1, 1])
    assert judge(tree, [None, p, p]) == ((), None)
    assert judge(tree, [p, None, p]) == ((1,), None)
