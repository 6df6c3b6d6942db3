"""Bodies of requests into requests of the engine. May take a while for long texts: call it off the event loop."""

import json
import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import pydantic_core

from forerun.errors import RequestError
from forerun.generation import Prompt, make_request
from forerun.sequence import Request, SamplingParams
from forerun.server.errors import ApiError, spelled
from forerun.server.exchange import current_exchange
from forerun.server.schema.chat import ChatMessage, ChatRequest, text_of
from forerun.server.schema.completions import CompletionRequest
from forerun.server.schema.options import SamplingOptions
from forerun.server.schema.tools import ToolCall
from forerun.server.service import Service, Tenant
from forerun.server.tools.formats import find_tool_format
from forerun.text.infill import Infill, find_infill


def check_model(name: str, service: Service) -> None:
    """Raise ApiError unless the served model goes by this name."""
    if name not in service.model_names:
        raise ApiError(
            404,
            f"no model {name[:100]!r} here: this server has {service.model_name!r}",
            param="model",
            code="model_not_found",
        )


def chat_request(body: ChatRequest, service: Service, tenant: Tenant) -> Request:
    """The request behind a chat completion. Raises ApiError, RequestError or UsageError for what cannot be honoured."""
    check_model(body.model, service)
    body.check_stream()
    params = body.sampling(body.limit, body.num_logprobs)
    knows_tools = find_tool_format(service.llm.tokenizer) is not None
    tools = [tool.model_dump(exclude_none=True) for tool in body.offered]
    if tools and not knows_tools:
        raise RequestError(f"{service.model_name} was not trained to call tools: leave out tools", param="tools")
    messages = [template_message(message) for message in body.messages]
    if not knows_tools and any(message["role"] == "tool" or "tool_calls" in message for message in messages):
        raise RequestError(f"{service.model_name} was not trained to call tools: tell it in text", param="messages")
    prompt = chat_prompt(messages, body.chat_template_kwargs, service, **({"tools": tools} if tools else {}))
    return engine_request(prompt, params, body, service, tenant)


def chat_prompt(
    messages: Seq[Mapping[str, Any]], variables: Mapping[str, Any] | None, service: Service, **more: Any
) -> list[int]:
    """Token ids of a conversation, ready for the answer.

    variables  what the client hands to the template
    more       further arguments of ChatTemplate.render

    Raises RequestError, UsageError.
    """
    template = service.llm.chat_template
    for name in sorted(set(variables or ()) - template.variables):
        known = ", ".join(sorted(template.variables)) or "none"
        raise RequestError(
            f"the chat template takes no variable {spelled(name)!r} from clients: it takes {known}",
            param="chat_template_kwargs",
        )
    text = template.render(messages, **more, **(variables or {}))
    return service.llm.tokenizer.encode_prompt(text)


def template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it."""
    text = "" if message.content is None else text_of(message.content)
    role = "system" if message.role == "developer" else message.role
    further = {
        "name": message.name,
        "reasoning_content": message.reasoning_content,
        "tool_call_id": message.tool_call_id,
        "tool_calls": [_template_call(call) for call in message.tool_calls or ()] or None,
    }
    return {"role": role, "content": text} | {key: value for key, value in further.items() if value is not None}


def _template_call(call: ToolCall) -> dict[str, Any]:
    """A call as templates read it: its arguments are an object, not the object's text. Raises RequestError."""
    function = call.function
    try:
        arguments = pydantic_core.from_json(function.arguments or "{}", allow_inf_nan=False)
        json.dumps(arguments, allow_nan=False)  # it makes infinity of 1e999 all the same
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestError(f"the arguments of call {call.id!r} must be the JSON text of an object", param="messages")
    return {"id": call.id, "type": "function", "function": {"name": function.name, "arguments": arguments}}


def completion_requests(body: CompletionRequest, service: Service, tenant: Tenant) -> list[Request]:
    """One request for each prompt. Raises as chat_request does."""
    check_model(body.model, service)
    body.check()
    limit = _default_max_tokens(service) if body.max_tokens is None else body.max_tokens
    params = body.sampling(max(1, limit), body.logprobs, body.logprobs if body.echo else None)
    num_choices, most = len(body.prompts) * params.n, service.engine.max_open
    if num_choices > most:
        raise RequestError(
            f"{len(body.prompts)} prompts make {num_choices} choices, and this server takes {most}: send fewer at once",
            param="prompt",
        )
    if body.suffix is None:
        return [engine_request(prompt, params, body, service, tenant, continues=True) for prompt in body.prompts]
    return _infill_requests(body, params, service, tenant)


def _default_max_tokens(service: Service) -> int:
    """How long an answer is that nobody said anything about: within what the key allows."""
    exchange, default = current_exchange(), service.config.default_max_tokens
    most = exchange.allowance.limits.max_output_tokens if exchange is not None and exchange.allowance else None
    return default if most is None else min(default, most)


def _infill_requests(
    body: CompletionRequest, params: SamplingParams, service: Service, tenant: Tenant
) -> list[Request]:
    infill = _infill(service)
    requests = []
    for prompt in body.prompts:
        ids = infill.prompt(service.llm.tokenizer, str(prompt), body.suffix or "")
        request = engine_request(ids, params, body, service, tenant, continues=True)
        requests.append(replace(request, eos_ids=tuple(dict.fromkeys(request.eos_ids + infill.ends))))
    return requests


def _infill(service: Service) -> Infill:
    infill = find_infill(service.llm.tokenizer)
    if infill is None:
        raise RequestError(
            f"{service.model_name} was not trained to fill in the middle: leave out suffix", param="suffix"
        )
    return infill


def engine_request(
    prompt: Prompt,
    params: SamplingParams,
    body: SamplingOptions,
    service: Service,
    tenant: Tenant,
    *,
    continues: bool = False,
) -> Request:  # size: what a request is made of
    """A request with an id of its own, whose cached prefixes are the tenant's and the salt's alone.

    continues  the answer goes on in the middle of a text
    """
    return make_request(
        service.llm.tokenizer,
        prompt,
        params,
        id=secrets.token_hex(12),
        salt=f"{tenant.salt}/{body.cache_salt or ''}" if tenant.salt or body.cache_salt else "",
        continues=continues,
        priority=body.priority or 0,
    )
