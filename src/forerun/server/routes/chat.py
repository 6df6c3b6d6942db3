"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forerun.generation import Choice
from forerun.server.answer import Answer, collect, logprob_entry, token_detail, usage
from forerun.server.asking import chat_request
from forerun.server.async_engine import RequestStream
from forerun.server.errors import failure_of
from forerun.server.message import deltas_of, finish_reason, message_of
from forerun.server.parsing import OutputParser, make_parser
from forerun.server.schema.chat import ChatRequest
from forerun.server.service import Asker, Service, Serving
from forerun.server.sse import stream_response
from forerun.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, service: Serving, tenant: Asker, http: Request) -> Response:
    """Answer a conversation, at once or as a stream of server-sent events."""
    stream = await service.engine.submit(chat_request(body, service, tenant))
    head = {
        "id": f"chatcmpl-{stream.request.id}",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": service.llm.numerics_id,
    }
    parsers = {index: make_parser(body, stream.request, service) for index in range(stream.request.params.n)}
    if body.stream:
        return stream_response(_chunks(stream, body, service, head, parsers))
    answers = await collect(stream, http)
    return JSONResponse(
        head
        | {
            "object": "chat.completion",
            "choices": [_choice(answer, body, service, parsers[answer.choice.index]) for answer in answers],
            "usage": usage(len(stream.request.prompt), [answer.choice for answer in answers]),
        }
    )


# ---- whole answers ----


def _choice(answer: Answer, body: ChatRequest, service: Service, parser: OutputParser) -> dict[str, Any]:
    parts = parser.push(answer.choice.text) + parser.finish()
    has_calls = any(part.tool_call is not None for part in parts)
    document = {
        "index": answer.choice.index,
        "message": message_of(parts),
        "logprobs": _logprobs(answer, service) if body.logprobs else None,
        "finish_reason": finish_reason(answer.choice, has_calls),
    }
    if body.token_details:
        document["token_details"] = [token_detail(token) for token in answer.tokens]
    return document


def _logprobs(answer: Answer, service: Service) -> dict[str, Any]:
    entries = answer.choice.logprobs or ()
    return {"content": [logprob_entry(entry, service.llm.tokenizer) for entry in entries], "refusal": None}


# ---- streams ----


async def _chunks(
    stream: RequestStream, body: ChatRequest, service: Service, head: dict[str, Any], parsers: dict[int, OutputParser]
) -> AsyncIterator[dict[str, Any]]:
    with_usage = body.stream_options is not None and body.stream_options.include_usage
    head = head | {"object": "chat.completion.chunk"} | ({"usage": None} if with_usage else {})
    for index in parsers:
        yield head | {"choices": [_delta(index, {"role": "assistant", "content": ""})]}
    choices: list[Choice] = []
    callers: set[int] = set()  # choices that have called a tool
    async for updates in stream:
        for update in updates:
            parser = parsers[update.index]
            parts = parser.push(update.text) + (parser.finish() if update.choice is not None else [])
            if any(part.tool_call is not None for part in parts):
                callers.add(update.index)
            extra: dict[str, Any] = {}
            if body.logprobs:
                entries = [token.logprob for token in update.tokens if token.logprob is not None]
                extra["logprobs"] = {
                    "content": [logprob_entry(entry, service.llm.tokenizer) for entry in entries],
                    "refusal": None,
                }
            if body.token_details:
                extra["token_details"] = [token_detail(token) for token in update.tokens]
            for delta in deltas_of(parts) or ([{}] if extra and update.tokens else []):
                yield head | {"choices": [_delta(update.index, delta) | extra]}
                extra = {}
            if update.choice is not None:
                choices.append(update.choice)
                if (failure := failure_of(update.choice)) is not None:
                    raise failure
                yield head | {
                    "choices": [_delta(update.index, {}, finish_reason(update.choice, update.index in callers))]
                }
    if with_usage:
        yield head | {"choices": [], "usage": usage(len(stream.request.prompt), choices)}


def _delta(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
