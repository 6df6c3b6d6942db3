"""Grammar: what a request asks its text to be, not compiled yet."""

import json
import re
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal

from forerun.errors import RequestError
from forerun.grammar.width import width_of

MAX_SOURCE_BYTES = 256 << 10  # of a grammar as it was written
MAX_CHOICES = 10_000

Kind = Literal["json_schema", "regex", "lark"]


@dataclass(frozen=True)
class Grammar:
    """A grammar in one of the forms that users write. Two of the same kind and text are one grammar.

    kind   how `text` is read: as a JSON schema, a regular expression, or a grammar in llguidance's dialect of lark
    param  the option that brought it, for errors
    """

    kind: Kind
    text: str
    param: str = "grammar"

    def __post_init__(self) -> None:
        if len(self.text.encode(errors="surrogatepass")) > MAX_SOURCE_BYTES:
            raise self.error(f"it is longer than {MAX_SOURCE_BYTES >> 10} KiB")

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | bool | str, param: str = "grammar") -> "Grammar":
        """JSON that is valid under a schema, given as an object or as its text. Raises RequestError."""
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError):
                raise RequestError(f"{param} must be a JSON schema, but is no JSON", param=param) from None
        if not isinstance(schema, (Mapping, bool)):
            raise RequestError(f"{param} must be a JSON schema: an object", param=param)
        try:
            # Keys stay in their order: it is the order of the properties in the output.
            grammar = cls("json_schema", json.dumps(schema, separators=(",", ":"), allow_nan=False), param)
        except (TypeError, ValueError, RecursionError):
            raise RequestError(f"{param} must be a JSON schema, nested less deeply", param=param) from None
        refuse_wide(schema, param)
        return grammar

    @classmethod
    def json_object(cls, param: str = "grammar") -> "Grammar":
        """Any JSON object."""
        return cls("json_schema", '{"type":"object"}', param)

    @classmethod
    def regex(cls, pattern: str, param: str = "grammar") -> "Grammar":
        """Text that matches a regular expression from its first to its last character; `.` is any but a line's end."""
        return cls("regex", pattern, param)

    @classmethod
    def lark(cls, text: str, param: str = "grammar") -> "Grammar":
        """Text that a context-free grammar generates, from its rule `start`."""
        return cls("lark", text, param)

    @classmethod
    def choice(cls, texts: Seq[str], param: str = "grammar") -> "Grammar":
        """One of these texts. Raises RequestError for an empty list."""
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise RequestError(f"{param} must be a list of at least one text, none of them empty", param=param)
        if len(texts) > MAX_CHOICES:
            raise RequestError(f"{param} has {len(texts)} choices: at most {MAX_CHOICES} are taken", param=param)
        return cls("regex", "|".join(re.escape(text) for text in texts), param)

    def error(self, fact: str) -> RequestError:
        """What a user is told about it."""
        return RequestError(f"{self.param}: this {_NAMES[self.kind]} cannot be used: {fact}", param=self.param)


def refuse_wide(schema: Mapping[str, Any] | bool, param: str, what: str = "this JSON schema") -> None:
    """Raise RequestError for a schema with more optional properties at one place than the library can keep apart."""
    width = width_of(schema)
    if width.is_too_much:
        raise RequestError(
            f"{param}: {what} cannot be used: {width.properties} optional properties may come next at one place of it, "
            "too many to keep apart: require some of them, or split the object",
            param=param,
        )


_NAMES = {"json_schema": "JSON schema", "regex": "regular expression", "lark": "grammar"}
