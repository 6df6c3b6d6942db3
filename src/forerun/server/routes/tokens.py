"""POST /tokenize and /detokenize: what the model reads, and what it says, as token ids."""

import asyncio

from fastapi import APIRouter

from forerun.errors import RequestError
from forerun.server.asking import chat_prompt, check_model, template_message
from forerun.server.documented import reading
from forerun.server.schema.answers import Detokenized, Tokenized
from forerun.server.schema.tokens import DetokenizeRequest, TokenizeRequest
from forerun.server.service import Service, Serving
from forerun.server.strict_json import StrictRoute

router = APIRouter(route_class=StrictRoute)


@router.post("/tokenize", responses=reading(Tokenized, 400, 404))
async def tokenize(body: TokenizeRequest, service: Serving) -> Tokenized:
    """Token ids of a text or a conversation."""
    if body.model is not None:
        check_model(body.model, service)
    ids = await asyncio.to_thread(_ids, body, service)
    return Tokenized(tokens=ids, count=len(ids), max_model_len=service.llm.max_model_len)


@router.post("/detokenize", responses=reading(Detokenized, 400, 404))
async def detokenize(body: DetokenizeRequest, service: Serving) -> Detokenized:
    """The text of token ids; bytes that are no text become U+FFFD."""
    if body.model is not None:
        check_model(body.model, service)
    tokenizer = service.llm.tokenizer
    beyond = next((token for token in body.tokens if token >= tokenizer.vocab_size), None)
    if beyond is not None:
        raise RequestError(f"token id {beyond} is not in the vocabulary of {tokenizer.vocab_size}", param="tokens")
    return Detokenized(text=tokenizer.decode(body.tokens, skip_special=bool(body.skip_special_tokens)))


def _ids(body: TokenizeRequest, service: Service) -> list[int]:
    tokenizer = service.llm.tokenizer
    if body.text is None:
        messages = [template_message(message) for message in body.messages or ()]
        return chat_prompt(messages, body.chat_template_kwargs, service)
    return (
        tokenizer.encode(body.text, special=False)
        if body.add_special_tokens is False
        else (tokenizer.encode_prompt(body.text))
    )
