"""ResponseWriter: one generation as the events and the document of /v1/responses.

Reasoning and answer are items of the output; each opens with its first text and closes before the next opens. The
document of a whole answer is the one that the last event of a stream carries.
"""

import time
from typing import Any

from forerun.results import Choice
from forerun.sequence import Request
from forerun.server.answer import logprob_entry, speculation, token_detail, usage
from forerun.server.errors import failure_of
from forerun.server.parsing import Part
from forerun.server.reading import ChoiceReader
from forerun.server.schema.chat import ChatRequest
from forerun.server.schema.responses import ResponseRequest
from forerun.server.service import Service
from forerun.server.updates import ChoiceUpdate

Event = dict[str, Any]


class ResponseWriter:
    """Turns the updates of one choice into events; `document` is the response as far as it has come."""

    def __init__(self, body: ResponseRequest, chat: ChatRequest, request: Request, service: Service) -> None:
        self._body, self._request, self._service = body, request, service
        self._reader = ChoiceReader(chat, request, service)
        self._num_events = 0
        self._items: list[dict[str, Any]] = []
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not come yet
        self.document = _opening(body, request)

    def start(self) -> list[Event]:
        """The events before the first token."""
        return [self._about("response.created"), self._about("response.in_progress")]

    def write(self, update: ChoiceUpdate) -> list[Event]:
        """The events of an update."""
        events: list[Event] = []
        if self._body.include:
            tokenizer = self._service.llm.tokenizer
            self._logprobs += [logprob_entry(token.logprob, tokenizer) for token in update.tokens if token.logprob]
        if self._body.token_details:
            self.document["token_details"] += [token_detail(token) for token in update.tokens]
        for part in self._reader.read(update):
            events += self._add(part)
        if update.choice is not None:
            events += self._end(update.choice)
        return events

    # ---- items ----

    def _add(self, part: Part) -> list[Event]:
        kind, text = ("reasoning", part.reasoning) if part.reasoning else ("message", part.content)
        events: list[Event] = []
        if not self._items or self._items[-1]["type"] != kind:
            events += self._close() + self._open(kind)
        self._items[-1]["content"][0]["text"] += text
        told, self._logprobs = self._logprobs, []
        if kind == "reasoning":
            return [*events, self._inside("response.reasoning_text.delta", delta=text)]
        self._items[-1]["content"][0]["logprobs"] += told
        return [*events, self._inside("response.output_text.delta", delta=text, logprobs=told)]

    def _open(self, kind: str) -> list[Event]:
        number, name = len(self._items), self._request.id
        if kind == "reasoning":
            item: dict[str, Any] = {"id": f"rs_{name}_{number}", "type": kind, "summary": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item = {"id": f"msg_{name}_{number}", "type": kind, "role": "assistant"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item |= {"status": "in_progress", "content": []}
        self._items.append(item)
        added = self._event("response.output_item.added", output_index=number, item=_copy(item))
        item["content"].append(part)
        return [added, self._inside("response.content_part.added", part=dict(part))]

    def _close(self, status: str = "completed") -> list[Event]:
        if not self._items:
            return []
        item = self._items[-1]
        (part,) = item["content"]
        item["status"] = status
        if item["type"] == "reasoning":
            done = self._inside("response.reasoning_text.done", text=part["text"])
        else:
            done = self._inside("response.output_text.done", text=part["text"], logprobs=part["logprobs"])
        return [
            done,
            self._inside("response.content_part.done", part=dict(part)),
            self._event("response.output_item.done", output_index=len(self._items) - 1, item=_copy(item)),
        ]

    def _end(self, choice: Choice) -> list[Event]:
        failure = failure_of(choice)
        is_cut = choice.finish_reason.value == "length"
        status = "failed" if failure is not None else "incomplete" if is_cut else "completed"
        events: list[Event] = []
        if not any(item["type"] == "message" for item in self._items) and status == "completed":
            events += self._close() + self._open("message")
        events += self._close("completed" if status == "completed" else "incomplete")
        self.document |= {
            "status": status,
            "completed_at": time.time() if status == "completed" else None,
            "output": [_copy(item) for item in self._items],
            "usage": _usage(len(self._request.prompt), choice, self._reader.num_reasoning),
            "seed": choice.seed,
            "speculation": speculation([choice]),
        }
        if failure is not None:
            self.document["error"] = {"code": "server_error", "message": failure.message}
        if status == "incomplete":
            self.document["incomplete_details"] = {"reason": "max_output_tokens"}
        return [*events, self._about(f"response.{status}")]

    # ---- events ----

    def _event(self, kind: str, **more: Any) -> Event:
        number, self._num_events = self._num_events, self._num_events + 1
        return {"type": kind, "sequence_number": number, **more}

    def _about(self, kind: str) -> Event:
        return self._event(kind, response=dict(self.document))

    def _inside(self, kind: str, **more: Any) -> Event:
        return self._event(
            kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, content_index=0, **more
        )


def _copy(item: dict[str, Any]) -> dict[str, Any]:
    return item | {"content": [dict(part) for part in item["content"]]}


def _opening(body: ResponseRequest, request: Request) -> dict[str, Any]:
    params = request.params
    document: dict[str, Any] = {
        "id": f"resp_{request.id}",
        "object": "response",
        "created_at": time.time(),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": body.model,
        "output": [],
        "parallel_tool_calls": bool(body.parallel_tool_calls),
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": {"format": _format(body)},
        "tool_choice": body.tool_choice or "auto",
        "tools": [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": body.user,
    }
    return document | ({"token_details": []} if body.token_details else {})


def _format(body: ResponseRequest) -> dict[str, Any]:
    format = body.text.format if body.text is not None else None
    return {"type": "text"} if format is None else format.model_dump(by_alias=True)


def _usage(num_prompt: int, choice: Choice, num_reasoning: int) -> dict[str, Any]:
    counts = usage(num_prompt, [choice], num_reasoning)
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": counts["prompt_tokens_details"] | {"cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": counts["completion_tokens_details"],
        "total_tokens": counts["total_tokens"],
    }
