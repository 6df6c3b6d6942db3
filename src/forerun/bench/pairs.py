"""Ratios of paired timings, with bounds.

Two programs are timed one right after the other, so that what slows the machine down slows both; a pair is one ratio.
The ratio of a cell is the median of its pairs. Its bounds are those of the mean of the pairs' logarithms: a Student t
interval with n - 1 degrees of freedom, back through exp. Ratios multiply, so their logarithms are what is symmetric.

    ratio  median(r_1 .. r_n)        lower, upper  exp(mean(ln r) -+ t(0.975, n - 1) * sd(ln r) / sqrt(n))
"""

import math
import statistics
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

# Student's t, 97.5 %, by degrees of freedom from 1 on.
_T_975 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


@dataclass(frozen=True)
class Ratio:
    """Median of paired ratios with 95 % bounds; a single pair has none, which is bounds of 0 and infinity."""

    median: float
    lower: float
    upper: float
    pairs: tuple[float, ...]


def ratio_of(pairs: Seq[float]) -> Ratio:
    """The ratio that the pairs' ratios, all above 0, amount to."""
    logs = [math.log(pair) for pair in pairs]
    median = math.exp(statistics.median(logs))
    if len(logs) < 2:
        return Ratio(median, 0.0, math.inf, tuple(pairs))
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    margin = t_975(len(logs) - 1) * error
    return Ratio(median, math.exp(mean - margin), math.exp(mean + margin), tuple(pairs))


def t_975(degrees: int) -> float:
    """Student's t quantile for 95 % two-sided bounds; exact to 0.002 beyond the table."""
    return _T_975[degrees - 1] if degrees <= len(_T_975) else 1.96 + 2.4 / degrees


def geometric_mean(values: Iterable[float]) -> float | None:
    """None of nothing."""
    logs = [math.log(value) for value in values]
    return math.exp(statistics.fmean(logs)) if logs else None
