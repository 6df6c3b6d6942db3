"""Server-sent events: one JSON document per event, [DONE] at the end, and the answer ends when the client leaves."""

import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import StreamingResponse

from forerun.server.asgi import note_refusal
from forerun.server.errors import ApiError

_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}  # a proxy must not collect events


def event(document: Any, name: str | None = None) -> bytes:
    """One event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(document, ensure_ascii=False, separators=(',', ':'))}\n\n".encode()


def stream_response(documents: AsyncIterator[Any]) -> StreamingResponse:
    """Answer with a stream of documents. An ApiError on the way becomes the last event, because the status is sent."""
    return StreamingResponse(_events(documents), media_type="text/event-stream", headers=_HEADERS)


async def _events(documents: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    try:
        async for document in documents:
            yield event(document)
    except ApiError as error:
        note_refusal(error)
        yield event(error.body)
    yield b"data: [DONE]\n\n"
