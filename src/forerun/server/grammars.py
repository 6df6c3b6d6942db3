"""Grammars: compiling strangers' grammars beside the event loop, a few at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from forerun.grammar.compiler import GrammarCompiler
from forerun.grammar.guard import GrammarGuard
from forerun.grammar.source import Grammar
from forerun.sequence import TokenMask
from forerun.server.errors import ApiError

MAX_WAITING = 64  # grammars; each takes milliseconds, a hostile one seconds


class Grammars:
    """Belongs to the event loop. A thread of its own compiles, so that slow grammars only wait for each other."""

    def __init__(self, compiler: GrammarCompiler, guard: GrammarGuard | None = None) -> None:
        self._compiler = compiler
        self._guard = guard or GrammarGuard()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="forerun-grammars")
        self._num_waiting = 0

    async def compile(self, grammar: Grammar) -> Callable[[], TokenMask]:
        """What makes the masks of a request. Raises RequestError for what is no grammar or takes too much, ApiError
        when too many wait."""
        if self._compiler.knows(grammar):
            return self._compiler.compile(grammar)
        if self._num_waiting >= MAX_WAITING:
            raise ApiError(
                503,
                f"{self._num_waiting} grammars wait to be compiled, the most this server takes: try again later",
                code="overloaded",
                headers={"Retry-After": "3"},
            )
        self._num_waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._try_and_compile, grammar)
        finally:
            self._num_waiting -= 1

    def close(self) -> None:
        """End the thread and the process behind it."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._guard.close()

    def _try_and_compile(self, grammar: Grammar) -> Callable[[], TokenMask]:
        if not self._compiler.knows(grammar):
            self._guard.check(grammar)
        return self._compiler.compile(grammar)
