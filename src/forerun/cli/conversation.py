"""Conversation: the turns of a chat, and which of them the model still sees.

A conversation only grows, so each prompt begins like the last one and the prefix cache holds most of it. When it would
outgrow the context the oldest turns leave the prompt, more than need be, so that this happens once in several turns.

    [system] | turns that have left | turns in the prompt | answer
                                    ^ first
"""

from dataclasses import dataclass, field

from forerun.cli.answer import stream_answer
from forerun.cli.render import Answer, TextWriter, failure
from forerun.llm import LLM
from forerun.sequence import SamplingParams
from forerun.text.chat import fit_messages

_ANSWER_SHARE = 0.5  # of the context, at most, that is kept free for an answer
_KEPT_SHARE = 0.75  # of the prompt's room, that the turns may fill after the oldest have left


@dataclass
class Conversation:
    """Messages said so far and the model that answers. Raises UsageError when the model has no chat template."""

    llm: LLM
    params: SamplingParams
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)  # user and assistant messages, alternating
    first: int = 0  # turns[first:] are in the prompt
    _first_before: int = 0  # what it was before the last message

    def __post_init__(self) -> None:
        _ = self.llm.chat_template  # raises

    def ask(self, text: str) -> int:
        """Add a user message; returns how many messages leave the prompt to make room for its answer."""
        self._first_before = self.first
        self.turns.append({"role": "user", "content": text})
        messages, room = self._messages(), self._room()
        if self._count(messages) > room:
            _, dropped = fit_messages(messages, int(room * _KEPT_SHARE), self._count)
            self.first += dropped
        return self.first - self._first_before

    def answer(self, writer: TextWriter | None = None) -> Answer:
        """Answer the last user message, written as it comes; what Ctrl-C left of it counts as the answer.

        When there is no answer at all, because the request is refused, fails or is stopped at once, its message leaves
        the conversation, which is then as it was before `ask`.
        """
        answered = False
        try:
            answer = stream_answer(self.llm, self.llm.chat_prompt(self._messages()), self.params, writer)
            is_whole = answer.choice is not None and failure(answer.choice) is None
            answered = is_whole or bool(answer.text)
            if answered:
                self.turns.append({"role": "assistant", "content": answer.text})
            return answer
        finally:
            if not answered:
                self.turns.pop()
                self.first = self._first_before

    def reset(self) -> None:
        """Forget all turns; the system message stays."""
        self.turns.clear()
        self.first = 0

    def messages(self) -> list[dict[str, str]]:
        """Everything said, also what has left the prompt."""
        return [*self._system_messages(), *self.turns]

    def num_prompt_tokens(self) -> int:
        """Length of the prompt as it stands, 0 before the first turn."""
        return self._count(self._messages()) if self.turns else 0

    def _messages(self) -> list[dict[str, str]]:
        return [*self._system_messages(), *self.turns[self.first :]]

    def _system_messages(self) -> list[dict[str, str]]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _count(self, messages: list[dict[str, str]]) -> int:
        return len(self.llm.chat_prompt(messages))

    def _room(self) -> int:
        """Tokens a prompt may have so that an answer of usual length still fits."""
        longest = self.llm.max_model_len
        share = int(longest * _ANSWER_SHARE)
        return longest - (share if self.params.max_tokens is None else min(share, self.params.max_tokens))
