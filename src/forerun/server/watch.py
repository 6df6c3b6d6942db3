"""EngineWatch: sees every step on the engine's thread, feeds the metrics, and writes the record of what has ended.

It runs between two steps, so it does little: a few additions for every generation that got tokens.
"""

import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.generation import live_text
from forerun.llm import LLM
from forerun.sequence import Request, Sequence
from forerun.server.exchange import Record
from forerun.server.metrics import Metrics


@dataclass(slots=True)
class _Seen:
    """Of one generation: when its first step began, when it last got tokens, and how many it had then."""

    began_at: float | None = None
    last_at: float = 0.0
    num_output: int = 0


class EngineWatch:
    """An EngineObserver.

    ended      told about every generation that is over
    with_text  the records carry what was said
    """

    def __init__(self, metrics: Metrics, on_end: Callable[[Request, Record], None], *, with_text: bool = False) -> None:
        self._metrics = metrics
        self._on_end = on_end
        self._with_text = with_text
        self._seen: dict[int, _Seen] = {}
        self._waiting: dict[int, _Seen] = {}  # those of them without a step
        self._rows = 0

    def added(self, sequences: Seq[Sequence]) -> None:
        for sequence in sequences:
            self._seen[sequence.id] = self._waiting[sequence.id] = _Seen()

    def step_done(self, llm: LLM, advanced: Seq[Sequence], seconds: float) -> None:
        now = time.perf_counter()
        metrics, rows = self._metrics, llm.engine.stats.rows
        if rows > self._rows:  # else nothing could run: blocks are short until somebody leaves
            metrics.step_seconds.observe(seconds)
            metrics.step_rows.observe(rows - self._rows)
            self._rows = rows
        if self._waiting:
            self._begin([*llm.engine.scheduler.running, *advanced], now - seconds)
        num_tokens = 0
        for sequence in advanced:
            seen = self._seen[sequence.id]
            new = sequence.num_output - seen.num_output
            if new <= 0:
                continue
            if seen.num_output:
                metrics.inter_token_seconds.observe(now - seen.last_at)
            num_tokens += new
            seen.num_output, seen.last_at = sequence.num_output, now
        metrics.output_tokens.inc(num_tokens)

    def ended(self, sequence: Sequence) -> None:
        seen = self._seen.pop(sequence.id)
        self._waiting.pop(sequence.id, None)
        record = self._record(sequence, seen)
        self._metrics.generation_ended(record)
        self._on_end(sequence.request, record)

    def _begin(self, running: Seq[Sequence], at: float) -> None:
        """Those that had waited and now run began with the step that has just ended."""
        for sequence in running:
            seen = self._waiting.pop(sequence.id, None)
            if seen is not None:
                stats = sequence.stats
                seen.began_at = max(at, stats.arrived_s)
                self._metrics.generation_began(
                    sequence.num_prompt, stats.cached_prompt_tokens, seen.began_at - stats.arrived_s
                )

    def _record(self, sequence: Sequence, seen: _Seen) -> Record:
        stats = sequence.stats
        end = stats.finished_s if stats.finished_s is not None else time.perf_counter()
        began = seen.began_at if seen.began_at is not None else end
        return Record(
            num_prompt=sequence.num_prompt,
            num_cached=stats.cached_prompt_tokens,
            num_output=sequence.num_output,
            arrived_at=stats.arrived_s,
            queue_s=began - stats.arrived_s,
            first_s=None if stats.first_token_s is None else stats.first_token_s - stats.arrived_s,
            total_s=end - stats.arrived_s,
            steps=stats.steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            drafted_by=dict(stats.verified_by),
            accepted_by=dict(stats.accepted_by),
            drafted_at=list(stats.drafted_at),
            accepted_at=list(stats.accepted_at),
            preemptions=stats.preemptions,
            finish=sequence.finish.value if sequence.finish is not None else "unfinished",
            error=sequence.error,
            text="".join(live_text(sequence).pieces) if self._with_text else None,
        )
