"""What the middlewares share: the types of ASGI, headers as a map, and an error as an answer."""

from collections.abc import Mapping

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from forerun.server.errors import ApiError
from forerun.server.exchange import current_exchange


def headers_of(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name; of a repeated one the first."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.decode("latin-1"), value.decode("latin-1"))
    return found


def error_response(error: ApiError, more: Mapping[str, str] | None = None) -> JSONResponse:
    """The answer that an error is, noted for the log and the metrics."""
    note_refusal(error)
    return JSONResponse(error.body, error.status_code, {**(error.headers or {}), **(more or {})})


def note_refusal(error: ApiError) -> None:
    """The request at hand ends with this error, in its answer or on its stream."""
    exchange = current_exchange()
    if exchange is not None:
        exchange.refused(error.status_code, getattr(error, "reason", None) or error.code or "", error.message)


async def send_error(
    error: ApiError, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str] | None = None
) -> None:
    """Answer with an error from within a middleware. headers: beside the error's own"""
    await error_response(error, headers)(scope, receive, send)
