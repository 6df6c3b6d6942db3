"""BodyLimit: reads a request's body before anybody handles it, within a length and a time.

A body without a stated length (chunked) is counted as it comes. What is too long is read to its end where that is near
and thrown away, because many clients read an answer only when they have sent everything.
"""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.asgi import headers_of, send_error
from forerun.server.errors import ApiError

DRAINED = 4  # times the limit: so much of a body that is too long is read to be polite
_DRAIN_S = 5.0
_CLOSE = {"Connection": "close"}


class _ClientLeft(Exception):
    """The client left before its body was complete: there is nobody to answer."""


class BodyLimit:
    """See the module.

    max_bytes  longest body
    timeout_s  from the headers to the end of the body
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(scope, receive)
        except ApiError as error:
            await send_error(error, scope, receive, send)
        except _ClientLeft:
            pass
        else:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        stated = headers_of(scope).get("content-length", "")
        if stated.isdigit() and len(stated) < 20 and int(stated) > self._max_bytes * DRAINED:
            raise self._too_long()
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    part, is_last = await _next(receive)
                    body += part
                    if len(body) > self._max_bytes:
                        break
                    if is_last:
                        return bytes(body)
        except TimeoutError:
            raise ApiError(
                408,
                f"the body was not complete within {self._timeout_s:g} s: send it faster",
                code="request_timeout",
                headers=_CLOSE,
            ) from None
        await self._drain(receive, len(body), is_last)
        raise self._too_long()

    async def _drain(self, receive: Receive, num_bytes: int, is_last: bool) -> None:
        try:
            async with asyncio.timeout(_DRAIN_S):
                while not is_last and num_bytes <= self._max_bytes * DRAINED:
                    part, is_last = await _next(receive)
                    num_bytes += len(part)
        except TimeoutError:
            pass

    def _too_long(self) -> ApiError:
        return ApiError(
            413,
            f"the body is longer than {self._max_bytes} bytes, the most this server reads: shorten it",
            code="body_too_large",
            headers=_CLOSE,
        )


async def _next(receive: Receive) -> tuple[bytes, bool]:
    """The next part of a body, and whether it is the last."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise _ClientLeft
    return message.get("body", b""), not message.get("more_body", False)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body at once, then what comes."""
    is_given = False

    async def replayed() -> Message:
        nonlocal is_given
        if is_given:
            return await receive()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
