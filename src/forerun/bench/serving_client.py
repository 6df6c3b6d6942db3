"""A client of streaming chat completions that costs little: bytes and their times are kept, and read when all is over.

One connection a request, closed by the server at the end of its answer. Nothing is parsed while others are measured.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from forerun.errors import UsageError


@dataclass(frozen=True)
class Target:
    """Where the endpoint is. headers: further ones, such as Authorization"""

    host: str
    port: int
    path: str
    is_tls: bool
    headers: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, url: str, api_key: str | None = None) -> "Target":
        """The chat completions of an OpenAI-compatible base URL such as http://127.0.0.1:8000/v1. Raises UsageError."""
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no http URL: give a base URL such as http://127.0.0.1:8000/v1")
        base = parts.path.rstrip("/")
        path = f"{base if base.endswith('/v1') else base + '/v1'}/chat/completions"
        port = parts.port or (443 if parts.scheme == "https" else 80)
        headers = (("Authorization", f"Bearer {api_key}"),) if api_key else ()
        return cls(parts.hostname, port, path, parts.scheme == "https", headers)

    def request(self, body: Mapping[str, Any]) -> bytes:
        """The bytes of a request."""
        raw = json.dumps(body, ensure_ascii=False).encode()
        lines = [f"POST {self.path} HTTP/1.1", f"Host: {self.host}:{self.port}", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(raw)}", "Accept: text/event-stream", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + raw


@dataclass
class Exchange:
    """What came, and when, on time.perf_counter's clock. start_s: when the request was due"""

    start_s: float
    arrivals: list[tuple[float, bytes]] = field(default_factory=list)
    end_s: float = 0.0
    error: str = ""


class _Receiver(asyncio.Protocol):
    def __init__(self, exchange: Exchange, request: bytes, done: "asyncio.Future[None]") -> None:
        self._exchange, self._request, self._done = exchange, request, done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._exchange.arrivals.append((time.perf_counter(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._exchange.end_s = time.perf_counter()
        if exc is not None:
            self._exchange.error = f"{type(exc).__name__}: {exc}"
        if not self._done.done():
            self._done.set_result(None)


async def exchange(
    target: Target, request: bytes, timeout_s: float, due_s: float | None = None, into: Exchange | None = None
) -> Exchange:
    """Send a request and take the answer to its end. Failures are in the result.

    due_s  when it should have been sent, if that was earlier than now: waiting counts
    into   where to put what comes, for who wants it also when this is cancelled
    """
    loop = asyncio.get_running_loop()
    result = into or Exchange(time.perf_counter() if due_s is None else due_s)
    done: asyncio.Future[None] = loop.create_future()
    context = ssl.create_default_context() if target.is_tls else None
    transport: asyncio.BaseTransport | None = None
    try:
        async with asyncio.timeout(timeout_s):
            transport, _ = await loop.create_connection(
                lambda: _Receiver(result, request, done), target.host, target.port, ssl=context
            )
            await done
    except TimeoutError:
        result.error = f"no end within {timeout_s:g} s"
    except OSError as error:
        result.error = f"{type(error).__name__}: {error}"
    finally:
        if transport is not None:
            transport.close()
    result.end_s = result.end_s or time.perf_counter()
    return result


# ---- reading what came ----


@dataclass
class Reply:
    """An answer as it was received. Times are on time.perf_counter's clock.

    chunk_s  when pieces of text arrived; those that came in one read count once
    error    "" for an answer that is whole
    speculation  the block of a forerun server; other servers have none
    """

    start_s: float
    end_s: float
    chunk_s: list[float] = field(default_factory=list)
    text: str = ""
    finish_reason: str = ""
    usage: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    speculation: Mapping[str, Any] = field(default_factory=dict)


def read_reply(exchange: Exchange) -> Reply:
    """Parse the bytes of an exchange."""
    reply = Reply(exchange.start_s, exchange.end_s, error=exchange.error)
    try:
        status, events = _events(exchange.arrivals)
        if status != 200:
            reply.error = reply.error or f"status {status}"
            return reply
        for when, raw in events:
            _take_event(reply, when, raw)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        reply.error = reply.error or f"an answer that cannot be read: {type(error).__name__}: {error}"
    if not reply.error and not reply.finish_reason:
        reply.error = "the stream ended early"
    return reply


def _take_event(reply: Reply, when: float, raw: bytes) -> None:
    if raw == b"[DONE]":
        return
    document = json.loads(raw)
    if "error" in document:
        reply.error = f"error event: {document['error'].get('message', document['error'])}"
        return
    reply.usage = document.get("usage") or reply.usage
    reply.speculation = document.get("speculation") or reply.speculation
    for choice in document.get("choices", ()):
        delta = choice.get("delta") or {}
        text = (delta.get("content") or "") + (delta.get("reasoning_content") or "")
        reply.text += text
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        if text and (not reply.chunk_s or reply.chunk_s[-1] != when):
            reply.chunk_s.append(when)


def _events(arrivals: Seq[tuple[float, bytes]]) -> tuple[int, list[tuple[float, bytes]]]:
    """Status, and the data of every event with the time at which its last byte arrived. Raises ValueError."""
    whole = b"".join(data for _, data in arrivals)
    head, separator, _ = whole.partition(b"\r\n\r\n")
    if not separator:
        raise ValueError("no HTTP answer")
    status = int(head.split(b" ", 2)[1])
    is_chunked = b"transfer-encoding: chunked" in head.lower()
    parts = _body(whole, len(head) + 4, is_chunked)
    ends, total = [], 0  # of arrivals, in bytes of the whole
    for when, data in arrivals:
        total += len(data)
        ends.append((total, when))
    events, pending, at = [], b"", 0
    for end, part in parts:
        pending += part.replace(b"\r\n", b"\n")
        while ends[at][0] < end:
            at += 1
        *found, pending = pending.split(b"\n\n")
        for event in found:
            data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
            if data:
                events.append((ends[at][1], data))
    return status, events


def _body(whole: bytes, start: int, is_chunked: bool) -> list[tuple[int, bytes]]:
    """(end in the whole, bytes) of the parts of a body."""
    if not is_chunked:
        # Without frames every line may be an event's end, so that times stay those of its arrival.
        parts, at = [], start
        while at < len(whole):
            end = whole.find(b"\n\n", at)
            end = len(whole) if end < 0 else end + 2
            parts.append((end, whole[at:end]))
            at = end
        return parts
    parts, at = [], start
    while at < len(whole):
        line_end = whole.find(b"\r\n", at)
        if line_end < 0:
            break
        size = int(whole[at:line_end].split(b";")[0], 16)
        end = line_end + 2 + size
        if size == 0 or end > len(whole):
            break
        parts.append((end, whole[line_end + 2 : end]))
        at = end + 2
    return parts
