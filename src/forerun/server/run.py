"""serve: run the application until a signal ends it.

SIGTERM or SIGINT   take no more requests, finish those that run, within the grace period; what is still running then
                    ends with an error event, so that every stream has an end
a second one        end at once
SIGHUP              read the keys' file and the certificate again
"""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

from forerun.errors import UsageError
from forerun.llm import LLM
from forerun.server.app import build_app
from forerun.server.async_engine import AsyncEngine
from forerun.server.config import ServerConfig
from forerun.server.logs import fields
from forerun.server.operations import Operations
from forerun.server.preparing import BACKLOG, Prepared, load_certificate, prepare
from forerun.server.protocol import timed_protocol
from forerun.server.tracing import make_tracer

log = logging.getLogger(__name__)
CUT_SHORT = 130  # exit code when a second signal came
AT_ONCE_S = 2.0  # the most that takes
FLUSH_S = 5.0  # for answers to reach their readers once all generations have ended
KEEP_ALIVE_S = 75  # between two requests of a connection; longer than clients and proxies keep theirs


class Server(uvicorn.Server):
    """uvicorn's server with our way to end it. engine: there once the application has started."""

    def __init__(self, config: uvicorn.Config, grace_s: float, engine: Callable[[], AsyncEngine]) -> None:
        super().__init__(config)
        self._grace_s = grace_s
        self._engine = engine
        self._winding_down: asyncio.Task[None] | None = None
        self.was_cut_short = False

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are handled on the loop by `wind_down`; uvicorn would raise them again at the end."""
        yield

    def wind_down(self, name: str) -> None:
        """The first call ends gracefully, a second one at once."""
        if self._winding_down is not None:
            self._end_at_once(name)
            return
        self.should_exit = True
        if not self.started:
            return
        engine = self._engine()
        log.info("%s: finishing %d generations within %g s", name, engine.num_open, self._grace_s)
        engine.refuse()
        self._winding_down = asyncio.ensure_future(self._finish(engine))

    def _end_at_once(self, name: str) -> None:
        log.warning("%s: ending at once", name)
        self.was_cut_short = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()  # what is being answered ends as if its client had left
        asyncio.get_running_loop().call_later(AT_ONCE_S, os._exit, CUT_SHORT)  # also when a step does not end

    async def _finish(self, engine: AsyncEngine) -> None:
        if not await engine.drain(self._grace_s):
            log.warning("the grace period is over: %d generations are cut short", engine.num_open)
            await engine.stop()


def serve(llm: LLM, config: ServerConfig, prepared: Prepared | None = None) -> int:
    """Serve until a signal ends it; returns the exit code: 0, or CUT_SHORT."""
    prepared = prepared or prepare(config)
    operations = Operations(config, prepared.access, make_tracer(config.served_model))
    app = build_app(llm, config, operations)
    settings = uvicorn.Config(
        app,
        http=timed_protocol(config.receive_timeout_s),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=max(1, int(config.shutdown_grace_s + FLUSH_S)),
    )
    settings.load()
    settings.ssl = prepared.tls
    server = Server(settings, config.shutdown_grace_s, lambda: app.state.service.engine)
    asyncio.run(_run(server, config, prepared))
    return CUT_SHORT if server.was_cut_short else 0


async def _run(server: Server, config: ServerConfig, prepared: Prepared) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.wind_down, number.name)
    loop.add_signal_handler(signal.SIGHUP, _reload, config, prepared)
    serving = asyncio.ensure_future(server.serve(sockets=[prepared.listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    if server.started:
        gc.collect()
        gc.freeze()  # looking through a vocabulary for garbage would stop every stream for some 100 ms
        log.info("ready", extra=fields(url=f"{prepared.url(config.host)}/v1"))
    await serving
    gc.unfreeze()  # else what is frozen outlives the interpreter, and the native module complains of leaks


def _reload(config: ServerConfig, prepared: Prepared) -> None:
    prepared.access.reload()
    if prepared.tls is not None:
        try:
            load_certificate(prepared.tls, config)
        except UsageError as error:
            log.error("the certificate stays as it was: %s", error)
        else:
            log.info("the certificate was read again")
