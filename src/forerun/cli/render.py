"""Generated text on its way to the user, and one-line summaries of how it came about."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from forerun.results import Choice, GenerationStats, StreamChunk
from forerun.sequence import FinishReason

DRAFT_STYLE = "bold green"

# A model may write escape sequences that a terminal would obey: only line ends and tabs may act.
_CONTROLS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


@dataclass(frozen=True)
class Answer:
    """What was generated; `choice` is None when Ctrl-C ended it."""

    text: str
    token_ids: tuple[int, ...]
    choice: Choice | None


class TextWriter:
    """Writes text to stdout as it comes; ends with a line end, whatever the model did."""

    def __init__(self, console: Console, show_drafts: bool = False) -> None:
        self._console = console
        self._show_drafts = show_drafts
        self._at_line_start = True

    def chunk(self, chunk: StreamChunk) -> None:
        """Write what one step added, accepted draft tokens coloured if so wished."""
        for text, drafted in chunk.pieces:
            self.text(text, DRAFT_STYLE if drafted and self._show_drafts else None)
        self._console.file.flush()

    def text(self, text: str, style: str | None = None) -> None:
        """Write text: as it is into a pipe, without control characters to a terminal."""
        if self._console.is_terminal:
            text = text.translate(_CONTROLS)
        if not text:
            return
        if self._console.is_terminal and style:
            self._console.out(text, style=style, highlight=False, end="")
        else:
            self._console.file.write(text)
        self._at_line_start = text.endswith("\n")

    def end(self) -> None:
        """End the line, unless the text did."""
        if not self._at_line_start:
            self._console.file.write("\n")
            self._at_line_start = True
        self._console.file.flush()


def summary(stats: GenerationStats) -> str:
    """One line: tokens, decode speed, mean accepted length, time to first token, prompt and its cached part."""
    speed = f", {1 / stats.time_per_token_s:.1f} tokens/s" if stats.time_per_token_s > 0 else ""
    cached = f", {stats.cached_prompt_tokens} from the cache" if stats.cached_prompt_tokens else ""
    return (
        f"{stats.num_tokens} tokens{speed}, accepted length {stats.mean_accepted_len:.2f}, "
        f"first token after {stats.time_to_first_token_s * 1000:.0f} ms "
        f"(prompt {stats.num_prompt_tokens} tokens{cached})" + (", LOSSY verification" if stats.lossy else "")
    )


def draft_summary(by_drafter: Mapping[str, Any]) -> str | None:
    """One line about every drafter that drafted, accepted of drafted tokens and time; None when none did.

    by_drafter  DrafterStats by name
    """
    parts = [
        f"{name} {stats.accepted} of {stats.drafted} accepted in {1000 * stats.seconds:.1f} ms"
        for name, stats in by_drafter.items()
        if stats.drafts
    ]
    return f"drafts: {'; '.join(parts)}" if parts else None


def failure(choice: Choice) -> str | None:
    """What went wrong with a choice, None when nothing did."""
    if choice.finish_reason in (FinishReason.ERROR, FinishReason.NUMERICAL_ERROR):
        return choice.error or choice.finish_reason.value
    return None


def note(text: str) -> None:
    """A line on stderr that is no error."""
    print(f"forerun: {text}", file=sys.stderr)
