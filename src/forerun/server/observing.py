"""Observing: the outermost middleware. It gives every request an id and an exchange, and reports when it is over.

It also answers 500 for what nobody expected, so that the id is in that answer too.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.asgi import headers_of, send_error
from forerun.server.errors import ApiError
from forerun.server.exchange import Exchange, choose_id, enter_exchange
from forerun.server.logs import fields
from forerun.server.metrics import Metrics
from forerun.server.tracing import Tracer

log = logging.getLogger(__name__)


class Observing:
    """See the module. reports: called with every exchange that is over."""

    def __init__(
        self, app: ASGIApp, *, metrics: Metrics, tracer: Tracer, reports: Seq[Callable[[Exchange], None]]
    ) -> None:
        self._app = app
        self._metrics = metrics
        self._tracer = tracer
        self._reports = (metrics.exchange_ended, tracer.end, *reports)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = headers_of(scope)
        exchange = Exchange(
            choose_id(headers.get("x-request-id")),
            scope["method"],
            scope["path"],
            client=_client(scope),
            on_end=self._over,
        )
        enter_exchange(exchange)
        self._tracer.begin(exchange, headers)
        self._metrics.http_in_flight.inc()
        try:
            await self._run(exchange, scope, receive, send)
        finally:
            self._metrics.http_in_flight.dec()
            exchange.route = getattr(scope.get("route"), "path", "")
            exchange.answered()

    async def _run(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", exchange.id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:
            log.exception("a request failed", extra=fields(request_id=exchange.id))
            if exchange.status:  # an answer that has begun can only be broken off
                exchange.refused(exchange.status, "internal_error", str(error))
                return
            failure = ApiError(500, "the server failed on this request: see its log", code="internal_error")
            await send_error(failure, scope, receive, send_with_id)

    def _over(self, exchange: Exchange) -> None:
        for report in self._reports:
            try:
                report(exchange)
            except Exception:
                log.exception("a report about request %s failed", exchange.id)


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return f"{client[0]}:{client[1]}" if client else ""
