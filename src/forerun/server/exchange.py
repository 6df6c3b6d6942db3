"""Exchange: one HTTP request with the generations it caused, from its first header to the last token's account.

The middleware in `observing` opens it, `accounting` fills it, and when both the answer is out and all generations have
ended it is handed to those who count, log and trace. A context variable carries it to where requests are submitted.
"""

import re
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from forerun.server.limits import Allowance

_SANE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(frozen=True)
class Record:
    """What one generation (a choice) came to. Times are in seconds; *_s fields without `at` are durations.

    arrived_at  on time.perf_counter's clock
    queue_s     until its first step began; the whole life of one that never ran
    first_s     from arrival to the first token, None when there was none
    """

    num_prompt: int
    num_cached: int
    num_output: int
    arrived_at: float
    queue_s: float
    first_s: float | None
    total_s: float
    steps: int
    drafted: int
    accepted: int
    drafted_by: dict[str, int]
    accepted_by: dict[str, int]
    drafted_at: list[int]
    accepted_at: list[int]
    preemptions: int
    finish: str
    error: str = ""
    text: str | None = None  # only with --log-prompts


@dataclass
class Exchange:
    """See the module. Belongs to the event loop.

    route   the path's template, "" while or where none matched
    status  of the answer, 0 before it began
    reason  why it was refused or failed, a word; "" when it was not
    names   options by their name behind the endpoints, as this client called them
    """

    id: str
    method: str
    path: str
    client: str = ""
    tenant: str = ""
    allowance: Allowance | None = None
    route: str = ""
    status: int = 0
    reason: str = ""
    message: str = ""
    started_at: float = field(default_factory=time.perf_counter)
    answered_at: float | None = None
    prompt_tokens: int = 0  # of all prompts, each counted once
    prompts: list[str] = field(default_factory=list)  # only with --log-prompts
    records: list[Record] = field(default_factory=list)
    num_open: int = 0  # generations without a record
    names: dict[str, str] = field(default_factory=dict)
    span: Any = None  # of the tracing library
    on_end: Callable[["Exchange"], None] | None = None

    @property
    def total_s(self) -> float:
        """From the first header to the end of the answer."""
        return (self.answered_at or time.perf_counter()) - self.started_at

    def refused(self, status: int, reason: str, message: str) -> None:
        """The request gets an error for an answer, or in place of its rest."""
        self.reason, self.message = reason or f"http_{status}", message

    def expect(self, num_choices: int) -> None:
        """So many generations have begun."""
        self.num_open += num_choices

    def generation_ended(self, record: Record | None) -> None:
        """One generation is over; None when it never came to be."""
        self.num_open -= 1
        if record is not None:
            self.records.append(record)
        self._end_if_over()

    def answered(self) -> None:
        """The answer is out, or the client is gone."""
        self.answered_at = time.perf_counter()
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self.answered_at is not None and self.num_open == 0 and self.on_end is not None:
            on_end, self.on_end = self.on_end, None
            on_end(self)


_current: ContextVar[Exchange | None] = ContextVar("forerun_exchange", default=None)


def current_exchange() -> Exchange | None:
    """The HTTP request that this code runs for."""
    return _current.get()


def enter_exchange(exchange: Exchange) -> None:
    """What this task and those it starts do belongs to `exchange`."""
    _current.set(exchange)


def choose_id(given: str | None) -> str:
    """The client's request id where it is harmless in logs and headers, else a new one."""
    return given if given is not None and _SANE_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
