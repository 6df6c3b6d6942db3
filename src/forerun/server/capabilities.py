"""What the model and this build can honour, read off the schemas and tried on the engine, so that it cannot drift."""

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import BaseModel, ValidationError

from forerun.errors import ForerunError
from forerun.sequence import Request
from forerun.server.errors import ApiError, api_error
from forerun.server.guiding import ask_chat, ask_completions
from forerun.server.problems import refusal
from forerun.server.reasoning import has_reasoning
from forerun.server.routes.refused import REFUSED_PATHS
from forerun.server.schema.answers import Capabilities, Combination
from forerun.server.schema.chat import ChatRequest
from forerun.server.schema.completions import CompletionRequest
from forerun.server.schema.refused import REFUSED_OPTIONS, REFUSED_PARTS, REFUSED_VALUES, unsupported_part
from forerun.server.schema.responses import ResponseRequest
from forerun.server.schema.tokens import DetokenizeRequest, TokenizeRequest
from forerun.server.service import Service, Tenant
from forerun.server.tools.formats import find_tool_format
from forerun.text.infill import find_infill

_SCHEMAS: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}

_TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}

# Options whose answer depends on the model, on the settings or on each other.
_CHAT: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1, "seed": 1},
    {"n": 2, "stream": True, "logprobs": True, "top_logprobs": 2},
    {"stop": ["."], "min_tokens": 2, "ignore_eos": True},
    {"top_logprobs": 2},
    {"stream_options": {"include_usage": True}},
    {"max_tokens": 1, "max_completion_tokens": 2},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_object"}, "ignore_eos": True},
    {"response_format": {"type": "json_object"}, "min_tokens": 1},
    {"response_format": {"type": "json_object"}, "guided_regex": "x"},
    {"tools": [_TOOL]},
    {"tools": [_TOOL], "tool_choice": "required"},
    {"tools": [_TOOL], "response_format": {"type": "json_object"}},
    {"prediction": {"type": "content", "content": "x"}},
)
_COMPLETION: tuple[dict[str, Any], ...] = (
    {},
    {"suffix": "x"},
    {"suffix": "x", "echo": True},
    {"echo": True, "logprobs": 1},
    {"echo": True, "max_tokens": 0},
    {"max_tokens": 0},
)


async def capabilities(service: Service) -> Capabilities:
    """The document of GET /v1/capabilities."""
    llm = service.llm
    return Capabilities(
        model={
            "id": service.model_name,
            "aliases": list(service.aliases),
            "family": llm.model.spec.family,
            "vocab_size": llm.tokenizer.vocab_size,
            "numerics_id": llm.numerics_id,
            "chat": llm.has_chat_template,
            "reasoning": has_reasoning(llm.tokenizer),
            "tools": None if (tools := find_tool_format(llm.tokenizer)) is None else tools.name,
            "fill_in_the_middle": find_infill(llm.tokenizer) is not None,
        },
        speculation={
            "drafters": _drafters(service),
            "verification": llm.engine.verification,
        },
        limits={"max_model_len": llm.max_model_len, "max_body_bytes": service.config.max_body_bytes},
        endpoints={path: _options(schema) for path, schema in _SCHEMAS.items()},
        refused={
            "options": REFUSED_OPTIONS,
            "values": REFUSED_VALUES,
            "content": {kind: unsupported_part(kind) or "" for kind in REFUSED_PARTS},
            "endpoints": {f"/v1/{name}": sentence for name, sentence in REFUSED_PATHS.items()},
        },
        combinations=await _combinations(service),
    )


def _drafters(service: Service) -> list[str]:
    return service.llm.engine.speculator.names


def _options(schema: type[BaseModel]) -> dict[str, Any]:
    """The schema of each option."""
    document = schema.model_json_schema()
    options: dict[str, Any] = document["properties"]
    return options


async def _combinations(service: Service) -> list[Combination]:
    drafting = [{"speculation": {"drafter": name}} for name in ("off", *_drafters(service))]
    tried = [await _try("/v1/chat/completions", options, _chat, service) for options in (*_CHAT, *drafting)]
    return tried + [await _try("/v1/completions", options, _completion, service) for options in _COMPLETION]


async def _try(
    endpoint: str,
    options: dict[str, Any],
    ask: Callable[[dict[str, Any], Service], Awaitable[Request]],
    service: Service,
) -> Combination:
    """Go the way of a request up to where the engine would queue it."""
    try:
        request = await ask(options, service)
        await service.engine.call(lambda: service.llm.engine.check_request(request))
    except ValidationError as error:
        return Combination(endpoint=endpoint, options=options, honoured=False, reason=_reason(error, options))
    except ApiError as error:
        return Combination(endpoint=endpoint, options=options, honoured=False, reason=error.message)
    except ForerunError as error:
        return Combination(endpoint=endpoint, options=options, honoured=False, reason=api_error(error).message)
    return Combination(endpoint=endpoint, options=options, honoured=True, reason=None)


def _reason(error: ValidationError, options: dict[str, Any]) -> str:
    return refusal(error.errors(), options).message


async def _chat(options: dict[str, Any], service: Service) -> Request:
    messages = [{"role": "user", "content": "x"}]
    body = ChatRequest.model_validate({"model": service.model_name, "messages": messages, **options})
    return await ask_chat(body, service, Tenant())


async def _completion(options: dict[str, Any], service: Service) -> Request:
    body = CompletionRequest.model_validate({"model": service.model_name, "prompt": "x", **options})
    return (await ask_completions(body, service, Tenant()))[0]
