"""ChoiceReader: the updates of one choice of a chat, read through the request's parser."""

from forerun.sequence import Request
from forerun.server.parsing import OutputParser, Part, PlainText
from forerun.server.reasoning import ReasoningParser, reading_reasoning
from forerun.server.schema.chat import ChatRequest
from forerun.server.service import Service
from forerun.server.tools.formats import find_tool_format
from forerun.server.tools.parser import ToolParser
from forerun.server.updates import ChoiceUpdate


class ChoiceReader:
    """Reads one choice.

    num_reasoning  tokens of the reasoning so far, the marks around it included
    has_calls      a tool was called
    """

    def __init__(self, body: ChatRequest, request: Request, service: Service) -> None:
        self._parser = reading_reasoning(_reading_calls(body, service), request, service)
        self.num_reasoning = 0
        self.has_calls = False

    def read(self, update: ChoiceUpdate) -> list[Part]:
        """The parts that became certain."""
        parts: list[Part] = []
        for token in update.tokens:
            before = self._is_reasoning
            parts += self._parser.push(token.text)
            self.num_reasoning += before or self._is_reasoning
        parts += self._parser.push(update.tail)
        if update.choice is not None:
            parts += self._parser.finish()
        self.has_calls |= any(part.tool_call is not None for part in parts)
        return parts

    @property
    def _is_reasoning(self) -> bool:
        return isinstance(self._parser, ReasoningParser) and self._parser.is_reasoning


def _reading_calls(body: ChatRequest, service: Service) -> OutputParser:
    """What reads calls of the tools that are offered, and text."""
    format = find_tool_format(service.llm.tokenizer)
    if format is None or not body.offered:
        return PlainText()
    return ToolParser(format, frozenset(tool.function.name for tool in body.offered))
