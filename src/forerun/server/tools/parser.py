"""ToolParser: an answer's text into content and tool calls, as it comes.

    text  <tool_call> \\n {"name": "f", "arguments": {"x": 1}} \\n </tool_call>
          gap          call                                    behind        text ...

What looks like a call and is none - no JSON, or of a function that nobody offered - is content. Blank lines around
calls belong to nothing. A call's arguments are passed on as soon as its name is known.
"""

import secrets

from forerun.server.parsing import Part, ToolCallPart
from forerun.server.tools.calls import CallReader
from forerun.server.tools.formats import ARGS_TAG, PYTHON_TAG, ToolFormat

_ID_CHARACTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9  # the templates of Mistral's models want exactly so many letters and digits


class ToolParser:
    """One choice. names  of the functions that are offered"""

    def __init__(self, format: ToolFormat, names: frozenset[str]) -> None:
        self._format, self._names = format, names
        self._mark = format.opening or PYTHON_TAG
        self._state = "text"
        self._held = ""  # not decided yet
        self._raw = ""  # what a call that turns out to be none has taken
        self._is_start = True  # nothing but blanks has come
        self._drops_blanks = False  # those behind a call
        self._num_calls = 0
        self._reader = CallReader()
        self._is_named = False
        self._has_arguments = False  # some were passed on
        self._is_leading = False  # the name stood before the object, which is the arguments alone
        self._parts: list[Part] = []

    def push(self, text: str) -> list[Part]:
        self._held += text
        while self._held and self._turn():
            pass
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        if self._state in ("call", "gap") and not self._is_named:
            self._content(self._raw + self._held)
        elif self._state == "text":
            self._content(self._held)
        self._held = self._raw = ""
        parts, self._parts = self._parts, []
        return parts

    def _turn(self) -> bool:
        """Go on from here; False when more text is needed."""
        if self._state == "text":
            return self._read_text()
        if self._state == "gap":
            return self._read_gap()
        if self._state == "call":
            return self._read_call()
        return self._read_behind()

    # ---- text ----

    def _read_text(self) -> bool:
        if self._drops_blanks:
            self._held = self._held.lstrip()
        if self._may_begin_bare:
            blank = len(self._held) - len(self._held.lstrip())
            if self._held[blank : blank + 1] == "{":
                self._raw, self._held = self._held[:blank], self._held[blank:]
                self._begin_call()
                return True
        mark = self._mark
        at = self._held.find(mark)
        if at >= 0:
            before = self._held[:at]
            self._content(before.rstrip())
            kept = len(before.rstrip())
            self._raw, self._held = self._held[kept : at + len(mark)], self._held[at + len(mark) :]
            self._state = "gap"
            return True
        certain = len(self._held) - _overlap(self._held, mark)
        certain = len(self._held[:certain].rstrip())
        self._content(self._held[:certain])
        self._held = self._held[certain:]
        return False

    @property
    def _may_begin_bare(self) -> bool:
        return not self._format.opening and self._is_start

    def _content(self, text: str) -> None:
        if not text:
            return
        self._is_start = self._is_start and not text.strip()
        self._drops_blanks = False
        self._parts.append(Part(content=text))

    # ---- from mark to call ----

    def _read_gap(self) -> bool:
        character = self._held[0]
        if character.isspace() or (self._format.is_list and character == "["):
            self._raw, self._held = self._raw + character, self._held[1:]
            return True
        if character == "{":
            self._begin_call()
            return True
        if self._format.is_list and (character.isalnum() or character in "_-"):
            return self._read_leading_name()
        return self._give_up()

    def _read_leading_name(self) -> bool:
        """Newer Mistral models: the name, perhaps [ARGS], then the arguments alone."""
        end = next((at for at, c in enumerate(self._held) if not (c.isalnum() or c in "_-.")), None)
        if end is None:
            return False
        name, rest = self._held[:end], self._held[end:]
        if ARGS_TAG.startswith(rest) and len(rest) < len(ARGS_TAG):
            return False
        rest = rest.removeprefix(ARGS_TAG)
        if not rest.lstrip():
            return False
        if name not in self._names or rest.lstrip()[0] != "{":
            return self._give_up()
        self._begin_call()
        for character in f'{{"name": "{name}", "arguments": ':
            self._reader.push(character)
        self._raw += self._held[: len(self._held) - len(rest)]
        self._held = rest
        self._is_leading = True
        return True

    def _give_up(self) -> bool:
        """It was no call: all of it is content."""
        self._state = "text"
        raw, self._raw = self._raw, ""
        self._content(raw)
        return True

    # ---- calls ----

    def _begin_call(self) -> None:
        self._state, self._reader = "call", CallReader()
        self._is_named = self._has_arguments = self._is_leading = False

    def _read_call(self) -> bool:
        reader, call = self._reader, self._reader.call
        for at, character in enumerate(self._held):
            reader.push(character)
            if self._is_leading and reader.has_value:
                reader.push("}")
            if reader.is_broken and not self._is_named:
                self._raw, self._held = self._raw + self._held[: at + 1], self._held[at + 1 :]
                return self._give_up()
            if call.name is not None and not self._is_named and (call.arguments or reader.is_done):
                if call.name not in self._names:
                    self._raw, self._held = self._raw + self._held[: at + 1], self._held[at + 1 :]
                    return self._give_up()
                self._is_named = True
                self._add(ToolCallPart(self._num_calls, _new_id(), call.name))
            if reader.is_done or reader.is_broken:
                self._pass_on()
                if reader.is_done and not self._has_arguments:
                    self._add(ToolCallPart(self._num_calls, arguments="{}"))
                self._end_call(self._held[at + 1 :])
                return True
        self._pass_on()
        self._raw, self._held = self._raw + self._held, ""
        return False

    def _pass_on(self) -> None:
        """The arguments that have come, once the call has a name."""
        call = self._reader.call
        if self._is_named and call.arguments:
            self._add(ToolCallPart(self._num_calls, arguments="".join(call.arguments)))
            self._has_arguments = True
            call.arguments.clear()

    def _add(self, piece: ToolCallPart) -> None:
        self._parts.append(Part(tool_call=piece))

    def _end_call(self, rest: str) -> None:
        self._num_calls += 1
        self._state, self._held, self._raw = "behind", rest, ""
        self._is_start, self._drops_blanks = False, True

    def _read_behind(self) -> bool:
        """Behind a call: its closing mark, another call, or text."""
        text = self._held.lstrip()
        if not text:
            self._held = ""
            return False
        closing = self._format.closing
        if closing and closing.startswith(text) and len(text) < len(closing):
            return False
        if closing and text.startswith(closing):
            self._held, self._state = text[len(closing) :], "text"
            return True
        separators = {"mistral": ",]", "llama": ";,"}.get(self._format.name, "")
        if text[0] in separators:
            self._held = text[1:]
            self._state = "text" if text[0] == "]" else "behind"
            return True
        if text[0] == "{":
            self._held = text
            self._begin_call()
            return True
        self._held, self._state = text, "text"
        return True


def _overlap(text: str, mark: str) -> int:
    """Characters at the end of a text that may begin the mark."""
    return next((n for n in range(min(len(text), len(mark) - 1), 0, -1) if text.endswith(mark[:n])), 0)


def _new_id() -> str:
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
