"""Tool calls through the official client, in the three ways in which models write them.

The model talks nonsense, so a call comes only where a grammar forces or allows one. What is checked is that it comes
then, that its arguments are of the function's schema, and that streams, drafts and choices do not change it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jsonschema
import openai
import pytest

from forerun.config import SpeculationConfig
from tests.server.calling_models import TEMPLATES, write_calling_model
from tests.server.conftest import MODEL, Server, serving, tiny_llm

NO_GAPS = {"whitespace_pattern": " ?"}
WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "x-guidance": NO_GAPS,
}
ADDING = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "note": {"type": "string", "maxLength": 5}},
    "required": ["a", "note"],
    "additionalProperties": False,
    "x-guidance": NO_GAPS,
}
SCHEMAS = {"get_weather": WEATHER, "add": ADDING, "now": {"type": "object", "maxProperties": 0}}
WIDE = {"type": "object", "properties": {f"k{number}": {"type": "string"} for number in range(700)}}
NAMED: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
FORCED = {"required": "required", "named": NAMED}


def tool(name: str, **more: Any) -> dict[str, Any]:
    parameters = {"parameters": SCHEMAS[name]} if name != "now" else {}
    return {"type": "function", "function": {"name": name, "description": f"does {name}", **parameters, **more}}


REQUIRED = {"tool_choice": "required"}
TOOLS = [tool(name) for name in SCHEMAS]


@pytest.fixture(scope="module", params=TEMPLATES)
def calling(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server of a model that was trained to call tools, by its template."""
    path = write_calling_model(tmp_path_factory.mktemp("models"), request.param)
    speculation = SpeculationConfig("suffix+recycle+ngram", budget="fixed", max_depth=9)
    with serving(tiny_llm(path, speculation, max_num_seqs=8)) as running:
        assert running.http.get("/v1/capabilities").json()["model"]["tools"] == request.param
        yield running


def ask(server: Server, messages: list[Any] | None = None, **options: Any) -> Any:
    messages = messages or [{"role": "user", "content": "What is the weather?"}]
    options = {"max_tokens": 300, "tools": TOOLS, **options}
    return server.openai.chat.completions.create(model=MODEL, messages=messages, **options)


@dataclass(frozen=True)
class Said:
    """What a choice says; ids of calls are drawn anew for every answer."""

    content: str
    calls: tuple[tuple[str, str], ...]
    reason: str


def said(choice: Any) -> Said:
    calls = choice.message.tool_calls or ()
    assert len({call.id for call in calls}) == len(calls)
    assert all(call.type == "function" and call.id for call in calls)
    pairs = tuple((call.function.name, call.function.arguments) for call in calls)
    return Said(choice.message.content or "", pairs, choice.finish_reason)


def check_calls(one: Said) -> None:
    """Their arguments are of their function's schema."""
    for name, arguments in one.calls:
        jsonschema.validate(json.loads(arguments), SCHEMAS[name])


def streamed(server: Server, **options: Any) -> Said:
    """A stream put together as clients do it."""
    content, reason, calls = "", "", {}
    for chunk in ask(server, stream=True, **options):
        (choice,) = chunk.choices
        content += choice.delta.content or ""
        reason = choice.finish_reason or reason
        for piece in choice.delta.tool_calls or ():
            if piece.index not in calls:
                assert piece.id
                assert piece.function.name
                calls[piece.index] = [piece.function.name, ""]
            else:
                assert piece.id is None
                assert piece.function.name is None
            calls[piece.index][1] += piece.function.arguments or ""
    assert list(calls) == list(range(len(calls)))
    return Said(content, tuple((name, arguments) for name, arguments in calls.values()), reason)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 3}, {"seed": 4, "temperature": 1.5}], ids=str)
@pytest.mark.parametrize("forced", FORCED)
def test_a_call_that_must_come_comes_and_neither_drafts_nor_streams_change_it(calling, forced, sampling) -> None:
    options = {"tool_choice": FORCED[forced], **sampling}
    answers = [
        ask(calling, extra_body={"speculation": speculation}, **options)
        for speculation in ({"drafter": "off"}, {}, {"drafter": "recycle"}, {"max_depth": 2})
    ]
    want = said(answers[0].choices[0])
    assert want.calls
    if want.reason == "tool_calls":  # else more and more calls came, up to the limit
        check_calls(want)
    check_calls(Said("", want.calls[:1], ""))
    if forced == "named":
        assert {name for name, _ in want.calls} == {"add"}
    assert [said(answer.choices[0]) for answer in answers] == [want] * len(answers)
    assert answers[0].speculation["drafted"] == 0 < answers[1].speculation["accepted"]
    assert streamed(calling, **options) == want


def test_arguments_come_in_pieces(calling) -> None:
    pieces = [
        piece.function.arguments
        for chunk in ask(calling, stream=True, tool_choice=NAMED, seed=1, parallel_tool_calls=False)
        for piece in chunk.choices[0].delta.tool_calls or ()
    ]
    assert len([piece for piece in pieces if piece]) > 1
    json.loads("".join(pieces))


def test_one_call_or_several(calling) -> None:
    between = calling.http.post("/tokenize", json={"text": ",;\n", "add_special_tokens": False}).json()["tokens"]
    likely = {str(token): 6 for token in between}  # what stands between calls, which nonsense seldom says
    options = {"tool_choice": "required", "n": 8, "seed": 2, "logit_bias": likely, "max_tokens": 200}
    several = [said(choice) for choice in ask(calling, **options).choices]
    assert max(len(one.calls) for one in several) > 1
    for one in several:
        check_calls(one if one.reason == "tool_calls" else Said("", one.calls[:-1], ""))
    single = [said(choice) for choice in ask(calling, parallel_tool_calls=False, **options).choices]
    assert [len(one.calls) for one in single] == [1] * 8
    assert {one.reason for one in single} == {"tool_calls"}
    assert len({one.calls for one in single}) > 1
    for one in single:
        check_calls(one)


def test_where_the_model_may_choose_it_answers_or_calls(calling) -> None:
    """An answer of a form of its own, so that a nonsensical model can give one; or a call, which is then whole."""
    form = {"extra_body": {"guided_regex": "no tool (is|was) needed"}}
    made = [
        said(choice)
        for choice in ask(
            calling, tools=[tool("get_weather")], n=24, seed=1, temperature=2, parallel_tool_calls=False, **form
        ).choices
    ]
    kinds = {bool(one.calls) for one in made}
    for one in made:
        check_calls(one)
        assert (one.reason, one.content != "") == (("tool_calls", False) if one.calls else ("stop", True))
        assert one.content in ("", "no tool is needed", "no tool was needed")
    assert kinds == {True, False}


def test_strict_tools_are_called_right_or_not_at_all(calling) -> None:
    tools = [tool("get_weather", strict=True), tool("add", strict=True)]
    made = [said(choice) for choice in ask(calling, tools=tools, n=8, seed=6, max_tokens=60).choices]
    for one in made:
        whole = one.calls if one.reason in ("stop", "tool_calls") else one.calls[:-1]
        check_calls(Said("", whole, ""))


def test_none_calls_nothing_and_says_what_a_request_without_the_choice_of_tools_says(calling) -> None:
    options = {"temperature": 0, "max_tokens": 40}
    without = said(ask(calling, tool_choice="none", **options).choices[0])
    assert without.calls == ()
    assert without.reason in ("stop", "length")
    assert without.content
    assert streamed(calling, tool_choice="none", **options) == without


def test_a_function_without_parameters_gets_an_empty_object(calling) -> None:
    answer = ask(calling, tools=[tool("now")], tool_choice="required", parallel_tool_calls=False)
    assert said(answer.choices[0]).calls == (("now", "{}"),)


def test_results_go_back_as_messages(calling) -> None:
    question = {"role": "user", "content": "What is the weather?"}
    message = ask(calling, tool_choice=NAMED, seed=8, parallel_tool_calls=False).choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    messages = [question, message.model_dump(exclude_none=True), result]
    answer = ask(calling, messages, temperature=0, max_tokens=20, tool_choice="none")
    assert answer.choices[0].message.content
    body = {"messages": [*messages]}
    ids = calling.http.post("/tokenize", json=body).json()["tokens"]
    prompt = calling.http.post("/detokenize", json={"tokens": ids}).json()["text"]
    assert f"sunny of {call.id}" in prompt
    assert (
        json.dumps(json.loads(call.function.arguments), ensure_ascii=False) in prompt
    )  # as an object, not as its text
    again = ask(calling, messages, tool_choice="required", seed=9, parallel_tool_calls=False)
    check_calls(said(again.choices[0]))


def test_the_client_s_stream_helper_sees_the_call(calling) -> None:
    tools = [tool("add", strict=True)]
    with calling.openai.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "Add."}],
        tools=tools,
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=300,
        seed=1,
    ) as stream:
        kinds = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    jsonschema.validate(call.function.parsed_arguments, ADDING)


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "'custom' is none"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name", "pattern"),
        ({"tools": [tool("add"), tool("add")]}, "tools", "two tools are named 'add'"),
        ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice", "none of the tools"),
        ({"tool_choice": "any"}, "tool_choice", "'none', 'auto' or 'required'"),
        ({"tools": openai.omit, "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tools": [tool("add", parameters={"type": "string"})], **REQUIRED}, "tools", "an object"),
        ({"tools": [tool("add", parameters={"properties": {"x": {"type": "strng"}}})], **REQUIRED}, "tools", "strng"),
        ({"tools": [tool("add", parameters=WIDE)], **REQUIRED}, "tools", "the schema of 'add' .* 700 optional"),
        ({"extra_body": {"functions": []}}, "functions", "replaced by tools"),
    ],
)
def test_what_cannot_be_honoured_is_refused(calling, options, param: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        ask(calling, **options)
    assert caught.value.param == param
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("arguments", ['{"a": 1e999}', '{"a": NaN}', '{"a": 1', "[1]"])
def test_arguments_of_earlier_calls_must_be_sound(calling, arguments: str) -> None:
    call = {"id": "c7", "type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(openai.BadRequestError, match="arguments of call 'c7' must be the JSON text of an object"):
        ask(calling, messages)


def test_a_model_that_knows_no_tools_says_so(server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="not trained to call tools") as caught:
        ask(server)
    assert caught.value.param == "tools"
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    with pytest.raises(openai.BadRequestError, match="tell it in text"):
        ask(server, messages, tools=openai.omit)
