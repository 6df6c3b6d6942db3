"""Bodies of requests into requests of the engine."""

import secrets
from typing import Any

from forerun.generation import Prompt, make_request
from forerun.sequence import Request, SamplingParams
from forerun.server.schema.chat import ChatMessage, ChatRequest
from forerun.server.service import Service, Tenant


def chat_request(body: ChatRequest, service: Service, tenant: Tenant) -> Request:
    """The request behind a chat completion. Raises RequestError or UsageError for what cannot be honoured."""
    prompt = service.llm.chat_prompt([template_message(message) for message in body.messages])
    limit = body.max_completion_tokens or body.max_tokens
    params = body.sampling(limit, (body.top_logprobs or 0) if body.logprobs else None)
    return engine_request(prompt, params, body.cache_salt, service, tenant)


def engine_request(
    prompt: Prompt,
    params: SamplingParams,
    cache_salt: str | None,
    service: Service,
    tenant: Tenant,
) -> Request:
    """A request with an id of its own, whose cached prefixes are the tenant's and the salt's alone."""
    salt = f"{tenant.salt}/{cache_salt or ''}"
    return make_request(service.llm.tokenizer, prompt, params, id=secrets.token_hex(12), salt=salt)


def template_message(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it."""
    content = message.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    return {"role": "system" if message.role == "developer" else message.role, "content": text}
