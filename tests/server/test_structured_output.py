"""Structured output through the official client: what comes is of the form that was asked for, drafted or not.

The model talks nonsense, so whatever is valid here is so because of the grammar.
"""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from forerun.config import SpeculationConfig
from forerun.grammar import mask, meter
from tests.server.conftest import MODEL, Server, serving, tiny_llm

NO_GAPS = {"whitespace_pattern": " ?"}  # else a model that talks nonsense fills its answer with blanks
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["engineer", "english teacher", "doctor"]},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 999}, "is_home": {"type": "boolean"}},
            "required": ["number", "is_home"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "kind", "tags", "address"],
    "additionalProperties": False,
    "x-guidance": NO_GAPS,
}
WIDE = {"type": "object", "properties": {f"k{number}": {"type": "string"} for number in range(1000)}}
PATTERN = r"(the (cat|cattle|dog) sat on the (mat|matter); ){2,4}end\."
LARK = 'start: "[" sum "]"\nsum: NUMBER ("+" NUMBER)~0..3\nNUMBER: /[0-9]{1,3}/'
CHOICES = ["a long answer about nothing", "a long story", "nothing"]
SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0}, "seeded": {"temperature": 1.2, "seed": 5}}
ON_AND_OFF: list[dict[str, Any]] = [
    {"drafter": "off"},
    {},
    {"drafter": "ngram"},
    {"max_depth": 1},
    {"drafter": "grammar"},
]


def json_schema(schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, **more}}


def is_sum(text: str) -> bool:
    return re.fullmatch(r"\[\d{1,3}(\+\d{1,3}){0,3}\]", text) is not None


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "json schema": ({"response_format": json_schema(SCHEMA)}, is_person),
    "strict json schema": ({"response_format": json_schema(SCHEMA, strict=True)}, is_person),
    "regex": ({"extra_body": {"guided_regex": PATTERN}}, lambda text: re.fullmatch(PATTERN, text)),
    "grammar": ({"extra_body": {"guided_grammar": LARK}}, is_sum),
    "choice": ({"extra_body": {"guided_choice": CHOICES}}, CHOICES.__contains__),
}


@pytest.fixture(scope="module")
def drafting(tiny_model: Path) -> Iterator[Server]:
    """A server on which every draft is verified, however seldom it is right."""
    speculation = SpeculationConfig("suffix+recycle+ngram", budget="fixed", max_depth=9)
    with serving(tiny_llm(tiny_model, speculation, max_num_seqs=8)) as running:
        yield running


def ask(server: Server, text: str = "Invent a person.", **options: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    return server.openai.chat.completions.create(model=MODEL, messages=messages, **({"max_tokens": 400} | options))


def streamed(server: Server, **options: Any) -> tuple[str, str]:
    """The text of a stream, and how it ended."""
    text, reason = "", ""
    for chunk in ask(server, stream=True, **options):
        text += chunk.choices[0].delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
    return text, reason


def with_speculation(options: dict[str, Any], speculation: dict[str, Any]) -> dict[str, Any]:
    return options | {"extra_body": options.get("extra_body", {}) | {"speculation": speculation}}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_kept_and_drafts_change_nothing(drafting: Server, form: str, sampling: str) -> None:
    options, is_right = FORMS[form]
    options = options | SAMPLINGS[sampling]
    answers = [ask(drafting, **with_speculation(options, speculation)) for speculation in ON_AND_OFF]
    texts = [answer.choices[0].message.content for answer in answers]
    assert answers[0].choices[0].finish_reason == "stop"
    assert is_right(texts[0]), texts[0]
    assert texts == [texts[0]] * len(texts)
    assert answers[0].speculation["drafted"] == 0 < answers[1].speculation["accepted"]
    last = answers[-1].speculation
    assert last["accepted_by"].keys() == last["drafted_by"].keys() == {"grammar"}
    assert sum(last["drafted_by"].values()) == last["drafted"]
    assert sum(last["accepted_at"]) == last["accepted"]
    assert len(last["drafted_at"]) == len(last["accepted_at"]) > 0
    assert streamed(drafting, **options) == (texts[0], "stop")


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_any_json_object(drafting: Server, sampling: str) -> None:
    """An object has no bound of its own: what is cut at the limit is the beginning of one."""
    options = {"response_format": {"type": "json_object"}, "max_tokens": 60, **SAMPLINGS[sampling]}
    choices = [ask(drafting, **with_speculation(options, one)).choices[0] for one in ON_AND_OFF]
    assert choices[0].message.content.startswith("{")
    assert len({(choice.message.content, choice.finish_reason) for choice in choices}) == 1
    if choices[0].finish_reason == "stop":
        assert isinstance(json.loads(choices[0].message.content), dict)


def test_without_a_form_the_same_model_says_no_json(drafting: Server) -> None:
    """The control: nothing above is the model's own doing."""
    for sampling in SAMPLINGS.values():
        text = ask(drafting, max_tokens=100, **sampling).choices[0].message.content
        with pytest.raises(ValueError):
            json.loads(text)


class Kind(Enum):
    DOCTOR = "doctor"
    TEACHER = "teacher"


class Address(BaseModel):
    number: int = Field(ge=1, le=99)
    is_home: bool


class Person(BaseModel):
    model_config = ConfigDict(json_schema_extra={"x-guidance": NO_GAPS})
    kind: Kind
    addresses: list[Address] = Field(min_length=1, max_length=2)
    age: int | None = Field(ge=0, le=120)


def test_the_client_s_parse_gives_objects(drafting: Server) -> None:
    """Its schemas are strict and use $ref, anyOf and null."""
    people = []
    for seed in range(4):
        answer = drafting.openai.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": "Invent a person."}],
            response_format=Person,
            seed=seed,
            max_tokens=400,
        )
        assert answer.choices[0].finish_reason == "stop"
        people.append(answer.choices[0].message.parsed)
    assert all(isinstance(person, Person) for person in people)
    assert len({person.model_dump_json() for person in people}) > 1


def test_the_client_s_parse_for_responses_too(drafting: Server) -> None:
    answer = drafting.openai.responses.parse(
        model=MODEL, input="Invent a person.", text_format=Person, max_output_tokens=400
    )
    assert isinstance(answer.output_parsed, Person)


def test_the_client_s_stream_helper_parses_as_it_comes(drafting: Server) -> None:
    with drafting.openai.chat.completions.stream(
        model=MODEL,
        messages=[{"role": "user", "content": "Invent a person."}],
        response_format=Person,
        max_tokens=400,
        seed=1,
    ) as stream:
        events = [event.type for event in stream]
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert events.count("content.delta") > 1
    assert isinstance(parsed, Person)


def test_choices_and_continuations_keep_the_form(drafting: Server) -> None:
    answer = ask(drafting, n=4, seed=3, response_format=json_schema(SCHEMA))
    texts = [choice.message.content for choice in answer.choices]
    assert all(is_person(text) for text in texts)
    assert len(set(texts)) > 1
    plain = drafting.openai.completions.create(
        model=MODEL, prompt=["one", "two"], max_tokens=400, extra_body={"guided_choice": CHOICES}
    )
    assert all(choice.text in CHOICES for choice in plain.choices)


def test_log_probabilities_are_those_of_the_model(drafting: Server) -> None:
    """What is forced has probability 1 under the grammar; what is told is the model's own."""
    told = [
        ask(drafting, logprobs=True, **with_speculation(FORMS["choice"][0] | SAMPLINGS["greedy"], speculation))
        for speculation in ON_AND_OFF
    ]
    values = [[entry.logprob for entry in answer.choices[0].logprobs.content] for answer in told]
    assert values == [values[0]] * len(values)
    assert min(values[0]) < -1


@pytest.mark.parametrize(
    ("options", "param", "words"),
    [
        ({"response_format": json_schema({"type": "strng"})}, "response_format", "Invalid type: strng"),
        ({"response_format": json_schema(WIDE)}, "response_format", "1000 optional properties .* require some of them"),
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": json_schema(SCHEMA), "extra_body": {"guided_regex": "x"}}, "guided_regex", "pass one"),
        ({"extra_body": {"guided_regex": "(a"}}, "guided_regex", "unclosed group"),
        ({"extra_body": {"guided_grammar": "start: nowhere"}}, "guided_grammar", "unknown name"),
        ({"extra_body": {"guided_choice": []}}, "guided_choice", "must not be empty"),
        ({"extra_body": {"guided_json": SCHEMA}}, "guided_json", "not an option"),
    ],
)
def test_what_cannot_be_kept_is_refused(drafting: Server, options, param: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        ask(drafting, **options)
    assert caught.value.param == param


def test_a_grammar_that_grows_while_it_is_used_harms_its_own_request_only(drafting: Server) -> None:
    """It compiles in no time and explodes on the way. The client is told so, and no drafter is held to be at fault."""
    hostile = {"guided_regex": "(((a{1,99}){1,99}){1,99}b|c){99}"}
    want = ask(drafting, temperature=0, max_tokens=30).choices[0].message.content
    for _ in range(6):
        with pytest.raises(openai.BadRequestError, match="the grammar cannot go on here") as caught:
            ask(drafting, extra_body=hostile, seed=1)
        assert caught.value.code == "grammar_too_complex"
    assert drafting.http.get("/health").json()["engine"]["drafters_off"] == {}
    assert ask(drafting, temperature=0, max_tokens=30).choices[0].message.content == want


def test_an_ambiguous_grammar_takes_no_more_than_its_allowance_from_the_others(
    drafting: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slows down with the cube of its text, drafted or not. Beside it another answer stays as it is."""
    limits = {"CALL_LIMIT_S": 0.01, "SLOW_S": 0.002, "ALLOWANCE_S": 0.02, "LOOK_LIMIT_S": 0.004}
    for name, seconds in limits.items():
        monkeypatch.setattr(meter, name, seconds)
    calls: list[float] = []
    real = mask.timed

    def timed(call: Callable[[], Any]) -> tuple[Any, float]:
        found, seconds = real(call)
        calls.append(seconds)
        return found, seconds

    monkeypatch.setattr(mask, "timed", timed)
    good = {"temperature": 0, "max_tokens": 300}
    want = ask(drafting, **good).choices[0].message.content
    hostile = {"guided_grammar": 'start: a\na: a a | "a" | a a a | ""'}
    (a,) = drafting.llm.tokenizer.encode("a")
    only_a = {"max_tokens": 900, "temperature": 0, "logit_bias": {str(a): 100}}
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(ask, drafting, **good)
        for speculation in ({}, {"drafter": "off"}):
            with pytest.raises(openai.BadRequestError, match="make it less ambiguous") as caught:
                ask(drafting, **only_a, extra_body=hostile | {"speculation": speculation})
            assert caught.value.code == "grammar_too_complex"
        assert beside.result().choices[0].message.content == want
    slow = [seconds for seconds in calls if seconds > limits["SLOW_S"]]
    assert sum(slow) <= 2 * (2 * limits["ALLOWANCE_S"] + 2 * max(slow)), "more than the allowances and the last calls"
    assert drafting.http.get("/health").json()["engine"]["drafters_off"] == {}
