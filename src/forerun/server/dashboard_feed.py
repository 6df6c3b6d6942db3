"""SharedSampling: one loop of sampling for all who watch, which runs only while somebody does."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class SharedSampling(Generic[T]):
    """Belongs to the event loop.

    sample      makes one sample; when it raises, all who watch are told the end
    interval_s  between two samples
    goes_on     asked before each sample; False ends the watching, so that a server that stops waits for no watcher
    """

    def __init__(self, sample: Callable[[], Awaitable[T]], interval_s: float, goes_on: Callable[[], bool]) -> None:
        self._sample, self._interval_s, self._goes_on = sample, interval_s, goes_on
        self._task: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()  # of the next sample; every sample has one of its own
        self._latest: T | None = None
        self._num_watchers = 0

    @property
    def num_watchers(self) -> int:
        """How many watch now."""
        return self._num_watchers

    @property
    def is_sampling(self) -> bool:
        """True while the loop runs."""
        return self._task is not None and not self._task.done()

    async def watch(self) -> AsyncGenerator[T, None]:
        """Every sample from now on; who is slow misses some."""
        self._num_watchers += 1
        if not self.is_sampling:
            self._task = asyncio.create_task(self._run())
        try:
            while True:
                await self._fresh.wait()
                if (sample := self._latest) is None:
                    return
                yield sample
        finally:
            self._num_watchers -= 1
            if self._num_watchers == 0 and self._task is not None:
                self._task.cancel()

    async def _run(self) -> None:
        try:
            while self._goes_on():
                self._publish(await self._sample())
                await asyncio.sleep(self._interval_s)
        except Exception:
            log.exception("sampling failed; those who watch are sent away")
        finally:
            self._publish(None)

    def _publish(self, sample: T | None) -> None:
        self._latest = sample
        fresh, self._fresh = self._fresh, asyncio.Event()
        fresh.set()
