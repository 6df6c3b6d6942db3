"""Verification by rejection, exactly: outputs have the target's law, in fractions, whatever was drafted."""

from fractions import Fraction

import numpy as np
import pytest

from forerun.speculation.tree import DraftTree
from forerun.speculation.verification import rejection
from forerun.speculation.verification.block import verify_block
from forerun.speculation.verification.rejection import reject
from forerun.speculation.verification.rule import Verdict, excess
from tests.sampling_drafter import chain_shape
from tests.speculation.enumeration import (
    ROOT,
    RandomModel,
    Script,
    dist,
    drafts,
    mean_accepted,
    output_law,
    said,
    target_law,
    verdicts,
)

CHAINS = [chain_shape(depth) for depth in (1, 2, 3)]
PAIR, TRIPLE = (-1, 0, 0), (-1, 0, 0, 0)
TREES = [PAIR, TRIPLE, (-1, 0, 0, 1, 1), (-1, 0, 1, 1), (-1, 0, 0, 2, 3), (-1, 0, 1, 0, 2, 2)]
RULES = {"rejection": reject, "block": verify_block}
MODELS = {  # name: options of p, options of q
    "dense": ({}, {}),
    "zeros in p": ({"zeros": True}, {}),
    "zeros in q": ({}, {"zeros": True}),
    "zeros in both": ({"zeros": True}, {"zeros": True}),
    "greedy target": ({"certain": True}, {}),
    "greedy draft": ({}, {"certain": True}),
    "both greedy": ({"certain": True}, {"certain": True}),
}


def depth_of(shape):
    return max(DraftTree(tuple(range(len(shape))), shape, (1.0,) * len(shape)).depths)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("models", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize("vocab", [2, 3])
@pytest.mark.parametrize("shape", CHAINS + TREES, ids=str)
def test_the_law_is_the_targets(shape, vocab, models, rule):
    length = depth_of(shape) + 1
    for seed in range(2 if len(shape) > 4 and vocab == 3 else 6):
        p = RandomModel(seed, vocab, **models[0])
        q = RandomModel(100 + seed, vocab, **models[1])
        assert output_law(rule, shape, p, q, length) == target_law(p, length)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("chosen", [{0: (1,)}, {1: (2,)}, {0: (2,), 1: (0,), 2: (1,)}], ids=str)
def test_chosen_and_drawn_nodes_mix_in_a_chain(chosen, rule):
    p, q = RandomModel(1, 3), RandomModel(2, 3)
    assert output_law(rule, chain_shape(3), p, q, 4, chosen=chosen) == target_law(p, 4)


@pytest.mark.parametrize("chosen", [{0: (1, 2)}, {1: (2, 0)}, {0: (2, 0), 1: (0, 1)}], ids=str)
def test_chosen_and_drawn_nodes_mix_in_a_tree(chosen):
    p, q = RandomModel(3, 3, zeros=True), RandomModel(4, 3)
    assert output_law(reject, (-1, 0, 0, 1, 1), p, q, 3, chosen=chosen) == target_law(p, 3)


@pytest.mark.parametrize("vocab", [2, 3])
def test_one_node_is_accepted_as_often_as_the_distributions_overlap(vocab):
    for seed in range(10):
        p, q = RandomModel(seed, vocab, zeros=True), RandomModel(50 + seed, vocab)
        assert mean_accepted(reject, chain_shape(1), p, q) == sum(np.minimum(p(()), q(())))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("shape", CHAINS, ids=str)
def test_a_perfect_draft_is_accepted_whole(shape, rule):
    p = RandomModel(7, 3, zeros=True)
    assert mean_accepted(rule, shape, p, p) == len(shape) - 1


def test_a_node_that_the_target_excludes_is_never_accepted():
    p, q = dist(0, 1, 2), dist(3, 1, 1)
    tree = DraftTree.chain(ROOT, [0])
    tree = DraftTree(tree.tokens, tree.parents, tree.score, draft_probs={0: q})
    for rule in RULES.values():
        assert {verdict.accepted for _, verdict in verdicts(rule, tree, lambda context: p)} == {()}


def test_two_children_beat_one_and_three_of_three_always_hit():
    p, q = RandomModel(11, 3), RandomModel(12, 3)
    rates = [mean_accepted(reject, shape, p, q) for shape in (chain_shape(1), PAIR, TRIPLE)]
    assert rates[0] < rates[1] <= rates[2]
    assert rates[2] == 1


def test_only_rows_on_the_walked_path_are_asked_for():
    tree = DraftTree((ROOT, 0, 1, 0, 1), (-1, 0, 0, 1, 2), (1.0,) * 5, draft_probs={0: dist(1, 1)})
    for given in ((), (1,)):
        asked = []

        def probs(row, asked=asked):
            asked.append(row)
            return dist(1, 3) if row == 0 else dist(1, 1)

        verdict = reject(tree, probs, Script(given))
        assert asked == [0, *verdict.accepted]


class TestRowsThatAreNotFinite:
    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    @pytest.mark.parametrize("bad", [0, 1, 2])
    def test_the_tokens_before_it_stand(self, rule, bad):
        p = dist(1, 1)
        tree = DraftTree((ROOT, 1, 1), (-1, 0, 1), (1.0,) * 3, draft_probs={0: p, 1: p})
        verdict = rule(tree, lambda row: None if row == bad else p, Script(()))
        assert verdict.accepted == tuple(range(1, bad + 1))
        assert verdict.last is None

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    def test_one_that_is_not_reached_does_not_matter(self, rule):
        tree = DraftTree((ROOT, 1, 1), (-1, 0, 1), (1.0,) * 3, draft_probs={0: dist(1, 1), 1: dist(1, 1)})
        verdict = rule(tree, lambda row: None if row else dist(1, 0), Script(()))
        assert (verdict.accepted, verdict.last) == ((), 0)


class TestRounding:
    """float64 cannot be trusted to sum to one; what comes out must be a token that the target allows."""

    def test_a_residual_without_mass_falls_back_to_the_distribution_itself(self):
        p = np.array([0.1, 0.2, 0.7])
        assert (excess(p, p) == p).all()
        assert (excess(p, np.nextafter(p, 1)) == p).all()

    def test_a_target_below_the_draft_everywhere(self):
        p = np.array([0.0, 0.5 - 2**-54, 0.5 - 2**-54])
        q = np.array([0.0, 0.5, 0.5])
        tree = DraftTree((ROOT, 1), (-1, 0), (1.0,) * 2, draft_probs={0: q})

        class Refuse:
            def accept(self, part, whole):
                return False

            def pick(self, weights):
                assert weights.sum() > 0
                assert weights[0] == 0
                return int(weights.argmax())

        for rule in RULES.values():
            assert rule(tree, lambda row: p, Refuse()).last == 1

    def test_a_draft_that_is_nearly_certain_leaves_a_second_child(self):
        q = np.array([1.0, 1e-300, 0.0])
        tree = DraftTree((ROOT, 0, 1), (-1, 0, 0), (1.0,) * 3, draft_probs={0: q})
        seen = []

        class Note:
            def accept(self, part, whole):
                seen.append((part, whole))
                return False

            def pick(self, weights):
                return int(weights.argmax())

        reject(tree, lambda row: np.array([0.25, 0.5, 0.25]), Note())
        assert seen[1][1] == 1.0, "the second child is certain once the first is gone"


class TestStopRules:
    """Which nodes are verified may depend on anything but what was drawn at them."""

    p, q = RandomModel(21, 3), RandomModel(22, 3)

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    @pytest.mark.parametrize("shape", [chain_shape(3), (-1, 0, 0, 1, 1), (-1, 0, 1, 0, 2, 2)], ids=str)
    def test_prune_cuts_drawn_trees_in_the_order_of_their_rows(self, shape, rule):
        length = depth_of(shape) + 1
        for max_nodes in range(len(shape)):
            law = output_law(rule, shape, self.p, self.q, length, cut=lambda tree, n=max_nodes: tree.prune(n))
            assert law == target_law(self.p, length)

    @pytest.mark.parametrize("max_depth", [0, 1, 2])
    def test_prune_by_depth(self, max_depth):
        law = output_law(reject, (-1, 0, 0, 1, 1, 3), self.p, self.q, 4, cut=lambda t: t.prune(9, max_depth))
        assert law == target_law(self.p, 4)

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    def test_stopping_where_the_draft_distribution_is_flat_is_legal(self, rule):
        def cut(tree):
            sure = [row for row in range(1, len(tree)) if max(tree.draft_probs[row - 1]) > Fraction(2, 5)]
            return tree.prune(next((row - 1 for row in range(1, len(tree)) if row not in sure), len(tree)))

        assert output_law(rule, chain_shape(3), self.p, self.q, 4, cut=cut) == target_law(self.p, 4)

    def test_scores_do_not_choose_among_drawn_nodes(self):
        """prune ignores the scores of a tree that has draft_probs, and obeys those of one that has none."""
        tree = DraftTree((ROOT, 0, 1), (-1, 0, 0), (1.0, 0.1, 0.9), draft_probs={0: self.q(())})
        assert tree.prune(1).tokens == (ROOT, 0)
        assert DraftTree(tree.tokens, tree.parents, tree.score).prune(1).tokens == (ROOT, 1)


class TestControls:
    """Each mistake must be found; otherwise the equality of laws says nothing."""

    p, q = RandomModel(31, 3), RandomModel(32, 3)

    def is_found(self, rule=reject, shape=(-1, 0, 0, 1, 1), p=None, q=None, **options):
        length, p, q = depth_of(shape) + 1, p or self.p, q or self.q
        return output_law(rule, shape, p, q, length, **options) != target_law(p, length)

    def test_sound(self):
        assert not self.is_found()

    @pytest.mark.parametrize("shape", [chain_shape(2), PAIR], ids=str)
    def test_residual_replaced_by_the_target(self, monkeypatch, shape):
        monkeypatch.setattr(rejection, "excess", lambda p, q: p)
        assert self.is_found(shape=shape)

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    @pytest.mark.parametrize("shape", [chain_shape(2), PAIR], ids=str)
    def test_a_distribution_of_another_temperature(self, shape, rule):
        def sharper(tree):
            lies = {row: q**2 / sum(q**2) for row, q in tree.draft_probs.items()}
            return DraftTree(tree.tokens, tree.parents, tree.score, draft_probs=lies)

        assert self.is_found(rule, shape, cut=sharper)

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    @pytest.mark.parametrize("shape", [chain_shape(2), (-1, 0, 0, 1, 1)], ids=str)
    def test_rows_off_by_one(self, shape, rule):
        def shifted(tree, probs, chance):
            return rule(tree, lambda row: probs(max(0, tree.parents[row])), chance)

        assert self.is_found(shifted, shape)

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    def test_bonus_from_the_root_row(self, rule):
        def wrong(tree, probs, chance):
            verdict = rule(tree, probs, chance)
            return verdict._replace(last=chance.pick(probs(0))) if len(verdict.accepted) == 2 else verdict

        assert self.is_found(wrong, chain_shape(2))

    @pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
    def test_a_stop_rule_that_looks_at_the_drawn_token(self, rule):
        def own_confidence(tree):
            return tree.prune(0) if tree.draft_probs[0][tree.tokens[1]] < Fraction(1, 3) else tree

        assert self.is_found(rule, chain_shape(2), cut=own_confidence)

    def test_choosing_among_drawn_nodes_by_their_scores(self):
        def likeliest(tree):
            rows = sorted((1, 2), key=lambda row: -tree.draft_probs[0][tree.tokens[row]])
            return tree.keep(rows[:1])

        assert self.is_found(shape=PAIR, cut=likeliest)

    def test_a_rejected_child_left_in_the_draft_distribution(self):
        def forgetful(tree, probs, chance):
            p, q = probs(0), tree.draft_probs[0]
            for child in tree.children(0):
                if chance.accept(p[tree.tokens[child]], q[tree.tokens[child]]):
                    return Verdict((child,), chance.pick(probs(child)))
                p = excess(p, q)
                p = p / p.sum()
            return Verdict((), chance.pick(p))

        p, q = lambda context: dist(2, 5, 3), lambda context: dist(8, 1, 1)
        assert self.is_found(forgetful, PAIR, p, q)
        assert not self.is_found(reject, PAIR, p, q)

    def test_a_rule_chosen_by_the_shape_that_the_draws_left(self):
        """Block verification for what turns out to be a chain, rejection for the rest: wrong, and easy to write."""

        def by_shape(tree, probs, chance):
            return (verify_block if tree.is_chain else reject)(tree, probs, chance)

        shape = (-1, 0, 1, 0, 2, 2)
        models = [(RandomModel(seed, 3), RandomModel(100 + seed, 3, zeros=True)) for seed in range(6)]
        assert any(self.is_found(by_shape, shape, p, q) for p, q in models)
        assert not any(self.is_found(verify_block, shape, p, q) for p, q in models)


class TestTheEnumerationItself:
    def test_drafts_are_a_distribution(self):
        for shape in (chain_shape(3), (-1, 0, 0, 1, 1)):
            assert sum(probability for probability, _ in drafts(shape, RandomModel(1, 3, zeros=True), {})) == 1

    def test_verdicts_are_a_distribution(self):
        p, q = RandomModel(1, 3), RandomModel(2, 3)
        for _, tree in drafts((-1, 0, 0, 1, 1), q, {}):
            assert sum(probability for probability, _ in verdicts(reject, tree, p)) == 1

    def test_said(self):
        tree = DraftTree.chain(ROOT, [4, 5])
        assert said(tree, Verdict((1,), 7)) == (4, 7)
