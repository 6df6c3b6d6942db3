"""Reasoning: what a model thinks before it answers, between <think> and </think>, kept apart from the answer.

Models differ in who opens the block: the model itself, or the chat template at the end of the prompt. Blank lines
around the marks belong to neither text.
"""

from forerun.sequence import Request
from forerun.server.parsing import OutputParser, Part
from forerun.server.service import Service
from forerun.text.tokenizer import Tokenizer

OPEN, CLOSE = "<think>", "</think>"
_TAIL = 8  # tokens at the end of a prompt that can hold an opened block


class ReasoningParser:
    """Text of a thinking model; what comes behind the block is read by another parser.

    is_open  the prompt has opened the block
    """

    def __init__(self, answer: OutputParser, is_open: bool) -> None:
        self._answer = answer
        self._state = "reasoning" if is_open else "start"
        self._held = ""
        self._is_blank = True  # nothing was thought yet: blank lines go

    @property
    def is_reasoning(self) -> bool:
        """True inside of the block."""
        return self._state == "reasoning"

    def push(self, text: str) -> list[Part]:
        if self._state == "answer":
            return self._answer.push(text)
        self._held += text
        parts: list[Part] = []
        if self._state == "start":
            self._start()
        if self._state == "reasoning":
            parts += self._reason()
        if self._state == "gap":
            self._held = self._held.lstrip()
            self._state = "answer" if self._held else "gap"
        if self._state == "answer":
            held, self._held = self._held, ""
            parts += self._answer.push(held)
        return parts

    def finish(self) -> list[Part]:
        held, self._held = self._held, ""
        if self._state == "reasoning":
            return _thought(held.rstrip()) + self._answer.finish()
        return (self._answer.push(held) if held else []) + self._answer.finish()

    def _start(self) -> None:
        """Decide, once it is certain, whether the text begins with a block."""
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self._state, self._held = "reasoning", text.removeprefix(OPEN)
        elif not OPEN.startswith(text):
            self._state = "answer"

    def _reason(self) -> list[Part]:
        if self._is_blank:
            self._held = self._held.lstrip()
            self._is_blank = not self._held
        thought, mark, rest = self._held.partition(CLOSE)
        if mark:
            self._state, self._held = "gap", rest
            return _thought(thought.rstrip())
        cut = next((n for n in range(len(CLOSE) - 1, 0, -1) if thought.endswith(CLOSE[:n])), 0)
        certain = thought[: len(thought) - cut].rstrip()
        self._held = thought[len(certain) :]
        return _thought(certain)


def has_reasoning(tokenizer: Tokenizer) -> bool:
    """True for a model whose template or vocabulary knows the block."""
    template = tokenizer.chat_template or ""
    return any(mark in template or tokenizer.added_id(mark) is not None for mark in (OPEN, CLOSE))


def thinks_first(request: Request, tokenizer: Tokenizer) -> bool:
    """True when the prompt has opened the block, so that the text begins inside of it."""
    end = tokenizer.decode(request.prompt[-_TAIL:], skip_special=False)
    return has_reasoning(tokenizer) and end.rstrip().endswith(OPEN)


def reading_reasoning(answer: OutputParser, request: Request, service: Service) -> OutputParser:
    """`answer`, behind a parser of the block for a model that has one."""
    tokenizer = service.llm.tokenizer
    if not has_reasoning(tokenizer):
        return answer
    return ReasoningParser(answer, is_open=thinks_first(request, tokenizer))


def _thought(text: str) -> list[Part]:
    return [Part(reasoning=text)] if text else []
