"""Calibration: estimates become the true probabilities, by depth and score, and only tested nodes count."""

import random

import numpy as np
import pytest

from forerun.speculation.allocation.calibration import Calibration, RequestFactor
from forerun.speculation.tree import DraftTree
from tests.speculation.simulated import RIGHT, WRONG, outcome_of


def chain(chance, acceptances, scores=None):
    tokens = [RIGHT if chance.random() < a else WRONG for a in acceptances]
    return DraftTree.chain(0, tokens, scores or [1.0] * len(tokens), "d")


def observe(calibration, tree, factor=None):
    calibration.observe(tree, outcome_of(tree).tokens, factor or RequestFactor())


def test_every_depth_converges_to_its_own_acceptance():
    calibration, chance, truth = Calibration(), random.Random(0), (0.9, 0.7, 0.4, 0.6)
    seen = np.zeros(4)
    for step in range(6000):
        observe(calibration, chain(chance, truth))
        if step >= 2000:  # an estimate remembers about a hundred nodes, so that it wavers: its mean must be right
            seen += [calibration.usual(depth, 1.0) for depth in (1, 2, 3, 4)]
    assert seen / 4000 == pytest.approx(truth, abs=0.05)


def test_counting_what_was_never_tested_would_be_wrong():
    """The negative control of censoring: nodes below a rejected one counted as failures give the survival instead."""
    chance, truth = random.Random(0), (0.5, 0.9, 0.9)
    right = tested = naive = 0
    calibration = Calibration()
    for _ in range(3000):
        tree = chain(chance, truth)
        observe(calibration, tree)
        accepted = len(outcome_of(tree).accepted)
        naive += 1
        right += accepted >= 2
        tested += accepted >= 1
    assert right / naive < 0.6, "the naive count is no better than wrong"
    assert right / tested == pytest.approx(0.9, abs=0.03)
    assert calibration.usual(2, 1.0) == pytest.approx(0.9, abs=0.08)


def test_scores_become_probabilities():
    """A drafter that is always 0.3 too sure of itself."""
    calibration, chance = Calibration(), random.Random(1)
    means = dict.fromkeys((0.9, 0.7, 0.5), 0.0)
    for step in range(6000):
        score = chance.choice(list(means))
        observe(calibration, chain(chance, [score - 0.3], [score]))
        if step >= 1000:
            means = {score: mean + calibration.usual(1, score) / 5000 for score, mean in means.items()}
    assert means == pytest.approx({0.9: 0.6, 0.7: 0.4, 0.5: 0.2}, abs=0.05)


def test_before_anything_was_counted_the_score_is_believed():
    calibration = Calibration()
    assert calibration.usual(1, 0.6) == pytest.approx(0.6)
    assert calibration.usual(1, 1.0) < 0.5, "a score of 1 is what drafters give that have none"


def test_a_deeper_node_follows_the_one_above_it_until_it_was_tested():
    calibration, chance = Calibration(), random.Random(2)
    for _ in range(300):
        observe(calibration, chain(chance, [0.95]))
    assert calibration.usual(5, 1.0) == pytest.approx(calibration.usual(1, 1.0), abs=0.01)


def test_all_siblings_are_tested_and_one_of_them_at_most_is_right():
    calibration, chance = Calibration(), random.Random(3)
    for _ in range(2000):  # the first of two is right half of the time, the second in a fifth, else neither
        tokens = chance.choices([(RIGHT, 5), (5, RIGHT), (5, 6)], (0.5, 0.2, 0.3))[0]
        observe(calibration, DraftTree.of((0, *tokens), (-1, 0, 0), (1.0, 0.9, 0.3), "d"))
    assert calibration.usual(1, 0.9) == pytest.approx(0.5, abs=0.15)
    assert calibration.usual(1, 0.3) == pytest.approx(0.2, abs=0.15)
    assert calibration.at_depth(1) == pytest.approx(0.7, abs=0.15)


def test_what_was_not_verified_is_judged_by_the_tokens_that_came():
    calibration = Calibration()
    for _ in range(100):  # plain decoding: one token comes, the proposal was right about it
        calibration.observe(DraftTree.chain(0, [RIGHT, RIGHT], [1.0, 1.0], "d"), (RIGHT,), RequestFactor())
    assert calibration.usual(1, 1.0) > 0.9
    assert calibration.num_tested == 100, "nothing is known of the second node"


def test_of_a_drawn_tree_only_what_was_verified_counts():
    calibration = Calibration()
    tree = DraftTree((0, RIGHT, RIGHT), (-1, 0, 1), (1.0, 1.0, 1.0), ("", "d", "d"), {0: np.ones(4) / 4})
    calibration.observe(tree, (RIGHT, RIGHT), RequestFactor(), num_rows=1)
    assert calibration.num_tested == 1


def test_a_request_has_its_own_luck():
    """Chat and copying share a drafter: each request is told apart within some twenty nodes."""
    calibration, chance = Calibration(), random.Random(4)
    copying, chatting = RequestFactor(), RequestFactor()
    for _ in range(200):
        observe(calibration, chain(chance, [0.95]), copying)
        observe(calibration, chain(chance, [0.05]), chatting)
    usual = calibration.usual(1, 1.0)
    assert usual == pytest.approx(0.5, abs=0.15)
    assert copying.apply(usual) > 0.8
    assert chatting.apply(usual) < 0.2
    assert RequestFactor().apply(usual) == pytest.approx(usual), "a new request begins with the average"


def test_tastes_change():
    calibration, chance = Calibration(), random.Random(5)
    for acceptance in (0.9, 0.1):
        for _ in range(500):
            observe(calibration, chain(chance, [acceptance]))
        assert calibration.usual(1, 1.0) == pytest.approx(acceptance, abs=0.1)
