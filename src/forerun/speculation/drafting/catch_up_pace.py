"""CatchUpPace: how many rows of catch-up a step may take beside sequences that decode.

Those wait for the drafter's pass as they wait for the target's. So while there are others, the rows of a step are such
that they take at most half as long as the target's plain step: by the passes of the drafter that were measured, and by
the shortest time lately between a proposal and what became of it. Only the time depends on it, never what is said.
"""

FEWEST_ROWS = 16  # of a step, so that every catch-up ends; also what is tried before anything was measured
SHARE = 0.5  # of the target's step
BULK_ROWS = 8  # passes of fewer rows tell little about what a row costs among many
STEP_RISE = 1.05  # a step at a time: longer steps may have had prompts or drafts in them
PASS_WEIGHT = 0.3  # of the newest pass


class CatchUpPace:
    """Of one drafter's program."""

    def __init__(self) -> None:
        self._row_s: float | None = None
        self._step_s: float | None = None

    def passed(self, rows: int, seconds: float) -> None:
        """A pass of the drafter's program was measured."""
        if rows >= BULK_ROWS:
            known = seconds / rows if self._row_s is None else self._row_s
            self._row_s = known + PASS_WEIGHT * (seconds / rows - known)

    def stepped(self, seconds: float) -> None:
        """The target's step was measured."""
        self._step_s = seconds if self._step_s is None else min(seconds, STEP_RISE * self._step_s)

    def rows(self, num_decoding: int, limit: int) -> int:
        """Rows of a step's catch-up, at most `limit`.

        num_decoding  sequences that get tokens in the step, the ones that catch up included
        """
        if num_decoding <= 1:
            return limit
        if not self._row_s or self._step_s is None:
            return min(limit, FEWEST_ROWS)
        return min(limit, max(FEWEST_ROWS, int(SHARE * self._step_s / self._row_s)))
