"""Meter: the processor's time that the grammar of one request has taken, and when that is too much.

All running generations wait while a mask is made. The library counts items of its parser, not what finding them takes:
an ambiguous grammar such as `a: a a | "a"` takes up to a second a call within its limits, and a call cannot be stopped.
So a call that is too slow is the last, and those that are nearly as slow are few.

    place                                       limits                                        behind them
    the text so far: masks, tokens taken        CALL_LIMIT_S each, ALLOWANCE_S in all         the request ends
    looks ahead along drafts, forced text       LOOK_LIMIT_S a step, ALLOWANCE_S in all       nothing more is drafted

The two are counted apart, so that what a drafter looks at never ends a request.
"""

import time
from collections.abc import Callable
from typing import TypeVar

from forerun.errors import GrammarError

CALL_LIMIT_S = 0.1
SLOW_S = 0.02  # shorter calls are free: an everyday mask takes some 50 us, the widest schemas that compile 10 ms
ALLOWANCE_S = 0.5  # of slow calls, for all choices of a request together
LOOK_LIMIT_S = 0.02  # of looks ahead, for one choice in a step

T = TypeVar("T")


class Meter:
    """Shared by the masks of one request. Times are those of the thread: waiting for others costs nothing."""

    def __init__(self) -> None:
        self._slow_s = 0.0
        self._slow_looks_s = 0.0

    @property
    def may_look(self) -> bool:
        """Is there time left to look ahead?"""
        return self._slow_looks_s <= ALLOWANCE_S

    def add(self, seconds: float, slowest_s: float) -> None:
        """Count a call for the text so far. Raises GrammarError when it, or all of them, took too long.

        slowest_s  the longest call at this place: asked again, as a step that failed does, the library knows the answer
        """
        if seconds > SLOW_S:
            self._slow_s += seconds
        if slowest_s > CALL_LIMIT_S:
            raise GrammarError(
                f"the grammar cannot go on here: what may come next takes {slowest_s:.1g} s to find: make it less "
                "ambiguous"
            )
        if self._slow_s > ALLOWANCE_S:
            raise GrammarError(
                f"the grammar cannot go on here: it has taken {self._slow_s:.1g} s in steps of more than "
                f"{SLOW_S * 1000:g} ms, and {ALLOWANCE_S:g} s is the most: make it less ambiguous"
            )

    def add_look(self, seconds: float) -> None:
        """Count a call that looks ahead."""
        if seconds > SLOW_S:
            self._slow_looks_s += seconds


class Looks:
    """The looks ahead of one choice in one step: a mask and all its forks share it until the next token is taken."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._taken_s = 0.0

    @property
    def may_go_on(self) -> bool:
        """Is there time left in this step?"""
        return self._meter.may_look and self._taken_s <= LOOK_LIMIT_S

    def begin_step(self) -> None:
        """A token was taken: a new step looks ahead from there."""
        self._taken_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one look."""
        self._taken_s += seconds
        self._meter.add_look(seconds)


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """What a call gives, and the processor's time it took."""
    start = time.thread_time()
    found = call()
    return found, time.thread_time() - start
