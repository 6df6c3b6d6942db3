"""Width: what the library cannot follow is refused before, and little else; checked against the library itself."""

import json
import time
from typing import Any

import pytest

from forerun.errors import GrammarError, RequestError
from forerun.grammar.compiler import GrammarCompiler
from forerun.grammar.source import Grammar
from forerun.grammar.width import width_of
from forerun.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_level

TOKENIZER = Tokenizer.from_gguf(byte_level("smollm")[1])
COMPILER = GrammarCompiler(TOKENIZER)


def names(count: int, prefix: str = "k") -> dict[str, Any]:
    return {f"{prefix}{number}": {"type": "null"} for number in range(count)}


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def halves(count: int) -> tuple[dict[str, Any], dict[str, Any]]:
    return closed(names(count // 2, "a")), closed(names(count - count // 2, "b"))


def parts(count: int) -> list[dict[str, Any]]:
    return [{"type": "object", "properties": one["properties"]} for one in halves(count)]


def between(count: int) -> dict[str, Any]:
    return closed({"first": {"type": "null"}, **names(count), "last": {"type": "null"}}, "first", "last")


PLACES = {
    "open": (480, lambda count: {"type": "object", "properties": names(count)}, "{"),
    "closed": (480, lambda count: closed(names(count)), "{"),
    "before": (640, lambda count: closed({**names(count), "last": {"type": "null"}}, "last"), "{"),
    "between": (960, between, '{"first":null,'),
    "within": (480, lambda count: closed({"x": {"type": "array", "items": closed(names(count))}}, "x"), '{"x":[{'),
    "either": (480, lambda count: {"anyOf": [*halves(count), {"type": "null"}]}, "{"),
    "both": (480, lambda count: {"allOf": parts(count)}, "{"),
    "referred": (
        480,
        lambda count: {
            "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b~1"}],
            "$defs": dict(zip(("a", "b/"), halves(count), strict=True)),
        },
        "{",
    ),
}


def follow(schema: dict[str, Any], text: str) -> None:
    """Let the library go along a text, whatever the width."""
    mask = COMPILER.compile(Grammar("json_schema", json.dumps(schema)))()
    for letter in text:
        for token in TOKENIZER.encode(letter):
            mask.allowed()
            mask.advance(token)
    mask.allowed()


@pytest.mark.parametrize("place", PLACES)
def test_the_widest_place_is_counted_as_the_library_meets_it(place: str) -> None:
    most, make, text = PLACES[place]
    assert [width_of(make(count)).properties for count in (1, most)] == [1, most]
    follow(make(most), text)
    Grammar.json_schema(make(most))
    too_many = most + 80
    with pytest.raises(GrammarError, match="Current row has"):
        follow(make(too_many), text)
    with pytest.raises(RequestError, match=f"schema_: .* {too_many} optional properties .*: require some") as caught:
        Grammar.json_schema(json.dumps(make(too_many)), "schema_")
    assert caught.value.param == "schema_"


@pytest.mark.parametrize(
    ("schema", "width"),
    [
        (True, 0),
        ({"type": "string"}, 0),
        (closed(names(900), *names(900)), 0),  # all required
        ({"anyOf": [closed({"t": {"const": str(i)}, **names(100)}, "t") for i in range(20)]}, 100),  # told apart by t
        ({"enum": [{"properties": names(900)}], "default": {"properties": names(900)}}, 0),  # values
        ({"properties": {"properties": {"properties": names(3)}}}, 3),  # a property of that name
        ({"$ref": "#", "anyOf": [{"$ref": "#"}, {"$ref": "#/nowhere/0"}, 7, None]}, 0),
        ({"properties": "x", "required": 3, "anyOf": {}, "$defs": [], "$ref": 5, "items": [closed(names(4)), 3]}, 4),
    ],
)
def test_what_is_not_wide_is_taken(schema: Any, width: int) -> None:
    assert width_of(schema).properties == width


def test_references_to_references_cost_no_time() -> None:
    """Each names the next twice: 2^300 paths."""
    chain = {
        f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "allOf": [{"$ref": "#/$defs/d0"}] * 2}
        for i in range(300)
    }
    start = time.thread_time()
    width_of({"$ref": "#/$defs/d0", "$defs": chain | {"d300": closed(names(5))}})
    assert time.thread_time() - start < 2


def test_depth_is_no_danger() -> None:
    deep: dict[str, Any] = closed(names(3))
    for _ in range(5000):
        deep = {"anyOf": [deep], "items": {}}
    assert width_of(deep).properties == 3
