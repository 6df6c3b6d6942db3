"""Waiting for whole answers, and the documents that endpoints share."""

import asyncio
import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from forerun.results import Choice
from forerun.sequence import TokenLogprob
from forerun.server.errors import ApiError, failure_of
from forerun.server.streams import StreamGroup
from forerun.server.totals import total_by_depth, total_by_name
from forerun.server.updates import ChoiceUpdate, Token
from forerun.speculation.drafters.prediction import PredictionDrafter
from forerun.text.tokenizer import Tokenizer

PREDICTION = PredictionDrafter.name
CLIENT_CLOSED = 499  # nobody reads it; it stands in the log


@dataclass
class Answer:
    """One whole choice and how it came.

    prompt  which of the request's prompts it answers
    """

    prompt: int
    choice: Choice
    updates: list[ChoiceUpdate] = field(default_factory=list)

    @property
    def tokens(self) -> list[Token]:
        return [token for update in self.updates for token in update.tokens]


async def collect(group: StreamGroup, http: Request) -> list[Answer]:
    """All choices of all prompts, in order. Ends the generation when the client leaves.

    Raises ApiError when a choice failed or the client left.
    """
    came: dict[tuple[int, int], list[ChoiceUpdate]] = {}
    leaving = asyncio.ensure_future(_closes_when_gone(group, http))
    try:
        async for prompt, updates in group:
            for update in updates:
                came.setdefault((prompt, update.index), []).append(update)
    finally:
        leaving.cancel()
        group.close()
    if await http.is_disconnected():
        raise ApiError(CLIENT_CLOSED, "the client left", code="client_closed")
    answers = []
    for (prompt, _), updates in sorted(came.items()):
        choice = updates[-1].choice
        if choice is not None:
            answers.append(Answer(prompt, choice, updates))
            if (failure := failure_of(choice)) is not None:
                raise failure
    return answers


async def _closes_when_gone(group: StreamGroup, http: Request) -> None:
    while not await http.is_disconnected():
        await asyncio.sleep(0.05)
    group.close()


def usage(num_prompt: int, choices: Seq[Choice], num_reasoning: int = 0) -> dict[str, Any]:
    """Token counts in OpenAI's form, over all choices. Predictions are those that requests brought."""
    completion = sum(choice.stats.num_tokens for choice in choices)
    # Choices of one prompt share it: what the first found in the cache is what the prompt had there.
    cached = sum(choice.stats.cached_prompt_tokens for choice in choices if choice.index == 0)
    drafted = [choice.stats.verified_by.get(PREDICTION, 0) for choice in choices]
    accepted = [choice.stats.accepted_by.get(PREDICTION, 0) for choice in choices]
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": completion,
        "total_tokens": num_prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": num_reasoning,
            "accepted_prediction_tokens": sum(accepted),
            "rejected_prediction_tokens": sum(drafted) - sum(accepted),
        },
    }


def speculation(choices: Seq[Choice]) -> dict[str, Any]:
    """What drafting did for these choices: forerun's own block in an answer.

    drafted_by, accepted_by  draft tokens verified and accepted, by drafter
    drafted_at, accepted_at  drafts that reached a depth, and of those accepted there: entry d is depth d + 1
    tokens_per_step          1.0 without accepted drafts
    """
    stats = [choice.stats for choice in choices]
    steps = sum(each.steps for each in stats)
    return {
        "drafted": sum(each.drafted for each in stats),
        "accepted": sum(each.accepted for each in stats),
        "drafted_by": total_by_name(each.verified_by for each in stats),
        "accepted_by": total_by_name(each.accepted_by for each in stats),
        "drafted_at": total_by_depth(each.drafted_at for each in stats),
        "accepted_at": total_by_depth(each.accepted_at for each in stats),
        "steps": steps,
        "tokens_per_step": round(sum(each.num_tokens for each in stats) / steps, 3) if steps else 0.0,
        "lossy": any(each.lossy for each in stats),
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
