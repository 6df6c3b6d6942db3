"""POST /v1/responses: text in, text out, as items and events."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forerun.sequence import Request as EngineRequest
from forerun.server.answer import collect
from forerun.server.asking import chat_request
from forerun.server.documented import generating
from forerun.server.response_events import ResponseWriter
from forerun.server.schema.answers import ResponseDocument
from forerun.server.schema.chat import ChatRequest
from forerun.server.schema.responses import ResponseRequest
from forerun.server.service import Asker, Service, Serving, Tenant
from forerun.server.sse import EventStream, event
from forerun.server.streams import StreamGroup, submit_all
from forerun.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/responses", response_model=None, responses=generating(ResponseDocument))
async def responses(body: ResponseRequest, service: Serving, tenant: Asker, http: Request) -> Response:
    """Answer an input, at once or as a stream of typed events."""
    chat, request = await asyncio.to_thread(_request, body, service, tenant)
    writer = ResponseWriter(body, chat, request, service)
    group = await submit_all(service.engine, [request])
    if body.stream:
        return EventStream(_events(group, writer), group)
    writer.start()
    for answer in await collect(group, http):
        for update in answer.updates:
            writer.write(update)
    return JSONResponse(writer.document)


def _request(body: ResponseRequest, service: Service, tenant: Tenant) -> tuple[ChatRequest, EngineRequest]:
    chat = body.as_chat()
    return chat, chat_request(chat, service, tenant)


async def _events(group: StreamGroup, writer: ResponseWriter) -> AsyncIterator[bytes]:
    for some in writer.start():
        yield event(some, some["type"])
    async for _, updates in group:
        for update in updates:
            for some in writer.write(update):
                yield event(some, some["type"])
