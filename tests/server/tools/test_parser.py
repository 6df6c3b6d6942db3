"""ToolParser: calls out of text, the same however the text is cut."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.server.message import message_of
from forerun.server.tools.formats import HERMES, LLAMA, MISTRAL, ToolFormat
from forerun.server.tools.parser import ToolParser

NAMES = frozenset({"get_weather", "add"})
WEATHER = '{"name": "get_weather", "arguments": {"city": "Par\\"is{", "days": [1, {"a": "}"}]}}'
WEATHER_ARGUMENTS = '{"city": "Par\\"is{", "days": [1, {"a": "}"}]}'
ADD = '{"name": "add", "arguments": {"a": 1}}'


def read(format: ToolFormat, text: str, cuts=()):
    """(content, [(name, arguments)]) of a text that comes in pieces."""
    parser = ToolParser(format, NAMES)
    parts, start = [], 0
    for cut in [*sorted(cuts), len(text)]:
        parts += parser.push(text[start:cut])
        start = cut
    message = message_of(parts + parser.finish())
    calls = message.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(len(call["id"]) == 9 and call["id"].isalnum() for call in calls)
    return message["content"], [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


CASES = [
    (HERMES, "Hello, world.", "Hello, world.", []),
    (HERMES, "", "", []),
    (HERMES, " \n", " \n", []),
    (HERMES, f"<tool_call>\n{WEATHER}\n</tool_call>", None, [("get_weather", WEATHER_ARGUMENTS)]),
    (
        HERMES,
        f"I look.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>{WEATHER}</tool_call>\n",
        "I look.",
        [("add", '{"a": 1}'), ("get_weather", WEATHER_ARGUMENTS)],
    ),
    (HERMES, f"<tool_call>\n{ADD}\n{ADD}\n</tool_call> done", "done", [("add", '{"a": 1}')] * 2),
    (HERMES, f"<tool_call>\n{ADD}", None, [("add", '{"a": 1}')]),
    (HERMES, 'a <tool_call>{"name": "add"}</tool_call>', "a", [("add", "{}")]),
    (HERMES, '<tool_call>{"name": "add", "arguments": null}', None, [("add", "{}")]),
    (HERMES, '<tool_call>{"arguments": {"a": 2}, "name": "add"}', None, [("add", '{"a": 2}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}', None, [("add", '{"a": 1}')]),
    (HERMES, '<tool_call>{"name": "add", "arguments": {"a": ', None, [("add", '{"a": ')]),
    (HERMES, '<tool_call>{"name": "oth', '<tool_call>{"name": "oth', []),
    (
        HERMES,
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>.',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>.',
        [],
    ),
    (HERMES, "a <tool_call> b", "a <tool_call> b", []),
    (HERMES, "<tool_call>{]}", "<tool_call>{]}", []),
    (HERMES, '<tool_call>{"x": 1}', '<tool_call>{"x": 1}', []),
    (HERMES, "a < b <tool_", "a < b <tool_", []),
    (HERMES, '{"name": "add", "arguments": {}}', '{"name": "add", "arguments": {}}', []),
    (LLAMA, ADD.replace("arguments", "parameters"), None, [("add", '{"a": 1}')]),
    (LLAMA, "<|python_tag|>" + ADD, None, [("add", '{"a": 1}')]),
    (LLAMA, f"\n{ADD}; {ADD}", None, [("add", '{"a": 1}')] * 2),
    (LLAMA, '{"city": "Paris"}', '{"city": "Paris"}', []),
    (LLAMA, '<|python_tag|>brave.call(q="x")', '<|python_tag|>brave.call(q="x")', []),
    (LLAMA, f"It is {ADD}", f"It is {ADD}", []),
    (MISTRAL, f"[TOOL_CALLS] [{WEATHER}, {ADD}]", None, [("get_weather", WEATHER_ARGUMENTS), ("add", '{"a": 1}')]),
    (MISTRAL, f"Well: [TOOL_CALLS][{ADD}]", "Well:", [("add", '{"a": 1}')]),
    (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": {"b": 1}}', None, [("add", '{"a": {"b": 1}}')]),
    (MISTRAL, '[TOOL_CALLS]add{"a": 1}[TOOL_CALLS]get_weather{}', None, [("add", '{"a": 1}'), ("get_weather", "{}")]),
    (MISTRAL, '[TOOL_CALLS]other{"a": 1}', '[TOOL_CALLS]other{"a": 1}', []),
    (MISTRAL, "a [1, 2]", "a [1, 2]", []),
]


@pytest.mark.parametrize(("format", "text", "content", "calls"), CASES)
def test_text_becomes_content_and_calls(format, text, content, calls):
    assert read(format, text) == (content, calls)


@pytest.mark.parametrize(("format", "text", "content", "calls"), CASES)
def test_cuts_do_not_matter(format, text, content, calls):
    assert read(format, text, range(len(text))) == (content, calls)
    rng = random.Random(len(text))
    for _ in range(20):
        assert read(format, text, rng.sample(range(len(text) + 1), min(3, len(text)))) == (content, calls)


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "[ARGS]",
        "<|python_tag|>",
        "{",
        "}",
        "[",
        "]",
        '"',
        "\\",
        ADD,
        WEATHER,
        "add",
        '"name"',
        ":",
        '"arguments"',
        ",",
        ";",
        " ",
        "\n",
        "<",
        "x",
        "é",
        "1",
        "null",
    ]
)


@given(st.sampled_from([HERMES, LLAMA, MISTRAL]), st.lists(PIECES, max_size=12), st.randoms(use_true_random=False))
def test_cuts_do_not_matter_for_any_text(format, pieces, rng):
    text = "".join(pieces)
    whole = read(format, text)
    assert read(format, text, range(len(text))) == whole
    assert read(format, text, rng.sample(range(len(text) + 1), min(3, len(text)))) == whole
    for name, _ in whole[1]:
        assert name in NAMES


def test_arguments_come_as_they_are_written():
    parser = ToolParser(HERMES, NAMES)
    parts = [parser.push(character) for character in f"<tool_call>{WEATHER}"]
    pieces = [part.tool_call for some in parts for part in some]
    assert (pieces[0].index, pieces[0].name, pieces[0].arguments) == (0, "get_weather", "")
    assert len(pieces) > 20
    assert json.loads("".join(piece.arguments for piece in pieces))["days"] == [1, {"a": "}"}]
    assert all(not piece.id and not piece.name for piece in pieces[1:])
