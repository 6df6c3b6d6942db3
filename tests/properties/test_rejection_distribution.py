"""The whole engine draws from the model's distribution under verification by rejection and by blocks: a G-test of pairs
of tokens with the power stated in pair_model.py, and the classic mistakes, each of which the same test must find.
"""

from functools import lru_cache

import numpy as np
import pytest

from forerun.sampling import chance, noise, walk
from forerun.sampling.path import PathProbs
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification import block, rejection, verifier
from tests.fakes import ScriptedDrafter
from tests.properties.pair_model import (
    CONTROL_REQUESTS,
    CRITICAL,
    EVEN,
    NUM_PAIRS,
    ODD,
    PAIRS_PER_REQUEST,
    REQUESTS,
    decision_table,
    g_statistic,
    gumbel_table,
    pair_counts,
)
from tests.sampling_drafter import SamplingDrafter, chain_shape

CHAIN, TREE = chain_shape(4), (-1, 0, 0, 1, 2, 2, 3)
STEM = (-1, 0, 1, 2, 2, 3)  # a stem of two, then a fork
SIZES = {"max_depth": 6, "max_num_seqs": 8}  # six nodes a draft


@pytest.fixture(autouse=True)
def fast_noise(monkeypatch):
    def tabled(key, position, places, domain, step):
        assert (position, domain) == (0, noise.DECISIONS)
        return decision_table(key)[step, places]

    monkeypatch.setattr(chance, "uniform", tabled)
    monkeypatch.setattr(walk, "gumbel", lambda key, position, ids: gumbel_table(key)[position, ids])


@lru_cache(maxsize=1000)
def draft_noise(key, by_step):
    """Uniform numbers [position, step] of the domain DRAFTS."""
    places = np.arange(2 * PAIRS_PER_REQUEST + 20)
    steps = places[None, :] if by_step else np.zeros((1, len(places)), int)
    return noise.uniform(key, places[:, None], np.zeros((len(places), len(places)), int), noise.DRAFTS, steps)


def noise_drafter(by_step):
    """Chains drawn with noise of the sequence, as a draft model would."""

    def tree(ask):
        path, probs = list(ask.sequence.tokens), {}
        step = len(path)
        for row in range(4):
            probs[row] = draft_distribution(tuple(path))
            number = draft_noise(ask.sequence.key, by_step)[len(path), step]
            path.append(int(np.searchsorted(probs[row].cumsum(), number, side="right")))
        return DraftTree(tuple(path[step - 1 :]), CHAIN, (1.0,) * 5, draft_probs=probs)

    return tree


def test_the_table_holds_the_real_noise():
    for step in (2, 17, 299):
        numbers = noise.uniform((5, 6), 0, np.arange(32), noise.DECISIONS, step)
        assert (decision_table((5, 6))[step] == numbers).all()


def draft_distribution(path):
    """Total variation from the target's next row: about 0.2."""
    row = np.exp((EVEN if len(path) % 2 == 0 else ODD[path[-1]]).astype(float))
    q = 0.6 * row / row.sum() + 0.4 * np.roll(row / row.sum(), 1)
    return q / q.sum()


def counts(verification, drafter, num_requests=CONTROL_REQUESTS, **options):
    return pair_counts(drafter, num_requests, verification, **{**SIZES, **options})


def drawing(shape, **options):
    return SamplingDrafter(draft_distribution, shape, **options)


@pytest.mark.parametrize(
    ("verification", "shape"),
    [
        ("rejection", TREE),
        ("block", CHAIN),
        pytest.param("rejection", CHAIN, marks=pytest.mark.slow),
        pytest.param("block", STEM, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_pairs_follow_the_joint_distribution(verification, shape):
    found = counts(verification, drawing(shape), REQUESTS)
    assert found.sum() == NUM_PAIRS
    assert g_statistic(found) < CRITICAL


BOTH = [("rejection", TREE), ("block", CHAIN)]


class TestControls:
    """Each of these must be found, with a sixth of the draws."""

    def is_found(self, verification, drafter, **options):
        return g_statistic(counts(verification, drafter, **options)) > CRITICAL

    @pytest.mark.parametrize(("verification", "shape"), [*BOTH, ("rejection", CHAIN), ("block", STEM)], ids=str)
    def test_sound(self, verification, shape):
        assert not self.is_found(verification, drawing(shape))

    @pytest.mark.parametrize(("verification", "shape"), BOTH, ids=str)
    def test_residual_replaced_by_the_target(self, monkeypatch, verification, shape):
        monkeypatch.setattr(rejection, "excess", lambda p, q: p)
        monkeypatch.setattr(block, "excess", lambda p, q: p)
        assert self.is_found(verification, drawing(shape))

    @pytest.mark.parametrize(("verification", "shape"), BOTH, ids=str)
    def test_a_draft_distribution_of_another_temperature(self, verification, shape):
        assert self.is_found(verification, drawing(shape, report=lambda q: q**2 / (q**2).sum()))

    @pytest.mark.parametrize(("verification", "shape"), BOTH, ids=str)
    def test_rows_off_by_one(self, monkeypatch, verification, shape):
        sound = PathProbs.__call__
        monkeypatch.setattr(
            PathProbs, "__call__", lambda self, row: sound(self, max(0, self._request.tree.parents[row]))
        )
        assert self.is_found(verification, drawing(shape))

    @pytest.mark.parametrize(
        ("verification", "shape", "rule"),
        [("rejection", TREE, "reject"), ("block", CHAIN, "verify_block")],
        ids=str,
    )
    def test_bonus_from_the_root_row(self, monkeypatch, verification, shape, rule):
        sound = getattr(verifier, rule)

        def wrong(tree, probs, dice):
            verdict = sound(tree, probs, dice)
            is_whole = verdict.accepted and not tree.children(verdict.accepted[-1])
            return verdict._replace(last=dice.pick(probs(0))) if is_whole else verdict

        monkeypatch.setattr(verifier, rule, wrong)
        assert self.is_found(verification, drawing(shape))

    @pytest.mark.parametrize("verification", ["rejection", "block"])
    def test_a_stop_rule_that_looks_at_the_drawn_token(self, verification):
        """A chain is not submitted when its first token does not look likely."""
        drafter = drawing(CHAIN)

        def confident(ask):
            tree = drafter.tree(ask)
            return tree if tree.score[1] > 0.35 else None

        assert self.is_found(verification, ScriptedDrafter(confident))

    def test_cutting_a_drawn_tree_by_its_scores(self, monkeypatch):
        def by_survival(tree, max_nodes, max_depth=None):
            rows = sorted(range(1, len(tree)), key=lambda row: (-tree.survival[row], row))
            return tree.keep(rows[:max_nodes])

        wide = drawing((-1, 0, 0, 1, 1, 2, 2))
        assert not self.is_found("rejection", wide, max_depth=3)
        monkeypatch.setattr(DraftTree, "prune", by_survival)
        assert self.is_found("rejection", wide, max_depth=3)

    def test_decisions_shared_by_two_steps(self, monkeypatch):
        """Each decision alone is right; those of neighbouring steps are the same ones."""
        monkeypatch.setattr(
            chance, "uniform", lambda key, position, places, domain, step: decision_table(key)[step // 4, places]
        )
        assert self.is_found("rejection", drawing(chain_shape(1)))

    def test_draft_noise_used_again_in_a_later_step(self):
        """Blocks look at all drafts before they decide, so a draft that was not accepted has been seen. Noise by
        position alone draws it again; DRAFTS noise of the step does not.
        """
        assert not self.is_found("block", ScriptedDrafter(noise_drafter(by_step=True)))
        assert self.is_found("block", ScriptedDrafter(noise_drafter(by_step=False)), num_requests=90)

    def test_all_tokens_are_in_play(self):
        assert (counts("rejection", drawing(TREE), 8) > 0).all()
