"""Block verification beside rejection: the same law (test_rejection.py enumerates it), and never shorter drafts."""

from fractions import Fraction

import pytest

from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.block import verify_block
from forerun.speculation.verification.rejection import reject
from tests.sampling_drafter import chain_shape
from tests.speculation.enumeration import ROOT, RandomModel, dist, mean_accepted, verdicts


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_accepts_at_least_as_much_as_rejection(depth):
    gains = []
    for seed in range(8):
        p, q = RandomModel(seed, 3), RandomModel(70 + seed, 3)
        both = [mean_accepted(rule, chain_shape(depth), p, q) for rule in (verify_block, reject)]
        gains.append(both[0] - both[1])
    assert min(gains) >= 0
    assert (max(gains) > 0) == (depth > 1), "judging a single token leaves nothing to gain"


def test_the_example_of_the_paper():
    """p = (1/3, 2/3) everywhere, q = (2/3, 1/3), two tokens: 10/9 accepted by rejection, 11/9 by blocks."""
    p, q = dist(1, 2), dist(2, 1)
    accepted = [mean_accepted(rule, chain_shape(2), lambda _: p, lambda _: q) for rule in (reject, verify_block)]
    assert accepted == [Fraction(10, 9), Fraction(11, 9)]


def test_a_later_prefix_can_be_kept_when_an_earlier_one_was_not():
    q = dist(2, 1)
    tree = DraftTree((ROOT, 0, 1), (-1, 0, 1), (1.0,) * 3, draft_probs={0: q, 1: q})
    refused_first = []

    class Coins:
        def accept(self, part, whole):
            refused_first.append((part, whole))
            return len(refused_first) == 2

        def pick(self, weights):
            return 0

    assert verify_block(tree, lambda row: dist(1, 2), Coins()).accepted == (1, 2)
    assert len(refused_first) == 2


def test_certain_drafts_are_verified_token_by_token():
    p = RandomModel(3, 3)
    tree = DraftTree.chain(ROOT, [1, 2])
    laws = []
    for rule in (reject, verify_block):
        law: dict = {}
        for probability, verdict in verdicts(rule, tree, p):
            law[verdict] = law.get(verdict, 0) + probability
        laws.append(law)
    assert laws[0] == laws[1]


def test_a_fork_below_a_stem_goes_through_rejection():
    probs = {0: dist(1, 1, 1), 1: dist(1, 4, 1)}
    tree = DraftTree((ROOT, 0, 1, 2), (-1, 0, 1, 1), (1.0,) * 4, draft_probs=probs)

    def p(context):
        return dist(3, 1, 2) if context else dist(1, 1, 2)

    paths = {verdict.accepted for _, verdict in verdicts(verify_block, tree, p)}
    assert paths == {(), (1,), (1, 2), (1, 3)}
