"""Answers, shown while they are generated, which Ctrl-C ends in order.

A KeyboardInterrupt could strike in the middle of a step and leave the engine's books half-written. So while an answer
runs Ctrl-C only sets a flag, which is read between steps; the sequence is then freed as for any caller who leaves.
"""

import contextlib
import signal
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from types import FrameType
from typing import Any

from forerun.cli.render import Answer, TextWriter
from forerun.errors import UsageError
from forerun.llm import LLM
from forerun.results import Choice
from forerun.sequence import SamplingParams

_PATIENCE = 3  # this many Ctrl-C without a step in between end the program: something hangs


class Interrupt:
    """Counts Ctrl-C."""

    def __init__(self) -> None:
        self.presses = 0

    def press(self, signum: int, frame: FrameType | None) -> None:
        """The signal handler."""
        self.presses += 1
        if self.presses >= _PATIENCE:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Count Ctrl-C instead of raising KeyboardInterrupt, within the block."""
    interrupt = Interrupt()
    previous: Any = signal.signal(signal.SIGINT, interrupt.press)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)


def stream_answer(llm: LLM, prompt: Seq[int], params: SamplingParams, writer: TextWriter | None = None) -> Answer:
    """Generate one choice for a prompt of token ids, written as it comes when there is a writer.

    Raises RequestError when the request cannot be served.
    """
    text: list[str] = []
    tokens: list[int] = []
    choice: Choice | None = None
    with interruptible() as interrupt, contextlib.closing(llm.stream(prompt, params)) as chunks:  # type: ignore[type-var]
        try:
            for chunk in chunks:
                text.append(chunk.text)
                tokens += chunk.token_ids
                choice = chunk.choice
                if writer is not None:
                    writer.chunk(chunk)
                if interrupt.presses:
                    break
        finally:
            if writer is not None:
                writer.end()
    return Answer("".join(text), tuple(tokens), choice)


def prompt_ids(llm: LLM, text: str, system: str | None, raw: bool) -> list[int]:
    """Token ids of one prompt, through the model's chat template if it has one, unless `raw`.

    Raises UsageError for a system message that no template takes.
    """
    if raw or not llm.has_chat_template:
        if system is not None:
            raise UsageError("this model has no chat template, so it takes no --system: put it into the prompt")
        return llm.tokenizer.encode_prompt(text)
    system_message = [] if system is None else [{"role": "system", "content": system}]
    return llm.chat_prompt([*system_message, {"role": "user", "content": text}])


def generate_answers(llm: LLM, prompt: Seq[int], params: SamplingParams, writer: TextWriter | None) -> list[Answer]:
    """All `params.n` answers to a prompt of token ids, written when there is a writer.

    A single one is written as it comes. Several run together and are written when all are done.
    """
    if params.n == 1:
        return [stream_answer(llm, prompt, params, writer)]
    choices = llm.generate([prompt], params)[0].choices
    if writer is not None:
        for choice in choices:
            writer.text(f"--- {choice.index + 1} of {len(choices)} ---\n")
            writer.text(choice.text)
            writer.end()
    return [Answer(choice.text, choice.token_ids, choice) for choice in choices]
