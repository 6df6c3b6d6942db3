"""Watchdog: notices that there is work but nothing that can run, step after step.

The scheduler's laws exclude that. Should it come to it all the same, callers would step for ever; so the first in line
ends, with an error that has the numbers, and whoever stood behind it gets its turn.
"""

from forerun.errors import CapacityError
from forerun.scheduler.scheduler import Scheduler
from forerun.sequence import Sequence

STUCK_STEPS = 8  # with nothing to run, in a row


class Watchdog:
    """Of one scheduler. Told of every selection."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._num_empty = 0

    def ran(self) -> None:
        """Something was selected."""
        self._num_empty = 0

    def stuck(self) -> tuple[Sequence, CapacityError] | None:
        """Nothing was selected: who must end for it, and why, when that has gone on for too long."""
        scheduler = self._scheduler
        self._num_empty = self._num_empty + 1 if scheduler.has_work else 0
        if self._num_empty < STUCK_STEPS:
            return None
        self._num_empty = 0
        first, pool = (scheduler.running or scheduler.waiting)[0], scheduler.pool
        needed = -(-len(first.tokens) // scheduler.block_size) - len(first.block_ids)
        return first, CapacityError(
            f"nothing could run for {STUCK_STEPS} steps: the first in line needs {max(0, needed)} more KV blocks, and "
            f"{pool.num_free} of {pool.num_blocks} are free: raise kv_cache_bytes, and report a bug"
        )
