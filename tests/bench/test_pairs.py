"""Bounds of paired ratios: against figures worked out by hand, and by how often they hold the truth."""

import math
import random

import pytest

from forerun.bench.pairs import geometric_mean, ratio_of, t_975


def test_known_pairs() -> None:
    # ln: -ln 2, 0, ln 2: mean 0, standard deviation ln 2, error ln 2 / sqrt 3, t(2) = 4.303
    ratio = ratio_of([2.0, 0.5, 1.0])
    margin = 4.303 * math.log(2) / math.sqrt(3)
    assert ratio.median == 1.0
    assert ratio.lower == pytest.approx(math.exp(-margin))
    assert ratio.upper == pytest.approx(math.exp(margin))
    assert ratio.pairs == (2.0, 0.5, 1.0)


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    assert ratio_of([1.0, 4.0]).median == pytest.approx(2.0)


def test_one_pair_bounds_nothing() -> None:
    assert (ratio_of([1.5]).lower, ratio_of([1.5]).upper) == (0.0, math.inf)


def test_bounds_hold_the_truth_19_times_in_20() -> None:
    rng = random.Random(1)
    trials = 4000
    held = 0
    for _ in range(trials):
        ratio = ratio_of([1.3 * math.exp(rng.gauss(0, 0.2)) for _ in range(7)])
        held += ratio.lower <= 1.3 <= ratio.upper
    assert abs(held / trials - 0.95) < 0.015  # more than four standard errors


@pytest.mark.parametrize(("degrees", "value"), [(1, 12.706), (6, 2.447), (30, 2.042), (40, 2.021), (120, 1.980)])
def test_quantiles(degrees: int, value: float) -> None:
    assert t_975(degrees) == pytest.approx(value, abs=0.002)


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert geometric_mean([]) is None
