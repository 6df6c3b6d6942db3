"""POST /v1/responses: text in, text out, as items and events."""

from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forerun.server.answer import collect
from forerun.server.documented import generating
from forerun.server.guiding import ask_chat
from forerun.server.response_events import ResponseWriter
from forerun.server.schema.answers import ResponseDocument
from forerun.server.schema.responses import ResponseRequest
from forerun.server.service import Asker, Serving
from forerun.server.sse import EventStream, event
from forerun.server.streams import StreamGroup, submit_all
from forerun.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/responses", response_model=None, responses=generating(ResponseDocument))
async def responses(body: ResponseRequest, service: Serving, tenant: Asker, http: Request) -> Response:
    """Answer an input, at once or as a stream of typed events."""
    chat = body.as_chat()
    service.engine.check_room(1)
    request = await ask_chat(chat, service, tenant)
    writer = ResponseWriter(body, chat, request, service)
    group = await submit_all(service.engine, [request])
    if body.stream:
        return EventStream(_events(group, writer), group)
    writer.start()
    for answer in await collect(group, http):
        for update in answer.updates:
            writer.write(update)
    return JSONResponse(writer.document)


async def _events(group: StreamGroup, writer: ResponseWriter) -> AsyncIterator[bytes]:
    for some in writer.start():
        yield event(some, some["type"])
    async for _, updates in group:
        for update in updates:
            for some in writer.write(update):
                yield event(some, some["type"])
