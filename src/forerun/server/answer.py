"""Waiting for whole answers, and the documents that endpoints share."""

import asyncio
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from forerun.generation import Choice
from forerun.sequence import TokenLogprob
from forerun.server.async_engine import RequestStream
from forerun.server.errors import ApiError, failure_of
from forerun.server.updates import Token
from forerun.text.tokenizer import Tokenizer

CLIENT_CLOSED = 499  # nobody reads it; it stands in the log


@dataclass
class Answer:
    """One whole choice with its tokens."""

    choice: Choice
    tokens: list[Token] = field(default_factory=list)


async def collect(stream: RequestStream, http: Request) -> list[Answer]:
    """All choices of a request, in order. Ends the generation when the client leaves.

    Raises ApiError when a choice failed or the client left.
    """
    tokens: dict[int, list[Token]] = {}
    choices: dict[int, Choice] = {}
    leaving = asyncio.ensure_future(_closes_when_gone(stream, http))
    try:
        async for updates in stream:
            for update in updates:
                tokens.setdefault(update.index, []).extend(update.tokens)
                if update.choice is not None:
                    choices[update.index] = update.choice
    finally:
        leaving.cancel()
        stream.close()
    if await http.is_disconnected():
        raise ApiError(CLIENT_CLOSED, "the client left", code="client_closed")
    answers = [Answer(choices[index], tokens[index]) for index in sorted(choices)]
    for answer in answers:
        if (failure := failure_of(answer.choice)) is not None:
            raise failure
    return answers


async def _closes_when_gone(stream: RequestStream, http: Request) -> None:
    while not await http.is_disconnected():
        await asyncio.sleep(0.05)
    stream.close()


def usage(num_prompt: int, choices: Seq[Choice]) -> dict[str, Any]:
    """Token counts in OpenAI's form, over all choices."""
    completion = sum(choice.stats.num_tokens for choice in choices)
    cached = max((choice.stats.cached_prompt_tokens for choice in choices), default=0)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": completion,
        "total_tokens": num_prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": sum(choice.stats.accepted for choice in choices),
            "rejected_prediction_tokens": sum(choice.stats.drafted - choice.stats.accepted for choice in choices),
        },
    }


def logprob_entry(entry: TokenLogprob, tokenizer: Tokenizer) -> dict[str, Any]:
    """One token of chat's `logprobs.content`."""
    return _entry(entry.token, entry.logprob, tokenizer) | {
        "top_logprobs": [_entry(token, logprob, tokenizer) for token, logprob in entry.top]
    }


def _entry(token: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token, special=True)
    return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


def finite(logprob: float) -> float:
    """JSON has no infinity: OpenAI's stand-in for "impossible" is -9999."""
    return logprob if math.isfinite(logprob) else -9999.0


def token_detail(token: Token) -> dict[str, Any]:
    """One token as forerun's `token_details` shows it."""
    logprob = None if token.logprob is None else finite(token.logprob.logprob)
    return {"id": token.id, "text": token.text, "drafter": token.drafter or None, "logprob": logprob}
