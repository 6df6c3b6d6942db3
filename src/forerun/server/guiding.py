"""Bodies into requests of the engine, with what guides their text: grammars, tools and predictions.

What takes long happens off the event loop: rendering and tokenizing on any thread, compiling on that of Grammars.
"""

import asyncio

from forerun.errors import RequestError
from forerun.generation import predicting, showing, under_grammar
from forerun.grammar.compose import behind_thought
from forerun.grammar.source import Grammar
from forerun.sequence import Request
from forerun.server.asking import chat_request, completion_requests
from forerun.server.reasoning import CLOSE, thinks_first
from forerun.server.schema.chat import ChatRequest, text_of
from forerun.server.schema.completions import CompletionRequest
from forerun.server.service import Service, Tenant
from forerun.server.tools.formats import ToolFormat, find_tool_format
from forerun.server.tools.grammar import tool_grammar


async def ask_chat(body: ChatRequest, service: Service, tenant: Tenant) -> Request:
    """The request behind a chat completion. Raises ApiError, RequestError or UsageError for what cannot be honoured."""
    request, grammar = await asyncio.to_thread(_chat, body, service, tenant)
    return await _guided(request, grammar, service)


async def ask_completions(body: CompletionRequest, service: Service, tenant: Tenant) -> list[Request]:
    """One request for each prompt. Raises as ask_chat does."""
    grammar = body.grammar
    requests = await asyncio.to_thread(completion_requests, body, service, tenant)
    if grammar is not None and body.suffix is not None:
        raise RequestError(f"a text that fills a gap cannot be ruled: leave out {grammar.param}", param=grammar.param)
    return [await _guided(request, grammar, service) for request in requests]


async def _guided(request: Request, grammar: Grammar | None, service: Service) -> Request:
    return request if grammar is None else under_grammar(request, await service.grammars.compile(grammar))


def _chat(body: ChatRequest, service: Service, tenant: Tenant) -> tuple[Request, Grammar | None]:
    """The request without its grammar, and the grammar."""
    grammar, tokenizer = body.grammar, service.llm.tokenizer
    request = chat_request(body, service, tenant)
    if body.prediction is not None:
        request = predicting(request, tokenizer, text_of(body.prediction.content))
    end_of_thought = CLOSE if thinks_first(request, tokenizer) else None
    if body.offered:
        format = _format_of(service)
        request = showing(request, tokenizer, format.shown(tokenizer))
        return request, tool_grammar(body, format, grammar, tokenizer, end_of_thought)
    if grammar is not None and end_of_thought is not None:
        grammar = behind_thought(grammar, end_of_thought)
    return request, grammar


def _format_of(service: Service) -> ToolFormat:
    format = find_tool_format(service.llm.tokenizer)
    assert format is not None, "chat_request refuses tools that the template does not know"
    return format
