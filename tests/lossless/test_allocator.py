"""Whatever the allocator decides, the tokens stay the same: here it decides at random."""

import random

import pytest

from forerun.config import SpeculationConfig
from forerun.speculation.allocation.allocator import Allocator
from forerun.speculation.allocation.step_cost import MAX_ROWS, StepCost
from tests.lossless.cases import MAX_MODEL_LEN, Case, mismatches, pairwise_cases, setup_of


class RandomCost(StepCost):
    """Another table after every observation, so that now nothing pays and now everything does."""

    def __init__(self, seed):
        self._random = random.Random(seed)
        super().__init__(self._any())

    def _any(self):
        first, per_row = self._random.random() + 1e-3, self._random.choice((0.0, 0.1, 1.0)) * self._random.random()
        return [0.0, *(first + per_row * (rows // self._random.choice((1, 4, 8))) for rows in range(MAX_ROWS))]

    def observe(self, rows, keys, seconds, count=1):
        self.table = self._any()


def engine_of(case, seed):
    setup = setup_of(case)
    setup.budget = Allocator(SpeculationConfig(max_draft_rows=48), MAX_MODEL_LEN, RandomCost(seed))
    setup.budget.guard.observe = lambda *args: None  # costs that jump would soon be taken for slow drafts
    return setup.engine()


@pytest.mark.parametrize("case", pairwise_cases(seed=1), ids=str)
def test_the_engine_says_what_plain_decoding_says(case):
    assert mismatches(case, engine_of(case, seed=case.seed)) == []


@pytest.mark.parametrize("paid", [False, True])
@pytest.mark.parametrize("drafter", ["oracle", "oracle-branches", "oracle-errors"])
def test_drafts_are_verified_and_accepted_on_the_way(drafter, paid):
    """Equal outputs would mean little if it never drafted."""
    case = Case(drafter, "to-the-end", batch=3)
    engine = engine_of(case, seed=0)
    for one in engine.speculator.drafters:
        one.is_paid = paid
    assert mismatches(case, engine) == []
    stats = engine.speculator.stats
    assert stats.accepted > 10
    assert stats.decisions["verified"] > 0
