"""POST /v1/completions: text goes on, or the gap before a suffix is filled."""

import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from forerun.generation import Prompt
from forerun.results import Choice
from forerun.server.answer import Answer, collect, speculation, token_detail, usage
from forerun.server.completion_logprobs import CompletionLogprobs, join_lists
from forerun.server.documented import generating
from forerun.server.errors import failure_of
from forerun.server.guiding import ask_completions
from forerun.server.schema.answers import Completion
from forerun.server.schema.completions import CompletionRequest
from forerun.server.service import Asker, Service, Serving
from forerun.server.sse import stream_response
from forerun.server.streams import StreamGroup, submit_all
from forerun.server.strict_json import StrictRoute
from forerun.server.updates import ChoiceUpdate

router = APIRouter(route_class=StrictRoute)


@router.post("/v1/completions", response_model=None, responses=generating(Completion))
async def completions(body: CompletionRequest, service: Serving, tenant: Asker, http: Request) -> Response:
    """Continue one or several texts, at once or as a stream of server-sent events."""
    service.engine.check_room(body.n or 1)
    requests = await ask_completions(body, service, tenant)
    head = {
        "id": f"cmpl-{requests[0].id}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": body.model,
        "system_fingerprint": service.llm.numerics_id,
    }
    group = await submit_all(service.engine, requests)
    if body.stream:
        return stream_response(_chunks(group, body, service, head), group)
    answers = await collect(group, http)
    return JSONResponse(
        head
        | {"choices": [_choice(answer, group, body, service) for answer in answers]}
        | _totals(group, body, [answer.choice for answer in answers])
    )


def _totals(group: StreamGroup, body: CompletionRequest, choices: list[Choice]) -> dict[str, Any]:
    counts = usage(group.num_prompt_tokens, choices)
    if body.max_tokens == 0:  # a token was generated, because a step ends in one, and nobody gets it
        counts |= {"completion_tokens": 0, "total_tokens": counts["prompt_tokens"]}
    return {"usage": counts, "speculation": speculation(choices)}


def _choice(answer: Answer, group: StreamGroup, body: CompletionRequest, service: Service) -> dict[str, Any]:
    writer = _Writer(body, service, body.prompts[answer.prompt], group.requests[answer.prompt].prompt)
    pieces = [writer.write(update) for update in answer.updates]
    document = {
        "index": answer.prompt * group.requests[0].params.n + answer.choice.index,
        "text": "".join(piece["text"] for piece in pieces),
        "logprobs": join_lists([piece["logprobs"] for piece in pieces if piece["logprobs"] is not None]),
        "finish_reason": writer.finish_reason(answer.choice),
        "seed": answer.choice.seed,
    }
    if body.token_details:
        document["token_details"] = [detail for piece in pieces for detail in piece["token_details"]]
    return document


async def _chunks(
    group: StreamGroup, body: CompletionRequest, service: Service, head: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    head = head | ({"usage": None} if body.wants_usage else {})
    n = group.requests[0].params.n
    writers: dict[int, _Writer] = {}
    choices: list[Choice] = []
    async for at, updates in group:
        for update in updates:
            index = at * n + update.index
            if index not in writers:
                writers[index] = _Writer(body, service, body.prompts[at], group.requests[at].prompt)
            piece = {"index": index, **writers[index].write(update), "finish_reason": None}
            if piece["text"] or piece["logprobs"] or piece.get("token_details"):
                yield head | {"choices": [piece]}
            if update.choice is None:
                continue
            if (failure := failure_of(update.choice)) is not None:
                raise failure
            choices.append(update.choice)
            last = {"index": index, "text": "", "logprobs": None, "seed": update.choice.seed}
            chunk = head | {"choices": [last | {"finish_reason": writers[index].finish_reason(update.choice)}]}
            yield chunk | ({"speculation": speculation(choices)} if len(choices) == n * len(group.requests) else {})
    if body.wants_usage:
        yield head | {"choices": []} | _totals(group, body, choices)


class _Writer:
    """Turns the updates of one choice into text, lists of log-probabilities and details.

    prompt      as the client wrote it
    prompt_ids  as the model read it
    """

    def __init__(self, body: CompletionRequest, service: Service, prompt: Prompt, prompt_ids: tuple[int, ...]) -> None:
        self._body = body
        self._prompt_ids = prompt_ids
        self._is_first = True
        self._is_silent = body.max_tokens == 0
        tokenizer = service.llm.tokenizer
        text = prompt if isinstance(prompt, str) else ""
        if not isinstance(prompt, str) and (body.echo or body.logprobs is not None):
            text = tokenizer.decode(prompt)
        self._prompt = text
        self._logprobs = CompletionLogprobs(tokenizer) if body.logprobs is not None else None

    def write(self, update: ChoiceUpdate) -> dict[str, Any]:
        """text, logprobs and, where it was asked for, token_details of an update."""
        is_first, self._is_first = self._is_first, False
        tokens = () if self._is_silent else update.tokens
        text = "" if self._is_silent else update.text
        lists = []
        if self._logprobs is not None:
            if is_first and self._body.echo:
                lists.append(self._logprobs.take_prompt(self._prompt_ids, update.prompt_logprobs or ()))
            elif is_first:
                self._logprobs.skip(len(self._prompt))
            if tokens:
                lists.append(self._logprobs.take([token.logprob for token in tokens if token.logprob is not None]))
        piece: dict[str, Any] = {
            "text": self._prompt + text if is_first and self._body.echo else text,
            "logprobs": join_lists(lists),
        }
        if self._body.token_details:
            piece["token_details"] = [token_detail(token) for token in tokens]
        return piece

    def finish_reason(self, choice: Choice) -> str:
        """Why the text ends."""
        return "length" if self._is_silent else choice.finish_reason.value
