"""OutputParser: the text of one choice, as it comes, into the parts of a message."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class ToolCallPart:
    """A piece of a tool call: the first piece of a call has its id and name, later ones add arguments."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Part:
    """What some text became; exactly one field is set."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallPart | None = None


class OutputParser(Protocol):
    """One per choice. The parts do not depend on how the text was cut into pushes, only their division does."""

    def push(self, text: str) -> list[Part]:
        """Take more text; give what is certain."""
        ...

    def finish(self) -> list[Part]:
        """The text has ended; give the rest."""
        ...


class PlainText:
    """All text is content."""

    def push(self, text: str) -> list[Part]:
        return [Part(content=text)] if text else []

    def finish(self) -> list[Part]:
        return []
