"""Server-sent events: one JSON document per event, and the generation ends with the answer, however that ends."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from forerun.server.asgi import note_refusal
from forerun.server.errors import ApiError
from forerun.server.streams import StreamGroup

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy must not collect events


def event(document: Any, name: str | None = None) -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


class EventStream(StreamingResponse):
    """An answer of events. A client that has left before the first one ends the generation too."""

    def __init__(self, events: AsyncIterator[bytes], group: StreamGroup) -> None:
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._group = group

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._group.close()


def stream_response(documents: AsyncIterator[Any], group: StreamGroup) -> EventStream:
    """Answer with a stream of documents. An ApiError on the way becomes the last event, because the status is sent."""
    return EventStream(_events(documents), group)


async def _events(documents: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    try:
        async for document in documents:
            yield event(document)
    except ApiError as error:
        note_refusal(error)
        yield event(error.body)
    yield b"data: [DONE]\n\n"
