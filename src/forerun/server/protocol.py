"""TimedProtocol: HTTP/1.1 on a connection that is closed when a request's headers take too long to come.

uvicorn bounds the time between two requests, but not that of a first one, nor of headers that trickle in.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


class TimedProtocol(H11Protocol):
    """headers_s: from the connection, or the first byte of a further request, to the end of its headers."""

    headers_s = 30.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Headers are awaited while the client's side of the exchange has not begun."""
        if self.conn.their_state is not h11.IDLE:
            self._disarm()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.headers_s, self._too_late)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def timed_protocol(headers_s: float) -> type[TimedProtocol]:
    """The protocol with this limit."""
    return type("TimedProtocol", (TimedProtocol,), {"headers_s": headers_s})
