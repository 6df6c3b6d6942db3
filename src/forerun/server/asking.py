"""Bodies of requests into requests of the engine. May take a while for long texts: call it off the event loop."""

import secrets
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

from forerun.errors import RequestError
from forerun.generation import Prompt, make_request
from forerun.sequence import Request, SamplingParams
from forerun.server.errors import ApiError
from forerun.server.schema.chat import ChatMessage, ChatRequest
from forerun.server.schema.completions import CompletionRequest
from forerun.server.schema.options import SamplingOptions
from forerun.server.service import Service, Tenant
from forerun.text.infill import Infill, find_infill


def check_model(name: str, service: Service) -> None:
    """Raise ApiError unless the served model goes by this name."""
    if name not in service.model_names:
        raise ApiError(
            404,
            f"no model {name!r} here: this server has {service.model_name!r}",
            param="model",
            code="model_not_found",
        )


def chat_request(body: ChatRequest, service: Service, tenant: Tenant) -> Request:
    """The request behind a chat completion. Raises ApiError, RequestError or UsageError for what cannot be honoured."""
    check_model(body.model, service)
    body.check_stream()
    params = body.sampling(body.limit, body.num_logprobs)
    prompt = chat_prompt([template_message(message) for message in body.messages], body.chat_template_kwargs, service)
    return engine_request(prompt, params, body, service, tenant)


def chat_prompt(
    messages: Seq[Mapping[str, Any]], variables: Mapping[str, Any] | None, service: Service, **more: Any
) -> list[int]:
    """Token ids of a conversation, ready for the answer.

    variables  what the client hands to the template
    more       further arguments of ChatTemplate.render

    Raises RequestError, UsageError.
    """
    taken = {"messages", "tools", "add_generation_prompt", *more}.intersection(variables or ())
    if taken:
        raise RequestError(f"{min(taken)} is not the client's to set in the template", param="chat_template_kwargs")
    text = service.llm.chat_template.render(messages, **more, **(variables or {}))
    return service.llm.tokenizer.encode_prompt(text)


def template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it."""
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    role = "system" if message.role == "developer" else message.role
    further = {"name": message.name, "reasoning_content": message.reasoning_content}
    return {"role": role, "content": text} | {key: value for key, value in further.items() if value is not None}


def completion_requests(body: CompletionRequest, service: Service, tenant: Tenant) -> list[Request]:
    """One request for each prompt. Raises as chat_request does."""
    check_model(body.model, service)
    body.check()
    limit = service.config.default_max_tokens if body.max_tokens is None else body.max_tokens
    params = body.sampling(max(1, limit), body.logprobs, body.logprobs if body.echo else None)
    most = service.config.max_waiting
    if len(body.prompts) * params.n > most:
        raise RequestError(
            f"{len(body.prompts)} prompts of {params.n} choices each are more than the {most} that this server queues",
            param="prompt",
        )
    if body.suffix is None:
        return [engine_request(prompt, params, body, service, tenant, continues=True) for prompt in body.prompts]
    return _infill_requests(body, params, service, tenant)


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
        salt=f"{tenant.salt}/{body.cache_salt or ''}",
        continues=continues,
        priority=body.priority or 0,
    )
