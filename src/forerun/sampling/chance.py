"""Chance: where a verification rule's decisions come from.

A rule never sees a random number. It asks for one of two kinds of decision, so the same code can be driven by noise
(NoiseChance, in the engine) or by every outcome in turn (the tests, which add up exact fractions).
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from forerun.sampling.noise import DECISIONS, uniform

Weights = npt.NDArray[Any]  # [V], float64 in the engine, fractions in the tests

_AT_ONCE = 32  # numbers computed together: more than most steps need


class Chance(Protocol):
    """Makes independent random decisions."""

    def accept(self, part: Any, whole: Any) -> bool:
        """True with probability min(1, part / whole); never when `part` is 0."""
        ...

    def pick(self, weights: Weights) -> int:
        """An index with probability proportional to its weight; never one whose weight is 0. Some weight is not 0."""
        ...


class NoiseChance:
    """Decisions of one sequence in one step, from noise of a domain of its own.

    key   the sequence's noise key
    step  absolute position that the step's first token takes: every step that commits has another one, and a step that
          is retried has the same
    """

    def __init__(self, key: tuple[int, int], step: int) -> None:
        self._key, self._step = key, step
        self._numbers: list[float] = []
        self._used = 0

    def _next(self) -> float:
        """A number in the open interval (0, 1)."""
        if self._used == len(self._numbers):
            places = np.arange(self._used, self._used + _AT_ONCE)
            self._numbers += uniform(self._key, 0, places, DECISIONS, self._step).tolist()
        self._used += 1
        return self._numbers[self._used - 1]

    def accept(self, part: float, whole: float) -> bool:
        """Strict: a part of 0 never passes, whatever the number."""
        return bool(self._next() * whole < part)

    def pick(self, weights: Weights) -> int:
        """The first index whose cumulated weight exceeds a uniform share of the total, so never one without weight."""
        cumulated = np.cumsum(weights)
        index = int(np.searchsorted(cumulated, self._next() * cumulated[-1], side="right"))
        if index == len(weights):  # the product was rounded up to the total
            index = int(np.flatnonzero(weights)[-1])
        return index
