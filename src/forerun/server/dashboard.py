"""StepRecorder: notes about the last minute of steps, taken as they happen, for the dashboard.

An EngineObserver. Whether somebody watches makes no difference to it: a step costs it a few microseconds, and its rings
are bounded. Everything that costs more (the block map, documents) is made only on demand, by `dashboard_snapshot`.
"""

import time
from collections import deque
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.llm import LLM
from forerun.results import GenerationStats
from forerun.sequence import Sequence

INTERVAL_S = 0.25
NUM_INTERVALS = 240  # a minute
NUM_ENDED = 12  # requests that are remembered after their end


@dataclass(slots=True)
class Interval:
    """What the steps that ended within one interval did.

    index          number of the interval since the recorder was made
    busy_s         time spent in steps; a long step counts where it ends
    rows           of all batches; decoding, draft and prompt rows add up to it
    tokens         output tokens of all requests
    running        sequences that ran at the end, waiting likewise
    """

    index: int
    steps: int = 0
    busy_s: float = 0.0
    rows: int = 0
    decoding_rows: int = 0
    draft_rows: int = 0
    accepted: int = 0
    tokens: int = 0
    running: int = 0
    waiting: int = 0


@dataclass(frozen=True)
class Ended:
    """One sequence that has ended. salt: its request's, which tells the tenant"""

    id: int
    salt: str
    finish_reason: str
    stats: GenerationStats


class StepRecorder:
    """Belongs to the engine's thread, like the engine itself.

    intervals      the last minute, oldest first; intervals without a step are left out
    first_tokens   (interval index, seconds from arrival to the first token) of the last requests
    prompt_tokens  of all requests that got a first token; cached_tokens of them came from the prefix cache
    """

    def __init__(self) -> None:
        self.started_s = time.perf_counter()
        self.intervals: deque[Interval] = deque(maxlen=NUM_INTERVALS)
        self.first_tokens: deque[tuple[int, float]] = deque(maxlen=64)
        self.ended_last: deque[Ended] = deque(maxlen=NUM_ENDED)
        self.num_tokens = 0
        self.num_ended = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self._num_output: dict[int, int] = {}  # by sequence id: output tokens counted so far
        self._steps = self._rows = self._drafted = self._accepted = 0  # the engine's totals after the last step

    def now_index(self) -> int:
        """Number of the present interval."""
        return int((time.perf_counter() - self.started_s) / INTERVAL_S)

    # ---- EngineObserver ----

    def added(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._num_output[sequence.id] = 0

    def step_done(self, llm: LLM, advanced: Seq[Sequence], seconds: float) -> None:
        interval = self._interval()
        engine, stats, drafts = llm.engine, llm.engine.stats, llm.engine.speculator.stats
        interval.steps += stats.steps - self._steps
        interval.busy_s += seconds
        interval.rows += stats.rows - self._rows
        interval.draft_rows += drafts.drafted - self._drafted
        interval.accepted += drafts.accepted - self._accepted
        self._steps, self._rows = stats.steps, stats.rows
        self._drafted, self._accepted = drafts.drafted, drafts.accepted
        interval.running, interval.waiting = len(engine.scheduler.running), len(engine.scheduler.waiting)
        for sequence in advanced:
            before, after = self._num_output.get(sequence.id, 0), sequence.num_output
            interval.tokens += after - before
            self.num_tokens += after - before
            self._num_output[sequence.id] = after
            if before == 0 and after:
                self._first_token(interval, sequence)
            else:
                interval.decoding_rows += after > before  # a first token's row belongs to its prompt

    def ended(self, sequence: Sequence) -> None:
        self._num_output.pop(sequence.id, None)
        self.num_ended += 1
        reason = sequence.finish.value if sequence.finish is not None else ""
        self.ended_last.append(Ended(sequence.id, sequence.request.salt, reason, GenerationStats.of(sequence)))

    def _interval(self) -> Interval:
        index = self.now_index()
        if not self.intervals or self.intervals[-1].index != index:
            self.intervals.append(Interval(index))
        return self.intervals[-1]

    def _first_token(self, interval: Interval, sequence: Sequence) -> None:
        stats = sequence.stats
        if stats.first_token_s is not None:
            self.first_tokens.append((interval.index, stats.first_token_s - stats.arrived_s))
        self.prompt_tokens += sequence.num_prompt
        self.cached_tokens += stats.cached_prompt_tokens
