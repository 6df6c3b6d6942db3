"""AsyncEngine: the engine on a thread of its own, used from an event loop.

The thread alone touches the engine. It takes commands between steps, runs steps while there is work, and hands what a
step yielded to the loop in one call. A stream keeps at most the output of its own request, however slowly it is read.
Whatever happens, commands are answered and streams end: also when the thread stops or breaks down.
"""

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from forerun.errors import RequestError, one_line
from forerun.llm import LLM
from forerun.sequence import FinishReason, Request, Sequence
from forerun.server.errors import ApiError
from forerun.server.inbox import Command, Inbox
from forerun.server.updates import ChoiceUpdate, Feed, failed_update, merged

STALL_S = 120.0  # a step that takes longer will not end: even long prompts come in chunks
STOP_S = 10.0  # that `stop` waits for the present step

log = logging.getLogger(__name__)
T = TypeVar("T")


class EngineObserver(Protocol):
    """Told what happens, on the engine's thread: be quick, keep what you need, do not raise."""

    def added(self, sequences: Seq[Sequence]) -> None: ...

    def step_done(self, llm: LLM, advanced: Seq[Sequence], seconds: float) -> None: ...

    def ended(self, sequence: Sequence) -> None: ...


@dataclass(frozen=True)
class EngineHealth:
    """alive         the thread runs
    failures      what failed outside of what the engine retries by itself, ending the generations it belonged to
    last_error    one line about the last failure of either kind
    step_age_s    how long the present step has been running, 0 between steps
    stalled       that is longer than any step takes: the process is not well and needs a restart
    failed_steps  steps of which a phase failed; their sequences were retried alone
    stuck         generations that ended because nobody could run
    drafters_off  drafters that kept failing and are not asked any more, with their error
    """

    alive: bool
    failures: int
    last_error: str
    step_age_s: float
    stalled: bool = False
    failed_steps: int = 0
    stuck: int = 0
    drafters_off: dict[str, str] = field(default_factory=dict)


class RequestStream:
    """The updates of one request. Belongs to the event loop; close it when the client has left."""

    def __init__(self, request: Request, close: "Callable[[RequestStream], None]") -> None:
        self.request = request
        self.arrived_s = time.perf_counter()
        self._close = close
        self._updates: list[ChoiceUpdate] = []
        self._ready = asyncio.Event()
        self._num_open = request.params.n

    async def __aiter__(self) -> AsyncIterator[list[ChoiceUpdate]]:
        """What came since the last turn, one update a choice, until all have ended. Leaving early ends the request."""
        try:
            while self._num_open or self._updates:
                await self._ready.wait()
                self._ready.clear()
                updates, self._updates = self._updates, []
                if updates:
                    yield merged(updates)
        finally:
            self.close()

    def close(self) -> None:
        """End what still runs; its blocks are free within one step. May be called again."""
        if self._num_open:
            self._close(self)

    @property
    def num_open(self) -> int:
        """Choices that have not ended."""
        return self._num_open

    def deliver(self, update: ChoiceUpdate) -> None:
        """Called on the event loop by AsyncEngine."""
        self._updates.append(update)
        self._num_open -= update.choice is not None
        self._ready.set()


class AsyncEngine:
    """Runs the requests of one LLM.

    max_waiting  choices that may wait beyond those that run; more are answered 503

    `start` on the loop that will use it; `stop` ends it.
    """

    def __init__(self, llm: LLM, *, max_waiting: int = 1024, observers: Seq[EngineObserver] = ()) -> None:
        self._llm = llm
        self._max_open = max_waiting + llm.engine.scheduler.config.max_num_seqs
        self._observers = list(observers)
        self._inbox = Inbox()
        self._open: dict[RequestStream, list[Sequence]] = {}  # of the engine's thread
        self._feeds: dict[int, tuple[RequestStream, Feed]] = {}  # by sequence id, of the engine's thread
        self._num_open = 0  # choices submitted and not ended, of the event loop
        self._accepts = True
        self._stopping = False
        self._failures, self._last_error, self._step_start = 0, "", 0.0
        self._thread = threading.Thread(target=self._run, name="forerun-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watchdog: asyncio.Task[None] | None = None

    # ---- used on the event loop ----

    def start(self) -> None:
        """Start the thread; updates go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._watchdog = self._loop.create_task(self._watch())

    async def submit(self, request: Request) -> RequestStream:
        """Queue a request. Raises RequestError for what can never be served, ApiError when too many wait."""
        self.check_room(request.params.n)
        stream = RequestStream(request, self._close)
        self._num_open += request.params.n
        adding = self._begin(lambda: self._add(stream))
        # Not in an except clause: a caller who was cancelled would not hear how it ended.
        adding.add_done_callback(lambda done: self._forget(request.params.n) if _has_failed(done) else None)
        try:
            await asyncio.shield(adding)
        except asyncio.CancelledError:
            self._close(stream)  # the caller left while the engine was taking it
            raise
        return stream

    def check_room(self, num_choices: int) -> None:
        """Raise what `submit` would, for so many more choices: before anything is made of a request that
        comes in a crowd."""
        if not self._accepts:
            raise _stopped()
        if num_choices > self._max_open:  # not overloaded: it would never do
            raise RequestError(f"{num_choices} choices are more than the {self._max_open} this server takes", param="n")
        if self._num_open + num_choices > self._max_open:
            raise ApiError(
                503,
                f"{self._num_open} generations are running or waiting, the most this server takes: try again later",
                code="overloaded",
                headers={"Retry-After": "1"},
            )

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine's thread, between two steps, and give its result. Raises ApiError when the
        thread has ended, or ends first."""
        return await self._begin(function)

    def _begin(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        if self._loop is None:
            raise RuntimeError("start comes first")
        future: asyncio.Future[T] = self._loop.create_future()

        def do() -> None:
            try:
                result = function()
            except Exception as error:
                self._tell(_set, future, None, error)
            else:
                self._tell(_set, future, result, None)

        def refuse() -> None:
            self._tell(_set, future, None, _stopped())

        if not self._inbox.put(Command(do, refuse)):
            future.set_exception(_stopped())
        return future

    @property
    def num_open(self) -> int:
        """Choices that wait or run."""
        return self._num_open

    @property
    def max_open(self) -> int:
        """Choices that may wait or run; more are refused."""
        return self._max_open

    @property
    def health(self) -> EngineHealth:
        """How the thread is; may be asked from anywhere."""
        start = self._step_start
        age = time.perf_counter() - start if start else 0.0
        engine = self._llm.engine
        return EngineHealth(
            alive=self._thread.is_alive(),
            failures=self._failures,
            last_error=self._last_error or engine.stats.last_error,
            step_age_s=age,
            stalled=age > STALL_S,
            failed_steps=engine.stats.failed_steps,
            stuck=engine.stats.stuck,
            drafters_off=dict(engine.speculator.failures.off),
        )

    @property
    def accepts(self) -> bool:
        """False once `refuse` was called."""
        return self._accepts

    def refuse(self) -> None:
        """Take no more requests; those that are there go on."""
        self._accepts = False

    async def drain(self, timeout_s: float) -> bool:
        """Wait until every request has ended; False when the time is up first."""
        end = time.monotonic() + timeout_s
        while self._num_open and time.monotonic() < end:
            await asyncio.sleep(0.02)
        return self._num_open == 0

    async def stop(self) -> None:
        """End what runs and the thread."""
        self.refuse()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._thread.is_alive():
            self._inbox.put(Command(self._end))
            await asyncio.to_thread(self._thread.join, STOP_S)
            if self._thread.is_alive():
                log.error("a step has not ended within %g s and is left to itself", STOP_S)

    async def _watch(self) -> None:
        """Report a step that does not end, once, and where its thread is."""
        reported = 0.0
        while True:
            await asyncio.sleep(STALL_S / 10)
            start = self._step_start
            if start and start != reported and time.perf_counter() - start > STALL_S:
                reported = start
                frame = sys._current_frames().get(self._thread.ident or 0)
                where = "".join(traceback.format_stack(frame)) if frame is not None else "nowhere\n"
                log.error("a step has been running for more than %g s; its thread is at\n%s", STALL_S, where)

    def _close(self, stream: RequestStream) -> None:
        self._inbox.put(Command(lambda: self._abort(stream)))

    def _forget(self, num_choices: int) -> None:
        self._num_open -= num_choices

    def _deliver(self, updates: list[tuple[RequestStream, ChoiceUpdate]]) -> None:
        for stream, update in updates:
            self._num_open -= update.choice is not None
            stream.deliver(update)

    # ---- the engine's thread ----

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take_commands()
                if not self._stopping and self._llm.engine.has_work:
                    self._step()
        except BaseException as error:  # nothing of the above lets anything through that we know of
            log.critical("the engine's thread broke down; every generation ends", exc_info=True)
            self._failed(error)
        finally:
            self._inbox.close()
            self._end_all()

    def _take_commands(self) -> None:
        """Run the commands that came, waiting for one when there is nothing else to do."""
        wait = not self._llm.engine.has_work
        while not self._stopping and (command := self._inbox.take(wait)) is not None:
            wait = False
            try:
                command.do()
            except Exception:
                log.exception("a command of the event loop failed")

    def _step(self) -> None:
        self._step_start = start = time.perf_counter()
        try:
            advanced = self._llm.engine.step()
        except Exception as error:  # what fails in a phase of a step the engine handles: this is a failure around it
            log.exception("a step failed outside of its sequences; those running end")
            self._failed(error)
            advanced = self._llm.engine.fail_all(error)
        seconds = time.perf_counter() - start
        self._step_start = 0.0
        self._notify(lambda observer: observer.step_done(self._llm, advanced, seconds))
        self._publish(advanced)

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self._last_error = one_line(error)

    def _publish(self, sequences: Seq[Sequence]) -> None:
        """Hand what is new of these sequences to their streams."""
        updates = []
        for sequence in sequences:
            stream, feed = self._feeds[sequence.id]
            updates.append((stream, self._read(feed, sequence)))
            if sequence.is_finished:
                del self._feeds[sequence.id]
                if not any(other.id in self._feeds for other in self._open[stream]):  # several may end in one step
                    del self._open[stream]
                self._notify(lambda observer, ended=sequence: observer.ended(ended))  # type: ignore[misc]
        if updates:
            self._tell(self._deliver, updates)

    def _read(self, feed: Feed, sequence: Sequence) -> ChoiceUpdate:
        """What is new; a sequence whose output cannot be read ends, and harms nobody else."""
        try:
            return feed.read(sequence)
        except Exception as error:
            log.exception("the output of sequence %d cannot be read, it ends", sequence.id)
            self._failed(error)
            self._llm.engine.abort(sequence, FinishReason.ERROR)
            return failed_update(sequence, error)

    def _add(self, stream: RequestStream) -> None:
        sequences = self._llm.engine.add(stream.request)
        self._open[stream] = sequences
        for sequence in sequences:
            self._feeds[sequence.id] = (stream, Feed())
        self._notify(lambda observer: observer.added(sequences))

    def _abort(self, stream: RequestStream) -> None:
        sequences = [sequence for sequence in self._open.get(stream, ()) if not sequence.is_finished]
        for sequence in sequences:
            self._llm.engine.abort(sequence)
        self._publish(sequences)

    def _notify(self, event: Callable[[EngineObserver], None]) -> None:
        for observer in self._observers:
            try:
                event(observer)
            except Exception:
                log.exception("%s failed", type(observer).__name__)

    def _end(self) -> None:
        self._stopping = True

    def _end_all(self) -> None:
        """End every stream, also with an engine of which nothing is certain any more."""
        for stream in list(self._open):
            try:
                self._abort(stream)
            except Exception:
                log.exception("a generation could not be ended in order")
        error = RuntimeError("the engine broke down")
        lost = [
            (stream, failed_update(sequence, error))
            for stream, sequences in self._open.items()
            for sequence in sequences
            if sequence.id in self._feeds
        ]
        self._open, self._feeds = {}, {}
        if lost:
            self._tell(self._deliver, lost)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop; nobody listens any more once that is closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("the event loop is closed")


def _stopped() -> ApiError:
    return ApiError(503, "the server is stopping", code="stopping", headers={"Retry-After": "5"})


def _has_failed(future: "asyncio.Future[Any]") -> bool:
    return not future.cancelled() and future.exception() is not None


def _set(future: "asyncio.Future[T]", result: T, error: Exception | None) -> None:
    if future.done():  # the caller left
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
