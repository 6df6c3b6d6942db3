"""Decisions from noise: strict, repeatable, without bias, apart from the noise of the draws."""

import math

import numpy as np
import pytest

from forerun.sampling import noise
from forerun.sampling.chance import NoiseChance


def fixed(numbers):
    """A NoiseChance whose next numbers are these."""
    chance = NoiseChance((0, 0), 0)
    chance._numbers = list(numbers)
    return chance


SMALLEST, LARGEST = 2.0**-53, 1.0 - 2.0**-53  # of noise.uniform


def test_nothing_accepts_what_has_no_probability():
    assert not fixed([SMALLEST]).accept(0.0, 1.0)
    assert not fixed([SMALLEST]).accept(0.0, 0.0)


def test_everything_accepts_what_is_certain():
    assert fixed([LARGEST]).accept(0.25, 0.25)
    assert fixed([LARGEST]).accept(0.5, 0.25)


@pytest.mark.parametrize("number", [SMALLEST, 0.3, LARGEST])
@pytest.mark.parametrize("weights", [[0, 0, 1, 0], [0, 1e-300, 0], [1.0], [0, 3, 0, 0, 4, 0]])
def test_a_pick_has_weight(number, weights):
    weights = np.array(weights, float)
    assert weights[fixed([number]).pick(weights)] > 0


def test_a_pick_whose_share_is_rounded_up_to_the_total():
    weights = np.array([1.0, 0.5 - 2.0**-53, 0.0])
    total = weights.sum()
    number = next(n for n in [LARGEST] if n * total <= total)
    assert fixed([number]).pick(weights) == 1
    assert fixed([1.0]).pick(weights) == 1  # a number that noise cannot give, rounded for certain


def test_picks_follow_the_weights():
    weights = np.array([0.0, 1.0, 2.0, 5.0])
    count = 8_000
    seen = np.bincount([NoiseChance((1, 2), step).pick(weights) for step in range(count)], minlength=4)
    expected = count * weights / weights.sum()
    assert seen[0] == 0
    g = 2 * float((seen[1:] * np.log(seen[1:] / expected[1:])).sum())
    assert g < 18.4  # chi-squared, 2 degrees of freedom, 1e-4


def test_accepts_as_often_as_it_should():
    count, rate = 8_000, 0.3
    seen = sum(NoiseChance((3, 4), step).accept(0.15, 0.5) for step in range(count))
    assert abs(seen - count * rate) < 4 * math.sqrt(count * rate * (1 - rate))


def test_a_retried_step_decides_the_same_and_another_step_does_not():
    def decisions(key, step):
        chance = NoiseChance(key, step)
        return [chance.pick(np.ones(1000)) for _ in range(100)]

    first = decisions((5, 6), 40)
    assert decisions((5, 6), 40) == first
    others = [decisions((5, 6), 41), decisions((5, 7), 40)]
    for other in others:
        assert sum(a == b for a, b in zip(first, other, strict=True)) < 10


def test_numbers_do_not_repeat_when_many_are_needed():
    chance = NoiseChance((7, 8), 3)
    numbers = [chance._next() for _ in range(200)]
    assert len(set(numbers)) == 200
    assert 0 < min(numbers) < 0.05 < 0.95 < max(numbers) < 1


@pytest.mark.parametrize("function", [noise.uniform, noise.gumbel])
def test_domains_and_steps_are_apart_and_the_default_is_the_targets(function):
    tokens = np.arange(64)
    rows = [
        function((1, 2), 9, tokens),
        *(function((1, 2), 9, tokens, domain, step) for domain in (noise.DECISIONS, noise.DRAFTS) for step in (8, 9)),
    ]
    assert (function((1, 2), 9, tokens, noise.TARGET, 0) == rows[0]).all()
    for i, row in enumerate(rows):
        for other in rows[:i]:
            assert not np.isin(row, other).any()
