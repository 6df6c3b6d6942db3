"""What the engine's thread tells the event loop about a running choice."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.errors import one_line
from forerun.generation import choice_of, live_text, prompt_logprobs_of
from forerun.results import Choice, GenerationStats
from forerun.sequence import FinishReason, Sequence, TokenLogprob


@dataclass(frozen=True)
class Token:
    """One output token.

    text     what it made final of the text; "" while its characters are incomplete or may begin a stop string
    drafter  whose draft it was, "" for the target's own
    logprob  None when the request did not ask
    """

    id: int
    text: str
    drafter: str
    logprob: TokenLogprob | None = None


@dataclass(frozen=True)
class ChoiceUpdate:
    """What one step added to one choice.

    prompt_logprobs  what was asked about the prompt's tokens, in the first update only
    tail    text that was held back and belongs to no single token; only with `choice`
    choice  the whole result, in the last update only
    """

    index: int
    tokens: tuple[Token, ...]
    tail: str = ""
    choice: Choice | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens) + self.tail


def merged(updates: Seq[ChoiceUpdate]) -> list[ChoiceUpdate]:
    """One update a choice, in the order in which they first come: a reader who is late gets all of it at once."""
    by_index: dict[int, list[ChoiceUpdate]] = {}
    for update in updates:
        by_index.setdefault(update.index, []).append(update)
    if len(by_index) == len(updates):
        return list(updates)
    return [
        ChoiceUpdate(
            index,
            tuple(token for part in parts for token in part.tokens),
            parts[-1].tail,
            parts[-1].choice,
            parts[0].prompt_logprobs,
        )
        for index, parts in by_index.items()
    ]


def failed_update(sequence: Sequence, error: Exception) -> ChoiceUpdate:
    """The last update of a sequence whose output cannot be read."""
    choice = Choice(
        index=sequence.choice,
        text="",
        token_ids=tuple(sequence.output),
        finish_reason=FinishReason.ERROR,
        seed=sequence.seed,
        stats=GenerationStats.of(sequence),
        error=one_line(error),
    )
    return ChoiceUpdate(sequence.choice, (), choice=choice)


class Feed:
    """Reads a sequence's updates off it, on the engine's thread."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._is_first = True

    def read(self, sequence: Sequence) -> ChoiceUpdate:
        """What came since the last call."""
        choice = choice_of(sequence) if sequence.is_finished else None  # completes the live text
        pieces = live_text(sequence).pieces
        first, self._num_tokens = self._num_tokens, sequence.num_output
        output = sequence.tokens[sequence.num_prompt + first :]
        logprobs: Seq[TokenLogprob | None] = sequence.logprobs[first:] or [None] * len(output)
        tokens = tuple(
            Token(token, pieces[at], sequence.drafted_by[at], logprob)
            for at, (token, logprob) in enumerate(zip(output, logprobs, strict=True), start=first)
        )
        about_prompt = prompt_logprobs_of(sequence) if self._is_first else None
        self._is_first = False
        return ChoiceUpdate(sequence.choice, tokens, "".join(pieces[sequence.num_output :]), choice, about_prompt)
