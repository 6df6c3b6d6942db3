"""How wide a JSON schema is: the most optional properties that may come next at one place of the text.

    {"a"?, "b"?, "c", "d"?}        2    a and b before c, which must come; d behind it
    anyOf [{"a"?}, {"b"?, "c"?}]   3    of all that may begin here

The library holds a few items for each of them in one row of its parser, and the rows are bounded. It finds that out
when the text gets there, which may be in the middle of an answer. So it is counted before.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MAX_ITEMS = 1920  # 2,000 in a row, less those of what stands around

# Items for an optional property: where the object begins, with and without one that must come; and behind one.
_BEFORE, _ALONE, _BEHIND = 3, 4, 2

_MAX_DEPTH = 60  # of alternatives and references within each other; what is deeper is left to the library

_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
_ONES = ("items", "additionalProperties", "additionalItems")

_Schema = Mapping[str, Any]


class Width(NamedTuple):
    """items in a row of the parser, for so many optional properties"""

    items: int
    properties: int

    @property
    def is_too_much(self) -> bool:
        """Would the library give up there?"""
        return self.items > MAX_ITEMS


_NONE = Width(0, 0)


def width_of(schema: Any) -> Width:
    """The widest place of a schema."""
    widths = _Widths(schema)
    return max((widths.widest(place) for place in _places(schema)), default=_NONE)


class _Widths:
    """Counts for one schema and the places in it, each once, however often they are referred to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._first: dict[int, Width] = {}
        self._merged: dict[int, tuple[dict[str, None], frozenset[str]]] = {}

    def widest(self, schema: _Schema) -> Width:
        """Where an object's properties are told, and where it begins."""
        return max(self._first_of(schema, 0), *self._runs(schema, 0))

    def _first_of(self, schema: Any, depth: int) -> Width:
        """How many may come first in what the schema describes."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return _NONE
        if id(schema) not in self._first:
            self._first[id(schema)] = _NONE  # what refers to itself adds nothing new
            either = [self._first_of(one, depth + 1) for key in ("anyOf", "oneOf") for one in _list(schema.get(key))]
            others = Width(sum(one.items for one in either), sum(one.properties for one in either))
            referred = self._first_of(self._referred(schema), depth + 1)
            self._first[id(schema)] = max(self._runs(schema, depth)[0], others, referred)
        return self._first[id(schema)]

    def _runs(self, schema: _Schema, depth: int) -> list[Width]:
        """Optional properties before the first that is required, between it and the second, and so on."""
        names, required = self._properties(schema, depth)
        runs = [0]
        for name in names:
            if name in required:
                runs.append(0)
            else:
                runs[-1] += 1
        before = _ALONE if len(runs) == 1 else _BEFORE
        return [Width(count * (_BEHIND if at else before), count) for at, count in enumerate(runs)]

    def _properties(self, schema: Any, depth: int) -> tuple[dict[str, None], frozenset[str]]:
        """Names of the properties, of all parts that must hold together, and which of them are required."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return {}, frozenset()
        if id(schema) not in self._merged:
            self._merged[id(schema)] = {}, frozenset()
            properties = schema.get("properties")
            names = dict.fromkeys(properties) if isinstance(properties, Mapping) else {}
            required = frozenset(name for name in _list(schema.get("required")) if isinstance(name, str))
            for part in (self._referred(schema), *_list(schema.get("allOf"))):
                more, needed = self._properties(part, depth + 1)
                names, required = {**names, **more}, required | needed
            self._merged[id(schema)] = names, required
        return self._merged[id(schema)]

    def _referred(self, schema: _Schema) -> Any:
        """What its $ref points at, None for nothing within the schema."""
        pointer = schema.get("$ref")
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        found = self._root
        for step in pointer[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def _places(schema: Any) -> Iterator[_Schema]:
    """The schema and all that stand within it; values such as those of `enum` are none."""
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, Mapping):
            continue
        yield one
        waiting += (part for key in _LISTS for part in _list(one.get(key)))
        waiting += (one.get(key) for key in _ONES)
        for key in _MAPS:
            parts = one.get(key)
            waiting += parts.values() if isinstance(parts, Mapping) else ()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
