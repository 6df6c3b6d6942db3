"""CallReader: the JSON object of one call, character by character, its arguments given on as they come."""

import json
from dataclasses import dataclass, field

_NAME = "name"
_ARGUMENTS = ("arguments", "parameters")
_BLANK = " \t\r\n"


@dataclass
class Call:
    """What is known of a call.

    name       None until it is known
    arguments  those that have come; given on once the name is known
    """

    name: str | None = None
    arguments: list[str] = field(default_factory=list)


class CallReader:
    """Reads one object, from its opening brace on.

    is_done  the object is closed; is_broken  it is no call: no JSON, or without a name
    """

    def __init__(self) -> None:
        self.call = Call()
        self.is_done = self.is_broken = False
        self._state = "open"
        self._text: list[str] = []  # of the key or value that is being read
        self._key = ""
        self._depth = 0
        self._in_string = self._escaped = False

    def push(self, character: str) -> None:
        """Take one more character."""
        getattr(self, "_" + self._state)(character)

    @property
    def has_value(self) -> bool:
        """A value is complete, and the object goes on behind it."""
        return self._state == "after_value"

    # ---- states, each for one character ----

    def _open(self, character: str) -> None:
        self._expect(character, {"{": "key_or_end"})

    def _key_or_end(self, character: str) -> None:
        if character == "}":
            self._end()
        elif character == '"':
            self._begin("key", character)
        elif character not in _BLANK:
            self.is_broken = True

    def _key_only(self, character: str) -> None:
        if character == '"':
            self._begin("key", character)
        elif character not in _BLANK:
            self.is_broken = True

    def _in_key(self, character: str) -> None:
        self._text.append(character)
        if self._ends_string(character):
            self._key = self._decoded()
            self._state = "colon"

    def _colon(self, character: str) -> None:
        self._expect(character, {":": "before_value"})

    def _before_value(self, character: str) -> None:
        if character in _BLANK:
            return
        if character in "{[":
            self._begin("nested", character)
            self._depth = 1
            self._give(character)
        elif character == '"':
            self._begin("text", character)
        elif character in "-0123456789tfn":
            self._begin("word", character)
        else:
            self.is_broken = True

    def _in_nested(self, character: str) -> None:
        self._give(character)
        if self._in_string:
            self._in_string = not self._ends_string(character)
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._state = "after_value"

    def _in_text(self, character: str) -> None:
        self._text.append(character)
        if not self._ends_string(character):
            return
        self._state = "after_value"
        value = self._decoded()
        if self._key == _NAME:
            self.call.name = value
        elif self._key in _ARGUMENTS:  # some models write the arguments' text
            self._give(value)

    def _in_word(self, character: str) -> None:
        if character not in ",}" + _BLANK:
            self._text.append(character)
            return
        self._state = "after_value"
        self._after_value(character)

    def _after_value(self, character: str) -> None:
        if character == "}":
            self._end()
        else:
            self._expect(character, {",": "key_only"})

    # ---- parts ----

    def _begin(self, what: str, character: str) -> None:
        self._text = [character]
        self._state = f"in_{what}"
        self._escaped = False

    def _give(self, text: str) -> None:
        if self._key in _ARGUMENTS:
            self.call.arguments.append(text)

    def _ends_string(self, character: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        else:
            return character == '"'
        return False

    def _decoded(self) -> str:
        try:
            return str(json.loads("".join(self._text), strict=False))
        except ValueError:
            self.is_broken = True
            return ""

    def _expect(self, character: str, following: dict[str, str]) -> None:
        if character in following:
            self._state = following[character]
        elif character not in _BLANK:
            self.is_broken = True

    def _end(self) -> None:
        self.is_done = True
        self.is_broken |= self.call.name is None
