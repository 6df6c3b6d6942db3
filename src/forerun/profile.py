"""Profile: where time goes, by phase of the engine's step and by kind of operation, as totals and on a time line.

    engine    select | copy | propose | build |    forward    | draw and verify | commit | ...     end_phase after each
    thread 0                                  |op|op|op|op|op|op|                                record_ops after a run
    thread 1                                   |op|op|op |op|op|

The engine is given a StepClock; by default one that does nothing. FORERUN_PROFILE=1 makes a Profile of the process and
prints its totals when the process ends. Times are nanoseconds of time.perf_counter_ns, in native code too.
"""

import atexit
import functools
import os
import sys
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

VARIABLE = "FORERUN_PROFILE"
Spans = npt.NDArray[np.int64]


class StepClock(Protocol):
    """What the engine tells about its steps. A phase reaches from the end of the one before."""

    def start_step(self) -> None:
        """A step begins, and with it its first phase."""
        ...

    def end_phase(self, phase: str) -> None:
        """What was done since the last call was `phase`."""
        ...


class NoClock:
    """A StepClock that does nothing."""

    def start_step(self) -> None: ...

    def end_phase(self, phase: str) -> None: ...


@dataclass
class Total:
    """Sum over the calls of one phase or kind of operation."""

    calls: int = 0
    ns: int = 0

    def add(self, calls: int, ns: int) -> None:
        """Count `calls` more."""
        self.calls += calls
        self.ns += ns


class Profile:
    """A StepClock that adds up phases and operations.

    keep_timeline  also remember every one of them, for `trace_events`; memory then grows with every step
    """

    def __init__(self, keep_timeline: bool = False) -> None:
        self._keeps_timeline = keep_timeline
        self._last_ns = 0
        self.clear()

    # ---- recording ----

    def clear(self) -> None:
        """Forget everything."""
        self.phases: dict[str, Total] = {}
        self.operations: dict[str, Total] = {}
        self._phase_spans: list[tuple[str, int, int]] = []
        self._op_spans: list[tuple[Seq[str], Spans]] = []

    def start_step(self) -> None:
        """A step begins."""
        self._last_ns = time.perf_counter_ns()

    def end_phase(self, phase: str) -> None:
        """What was done since the last call was `phase`."""
        now = time.perf_counter_ns()
        self.phases.setdefault(phase, Total()).add(1, now - self._last_ns)
        if self._keeps_timeline:
            self._phase_spans.append((phase, self._last_ns, now))
        self._last_ns = now

    def record_ops(self, names: Seq[str], spans: Spans) -> None:
        """Operations that ran. names [O]; spans [1 + T, O, 2] begin and end: of each as a whole, then of each thread's
        part in it, zeros where it had none. Not copied."""
        for name, ns in zip(names, (spans[0, :, 1] - spans[0, :, 0]).tolist(), strict=True):
            self.operations.setdefault(name, Total()).add(1, ns)
        if self._keeps_timeline:
            self._op_spans.append((names, spans))

    # ---- reading ----

    def report(self) -> str:
        """Two tables: phases, in the order in which they first ended, and operations, the longest first."""
        longest = sorted(self.operations.items(), key=lambda item: -item[1].ns)
        tables = (("phase of a step", self.phases.items()), ("operation", longest))
        return "\n\n".join(_table(title, list(rows)) for title, rows in tables if rows)

    def trace_events(self) -> list[dict[str, Any]]:
        """The time line in the JSON trace event format, which Perfetto and Chrome show. Needs keep_timeline.

        A track for the engine's phases and one for every thread, which shows each operation's part. An operation that
        needed no other thread than the caller's is shown on thread 0.
        """
        tracks: dict[int, str] = {0: "engine"}
        events = [_event(0, phase, begin, end) for phase, begin, end in self._phase_spans]
        for names, spans in self._op_spans:
            shared = spans[1:, :, 1].any(axis=0)  # [O]
            parts = spans[1:].copy()
            parts[0, ~shared] = spans[0, ~shared]
            for thread, ops in enumerate(parts.tolist()):
                tracks.setdefault(1 + thread, f"thread {thread}")
                for name, (begin, end) in zip(names, ops, strict=True):
                    if end:
                        events.append(_event(1 + thread, name, begin, end))
        first = min((event["ts"] for event in events), default=0.0)
        for event in events:
            event["ts"] -= first
        return [*(_name(track, name) for track, name in tracks.items()), *events]


@functools.cache
def process_profile() -> Profile | None:
    """The Profile of this process, whose report goes to stderr when the process ends; None unless FORERUN_PROFILE=1."""
    if os.environ.get(VARIABLE) != "1":
        return None
    profile = Profile()

    def print_report() -> None:
        if profile.phases:
            print(profile.report(), file=sys.stderr)

    atexit.register(print_report)
    return profile


def _table(title: str, rows: list[tuple[str, Total]]) -> str:
    width = max(len(title), *(len(name) for name, _ in rows))
    all_ns = sum(total.ns for _, total in rows) or 1
    lines = [f"{title:{width}}  {'calls':>8}  {'total ms':>10}  {'mean us':>10}  share"]
    for name, total in rows:
        mean_us = total.ns / total.calls / 1e3
        lines.append(
            f"{name:{width}}  {total.calls:8}  {total.ns / 1e6:10.1f}  {mean_us:10.1f}  {total.ns / all_ns:5.1%}"
        )
    return "\n".join(lines)


def _event(track: int, name: str, begin: int, end: int) -> dict[str, Any]:
    return {"name": name, "ph": "X", "pid": 1, "tid": track, "ts": begin / 1e3, "dur": (end - begin) / 1e3}


def _name(track: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}
