"""Bodies as JSON: what is not sound, or leaves open which value is meant, is refused before anything else is read."""

import json
import time

import pytest

from forerun.server.errors import MAX_SPELLED, ApiError
from forerun.server.strict_json import read_json
from tests.server.conftest import MODEL, Server

BODIES = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/completions": {"model": MODEL, "prompt": "x", "max_tokens": 1},
    "/v1/responses": {"model": MODEL, "input": "x", "max_output_tokens": 1},
    "/tokenize": {"text": "x"},
    "/detokenize": {"tokens": [5]},
}


def refused(raw: str) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read_json(raw.encode())
    assert caught.value.status_code == 400
    return caught.value


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ('{"a": 1, "b": 2, "a": 1}', "a"),
        ('{"b": [0, {"c": {"a": 1, "a": 2}}]}', "a"),
        ('[{"x": 1, "y": 2}, {"x": 1, "x": 2}]', "x"),
        (r'{"é": 1, "\u00e9": 2}', "é"),
        ('{"": 1, "": 2}', ""),
    ],
)
def test_a_key_that_stands_twice_is_named(raw: str, key: str):
    error = refused(raw)
    assert error.code == "duplicate_key"
    assert error.param == key
    assert repr(key) in error.message
    assert "\n" not in error.message


@pytest.mark.parametrize(
    "raw",
    [
        '{"a": {"a": {"a": 1}}}',
        '{"a":' * 200 + "1" + "}" * 200,
        '[{"a": 1}, {"a": 1}]',
        '{"a": 1, "A": 2, "a ": 3}',
        '"x"',
        "7",
        "null",
        "[]",
    ],
)
def test_what_is_sound_is_read(raw: str):
    assert read_json(raw.encode()) == json.loads(raw)


@pytest.mark.parametrize("raw", ["", "{", '{"a": NaN}', '{"a": 1,}', "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000])
def test_what_is_no_json_is_refused_as_before(raw: str):
    assert refused(raw).code == "invalid_json"


@pytest.mark.parametrize(
    "number", ["1e999", "-1e309", "1" + "0" * 309, "-" + "9" * 400, "7" * 6000, "1" + "0" * 400 + ".5"]
)
def test_a_number_that_no_double_holds_is_refused(number: str):
    for raw in (number, f'{{"a": [0, {{"b": {number}}}]}}'):
        error = refused(raw)
        assert error.code == "invalid_json"
        assert number[:20] in error.message or "out of range" in error.message
        assert len(error.message) < 100
    read_json(b'{"a": [1e308, -1.7976931348623157e308, 1e-999, ' + b"9" * 300 + b"]}")


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("/v1/chat/completions", '"chat_template_kwargs": {"x": 1e999}'),
        ("/v1/responses", '"chat_template_kwargs": {"x": [-1e999]}'),
        (
            "/v1/chat/completions",
            '"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"maximum": 1e999}}}',
        ),
        ("/v1/completions", '"temperature": 1e999'),
    ],
)
def test_no_endpoint_reads_infinity(server: Server, path: str, more: str):
    body = json.dumps(BODIES[path])[:-1] + f", {more}}}"
    answer = server.http.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"
    assert "too large for a double" in answer.json()["error"]["message"]


def test_a_long_key_is_repeated_in_part():
    key = "k" * 100_000
    error = refused(json.dumps({"b": 1})[:-1] + f', "{key}": 1, "{key}": 2}}')
    assert error.param is not None
    assert len(error.param) <= MAX_SPELLED + 3
    assert len(error.message) < 2 * MAX_SPELLED


def test_keys_are_compared_in_time_that_grows_with_the_body():
    """50,000 different keys, then one of them again: comparing each with each other would take minutes."""
    keys = ", ".join(f'"k{number}": 1' for number in range(50_000))
    start = time.process_time()
    assert refused(f'{{{keys}, "k49999": 2}}').param == "k49999"
    assert time.process_time() - start < 5


@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_refuses_it_and_goes_on(server: Server, path: str):
    def post(raw: str):
        return server.http.post(path, content=raw, headers={"Content-Type": "application/json"})

    good = json.dumps(BODIES[path])
    key = list(BODIES[path])[-1]
    answer = post(f'{good[:-1]}, "{key}": 1}}')
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["code"], error["type"]) == (key, "duplicate_key", "invalid_request_error")
    assert post(good).status_code == 200
