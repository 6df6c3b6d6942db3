"""BodyLimit: reads a request's body before anybody handles it, within a length and a time.

A body without a stated length (chunked) is counted as it comes. What nobody wants to handle is read to its end where
that is near, and thrown away, because many clients read an answer only when they have sent everything; a connection
whose body goes on behind that is closed with the answer.
"""

import asyncio
import contextlib
from collections.abc import Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forerun.server.asgi import headers_of, send_error
from forerun.server.errors import ApiError

DRAINED_BYTES = 32 << 20  # so much of a body that is not wanted is read to be polite
DRAIN_S = 5.0
_CLOSE = {"Connection": "close"}


class ClientLeft(Exception):
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
        if _stated_len(headers_of(scope)) > self._max_bytes:
            await refuse(self._too_long(), scope, receive, send)
            return
        body, is_complete = bytearray(), False
        try:
            async with asyncio.timeout(self._timeout_s):
                while not is_complete and len(body) <= self._max_bytes:
                    part, is_complete = await _next(receive)
                    body += part
        except ClientLeft:
            return
        except TimeoutError:
            late = f"the body was not complete within {self._timeout_s:g} s: send it faster"
            await send_error(ApiError(408, late, code="request_timeout", headers=_CLOSE), scope, receive, send)
            return
        if len(body) > self._max_bytes:
            await refuse(self._too_long(), scope, receive, send, is_complete=is_complete)
            return
        await self._app(scope, _replay(bytes(body), receive), send)

    def _too_long(self) -> ApiError:
        much = f"the body is longer than {self._max_bytes} bytes, the most this server reads: shorten it"
        return ApiError(413, much, code="body_too_large")


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send, *, is_complete: bool = False) -> None:
    """Answer with an error a request whose body is of no interest. is_complete: it was read to its end"""
    try:
        ends = is_complete or (_may_be_drained(headers_of(scope)) and await _drain(receive))
    except ClientLeft:
        return
    await send_error(error, scope, receive, send, {} if ends else _CLOSE)


def _may_be_drained(headers: Mapping[str, str]) -> bool:
    """Not what is huge by its own account, nor what the client keeps back until it is asked for."""
    return _stated_len(headers) <= DRAINED_BYTES and "expect" not in headers


def _stated_len(headers: Mapping[str, str]) -> int:
    """Length that a body shall have; 0 where that is not said. What is no number the protocol has refused."""
    stated = headers.get("content-length", "")
    return int(stated[:20]) if stated.isdigit() else 0


async def _drain(receive: Receive) -> bool:
    """Read a body's rest; False when it goes on and on."""
    num_bytes, is_complete = 0, False
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_S):
            while not is_complete and num_bytes <= DRAINED_BYTES:
                part, is_complete = await _next(receive)
                num_bytes += len(part)
    return is_complete


async def _next(receive: Receive) -> tuple[bytes, bool]:
    """The next part of a body, and whether it is the last."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientLeft
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
