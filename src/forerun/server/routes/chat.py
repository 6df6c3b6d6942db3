"""POST /v1/chat/completions."""

import time
from collections.abc import AsyncIterator, Mapping
from collections.abc import Sequence as Seq
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forerun.results import Choice
from forerun.server.answer import Answer, collect, logprob_entry, speculation, token_detail, usage
from forerun.server.documented import generating
from forerun.server.errors import failure_of
from forerun.server.guiding import ask_chat
from forerun.server.message import deltas_of, finish_reason, message_of
from forerun.server.param_names import goes_by
from forerun.server.reading import ChoiceReader
from forerun.server.schema.answers import ChatCompletion
from forerun.server.schema.chat import ChatRequest
from forerun.server.service import Asker, Service, Serving
from forerun.server.sse import stream_response
from forerun.server.streams import StreamGroup, submit_all
from forerun.server.strict_json import StrictRoute
from forerun.server.updates import Token

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/chat/completions", response_model=None, responses=generating(ChatCompletion))
async def chat_completions(body: ChatRequest, service: Serving, tenant: Asker, http: Request) -> Response:
    """Answer a conversation, at once or as a stream of server-sent events."""
    if body.max_tokens is None and body.max_completion_tokens is not None:
        goes_by("max_tokens", "max_completion_tokens")
    service.engine.check_room(body.n or 1)
    request = await ask_chat(body, service, tenant)
    readers = {index: ChoiceReader(body, request, service) for index in range(request.params.n)}
    head = {
        "id": f"chatcmpl-{request.id}",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": service.llm.numerics_id,
    }
    group = await submit_all(service.engine, [request])
    if body.stream:
        return stream_response(_chunks(group, body, service, head, readers), group)
    answers = await collect(group, http)
    document = head | {
        "object": "chat.completion",
        "choices": [_choice(answer, body, service, readers[answer.choice.index]) for answer in answers],
    }
    return JSONResponse(document | _totals(group, [answer.choice for answer in answers], readers))


def _totals(group: StreamGroup, choices: list[Choice], readers: Mapping[int, ChoiceReader]) -> dict[str, Any]:
    num_reasoning = sum(reader.num_reasoning for reader in readers.values())
    return {
        "usage": usage(group.num_prompt_tokens, choices, num_reasoning),
        "speculation": speculation(choices),
    }


# ---- whole answers ----


def _choice(answer: Answer, body: ChatRequest, service: Service, reader: ChoiceReader) -> dict[str, Any]:
    parts = [part for update in answer.updates for part in reader.read(update)]
    document = {
        "index": answer.choice.index,
        "message": message_of(parts),
        "logprobs": None,
        "finish_reason": finish_reason(answer.choice, reader.has_calls),
        "seed": answer.choice.seed,
    }
    return document | _details(answer.tokens, body, service)


def _details(tokens: Seq[Token], body: ChatRequest, service: Service) -> dict[str, Any]:
    """What is told about tokens, where it was asked for."""
    details: dict[str, Any] = {}
    if body.logprobs:
        entries = [token.logprob for token in tokens if token.logprob is not None]
        content = [logprob_entry(entry, service.llm.tokenizer) for entry in entries]
        details["logprobs"] = {"content": content, "refusal": None}
    if body.token_details:
        details["token_details"] = [token_detail(token) for token in tokens]
    return details


# ---- streams ----


async def _chunks(
    group: StreamGroup, body: ChatRequest, service: Service, head: dict[str, Any], readers: Mapping[int, ChoiceReader]
) -> AsyncIterator[dict[str, Any]]:
    head = head | {"object": "chat.completion.chunk"} | ({"usage": None} if body.wants_usage else {})
    for index in readers:
        yield head | {"choices": [_delta(index, {"role": "assistant", "content": ""})]}
    choices: list[Choice] = []
    async for _, updates in group:
        for update in updates:
            reader = readers[update.index]
            details = _details(update.tokens, body, service)
            for delta in deltas_of(reader.read(update)) or ([{}] if details and update.tokens else []):
                yield head | {"choices": [_delta(update.index, delta) | details]}
                details = {}
            if update.choice is None:
                continue
            if (failure := failure_of(update.choice)) is not None:
                raise failure
            choices.append(update.choice)
            last = _delta(update.index, {}, finish_reason(update.choice, reader.has_calls))
            chunk = head | {"choices": [last | {"seed": update.choice.seed}]}
            yield chunk | ({"speculation": speculation(choices)} if len(choices) == len(readers) else {})
    if body.wants_usage:
        yield head | {"choices": []} | _totals(group, choices, readers)


def _delta(index: int, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
