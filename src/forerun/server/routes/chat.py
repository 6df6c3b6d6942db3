"""POST /v1/chat/completions."""

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forerun.generation import Choice, make_request
from forerun.server.answer import Answer, collect, logprob_entry, token_detail, usage
from forerun.server.async_engine import RequestStream
from forerun.server.errors import failure_of
from forerun.server.parsing import OutputParser, Part, PlainText
from forerun.server.schema.chat import ChatMessage, ChatRequest
from forerun.server.service import Asker, Service, Serving, Tenant
from forerun.server.sse import stream_response
from forerun.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions", response_model=None)
async def chat_completions(body: ChatRequest, service: Serving, tenant: Asker, http: Request) -> Response:
    """Answer a conversation, at once or as a stream of server-sent events."""
    stream = await service.engine.submit(_request(body, service, tenant))
    head = {
        "id": f"chatcmpl-{stream.request.id}",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": service.llm.numerics_id,
    }
    parsers = {index: make_parser(body, service) for index in range(stream.request.params.n)}
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


def make_parser(body: ChatRequest, service: Service) -> OutputParser:
    """What reads the model's text for this request."""
    return PlainText()


def _request(body: ChatRequest, service: Service, tenant: Tenant) -> Any:
    prompt = service.llm.chat_prompt([_message(message) for message in body.messages])
    params = body.sampling(
        body.max_completion_tokens or body.max_tokens, (body.top_logprobs or 0) if body.logprobs else None
    )
    salt = f"{tenant.salt}/{body.cache_salt or ''}"
    return make_request(
        service.llm.tokenizer, prompt, params, id=secrets.token_hex(12), salt=salt, priority=body.priority
    )


def _message(message: ChatMessage) -> dict[str, str]:
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


# ---- whole answers ----


def _choice(answer: Answer, body: ChatRequest, service: Service, parser: OutputParser) -> dict[str, Any]:
    parts = parser.push(answer.choice.text) + parser.finish()
    message: dict[str, Any] = {"role": "assistant", "content": "".join(part.content for part in parts)}
    document = {
        "index": answer.choice.index,
        "message": message,
        "logprobs": _logprobs(answer, service) if body.logprobs else None,
        "finish_reason": answer.choice.finish_reason.value,
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
    async for updates in stream:
        for update in updates:
            parser = parsers[update.index]
            parts = parser.push(update.text) + (parser.finish() if update.choice is not None else [])
            extra: dict[str, Any] = {}
            if body.logprobs:
                entries = [token.logprob for token in update.tokens if token.logprob is not None]
                extra["logprobs"] = {
                    "content": [logprob_entry(entry, service.llm.tokenizer) for entry in entries],
                    "refusal": None,
                }
            if body.token_details:
                extra["token_details"] = [token_detail(token) for token in update.tokens]
            for delta in _deltas(parts) or ([{}] if extra and update.tokens else []):
                yield head | {"choices": [_delta(update.index, delta) | extra]}
                extra = {}
            if update.choice is not None:
                choices.append(update.choice)
                if (failure := failure_of(update.choice)) is not None:
                    raise failure
                yield head | {"choices": [_delta(update.index, {}, update.choice.finish_reason.value)]}
    if with_usage:
        yield head | {"choices": [], "usage": usage(len(stream.request.prompt), choices)}


def _deltas(parts: list[Part]) -> list[dict[str, Any]]:
    content = "".join(part.content for part in parts)
    return [{"content": content}] if content else []


def _delta(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
