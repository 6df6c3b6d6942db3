"""AsyncEngine: the engine on a thread of its own, used from an event loop.

The thread alone touches the engine. It takes commands between steps, runs steps while there is work, and hands what a
step yielded to the loop in one call. A stream keeps at most the output of its own request, however slowly it is read.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from forerun.errors import one_line
from forerun.llm import LLM
from forerun.sequence import FinishReason, Request, Sequence
from forerun.server.errors import ApiError
from forerun.server.updates import ChoiceUpdate, Feed

log = logging.getLogger(__name__)
T = TypeVar("T")


class EngineObserver(Protocol):
    """Told what happens, on the engine's thread: be quick, keep what you need, do not raise."""

    def added(self, sequences: Seq[Sequence]) -> None: ...

    def step_done(self, llm: LLM, advanced: Seq[Sequence], seconds: float) -> None: ...

    def ended(self, sequence: Sequence) -> None: ...


@dataclass(frozen=True)
class EngineHealth:
    """alive        the thread runs
    failures     steps that failed outside of what the engine retries by itself, each ending the requests then running
    last_error   one line about the last of them
    step_age_s   how long the present step has been running, 0 between steps
    """

    alive: bool
    failures: int
    last_error: str
    step_age_s: float


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
        """Everything that came since the last turn, until all choices have ended. Leaving early ends the request."""
        try:
            while self._num_open or self._updates:
                await self._ready.wait()
                self._ready.clear()
                updates, self._updates = self._updates, []
                if updates:
                    yield updates
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
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._open: dict[RequestStream, list[Sequence]] = {}  # of the engine's thread
        self._feeds: dict[int, tuple[RequestStream, Feed]] = {}  # by sequence id, of the engine's thread
        self._num_open = 0  # choices submitted and not ended, of the event loop
        self._accepts = True
        self._stopping = False
        self._failures, self._last_error, self._step_start = 0, "", 0.0
        self._thread = threading.Thread(target=self._run, name="forerun-engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    # ---- used on the event loop ----

    def start(self) -> None:
        """Start the thread; updates go to the running loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def submit(self, request: Request) -> RequestStream:
        """Queue a request. Raises RequestError for what can never be served, ApiError when too many wait."""
        if not self._accepts:
            raise ApiError(503, "the server is stopping", code="stopping", headers={"Retry-After": "5"})
        if self._num_open + request.params.n > self._max_open:
            raise ApiError(
                503,
                f"{self._num_open} generations are running or waiting, the most this server takes: try again later",
                code="overloaded",
                headers={"Retry-After": "1"},
            )
        stream = RequestStream(request, self._close)
        self._num_open += request.params.n
        try:
            await self.call(lambda: self._add(stream))
        except asyncio.CancelledError:
            self._close(stream)  # the caller left while the engine was taking it
            raise
        return stream

    async def call(self, function: Callable[[], T]) -> T:
        """Run a function on the engine's thread, between two steps, and give its result."""
        if self._loop is None or not self._thread.is_alive():
            raise RuntimeError("the engine's thread is not running")
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = function()
            except Exception as error:
                self._tell(_set, future, None, error)
            else:
                self._tell(_set, future, result, None)

        self._inbox.put(run)
        return await future

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
        return EngineHealth(self._thread.is_alive(), self._failures, self._last_error, age)

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
        if self._thread.is_alive():
            self._inbox.put(self._end)
            await asyncio.to_thread(self._thread.join)

    def _close(self, stream: RequestStream) -> None:
        self._inbox.put(lambda: self._abort(stream))

    def _forget(self, num_choices: int) -> None:
        self._num_open -= num_choices

    def _deliver(self, updates: list[tuple[RequestStream, ChoiceUpdate]]) -> None:
        for stream, update in updates:
            self._num_open -= update.choice is not None
            stream.deliver(update)

    # ---- the engine's thread ----

    def _run(self) -> None:
        while not self._stopping:
            self._take_commands()
            if not self._stopping and self._llm.engine.has_work:
                self._step()

    def _take_commands(self) -> None:
        """Run the commands that came, waiting for one when there is nothing else to do."""
        wait = not self._llm.engine.has_work
        while True:
            try:
                command = self._inbox.get(block=wait)
            except queue.Empty:
                return
            wait = False
            try:
                command()
            except Exception:
                log.exception("a command of the event loop failed")

    def _step(self) -> None:
        self._step_start = start = time.perf_counter()
        try:
            advanced = self._llm.engine.step()
        except Exception as error:  # the engine retries alone what fails inside a step; this is a failure around it
            log.exception("a step failed outside of its sequences; those running end")
            self._failures += 1
            self._last_error = one_line(error)
            advanced = self._fail_running(error)
        seconds = time.perf_counter() - start
        self._step_start = 0.0
        self._notify(lambda observer: observer.step_done(self._llm, advanced, seconds))
        self._publish(advanced)

    def _fail_running(self, error: Exception) -> list[Sequence]:
        running = list(self._llm.engine.scheduler.running)
        for sequence in running:
            sequence.error = one_line(error)
            self._llm.engine.abort(sequence, FinishReason.ERROR)
        return running

    def _publish(self, sequences: Seq[Sequence]) -> None:
        updates = []
        for sequence in sequences:
            stream, feed = self._feeds[sequence.id]
            updates.append((stream, feed.read(sequence)))
            if sequence.is_finished:
                del self._feeds[sequence.id]
                if all(other.is_finished for other in self._open.get(stream, ())):
                    self._open.pop(stream, None)  # gone already where another choice has ended in the same step
                self._notify(lambda observer, ended=sequence: observer.ended(ended))  # type: ignore[misc]
        if updates:
            self._tell(self._deliver, updates)

    def _add(self, stream: RequestStream) -> None:
        try:
            sequences = self._llm.engine.add(stream.request)
        except Exception:
            self._tell(self._forget, stream.request.params.n)
            raise
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
        for stream in list(self._open):
            self._abort(stream)
        self._stopping = True

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function on the event loop; nobody listens any more once that is closed."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            log.debug("the event loop is closed")


def _set(future: "asyncio.Future[T]", result: T, error: Exception | None) -> None:
    if future.done():  # the caller left
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
