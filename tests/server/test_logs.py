"""Logs: one event a line in both forms, whatever clients send; one access line a request, by default without words."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from forerun.server import logs
from forerun.server.config import ServerConfig
from forerun.server.exchange import Exchange, Record
from tests.logging_state import kept_logging
from tests.server.conftest import MODEL, Server, serving, tiny_llm

SECRET = "wombats are marsupials"


@pytest.fixture
def written() -> Iterator[io.StringIO]:
    """What is logged as JSON while the test runs; loggers are as before afterwards."""
    stream = io.StringIO()
    with kept_logging():
        logs.configure("json", "info", stream)
        yield stream


def lines(stream: io.StringIO) -> list[dict]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


MINE = {"X-Request-Id": "mine"}  # other tests' requests may end late


def requests(stream: io.StringIO) -> list[dict]:
    return [line for line in lines(stream) if line["logger"] == "forerun.access" and line["request_id"] == "mine"]


def ask(server: Server, **options):
    body = {"model": MODEL, "messages": [{"role": "user", "content": SECRET}], "max_tokens": 12, "temperature": 0}
    return server.http.post("/v1/chat/completions", json=body | options, headers=MINE)


def record(message: str, **fields: object) -> logging.LogRecord:
    made = logging.LogRecord("forerun.test", logging.INFO, "file", 1, message, (), None)
    made.fields = fields
    return made


def test_no_value_can_begin_a_line_of_its_own():
    evil = 'a\nb "c" \x1b[31m\u2028=d'
    text = logs.TextFormatter().format(record("message\nwith two lines", path=evil, count=3, empty=""))
    assert "\n" not in text
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert text.endswith(' count=3 empty=""')
    assert json.loads(logs.JsonFormatter().format(record("x", path=evil)))["path"] == evil


def test_a_traceback_is_kept_in_both_forms():
    try:
        raise ValueError("broken")
    except ValueError as error:
        made = record("failed")
        made.exc_info = (type(error), error, error.__traceback__)
    assert logs.TextFormatter().format(made).splitlines()[-1] == "ValueError: broken"
    assert json.loads(logs.JsonFormatter().format(made))["traceback"].endswith("ValueError: broken")


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_line_with_its_counts(server, written, wait_until, stream):
    answer = ask(server, stream=stream, ignore_eos=True, n=2)
    wait_until(lambda: requests(written))
    (line,) = requests(written)
    assert line["request_id"] == answer.headers["x-request-id"]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/chat/completions", 200)
    assert line["output_tokens"] == 24
    assert line["finish"] == "length"
    assert line["prompt_tokens"] > 5
    assert 0 <= line["queue_s"] <= line["first_token_s"] <= line["seconds"]
    assert line["steps"] <= 24
    assert line["accepted"] <= line["drafted"]
    assert line.get("drafted_by", {}).keys() >= line.get("accepted_by", {}).keys()
    assert "wombats" not in written.getvalue()


def test_drafts_are_counted_by_drafter_and_depth():
    counts = {"drafted_by": {"a": 5}, "accepted_by": {"a": 2}, "drafted_at": [2, 2, 1], "accepted_at": [1, 1, 0]}
    other = {"drafted_by": {"b": 2, "a": 1}, "accepted_by": {}, "drafted_at": [3], "accepted_at": [0]}
    exchange = Exchange("id", "POST", "/v1/chat/completions", num_open=0)
    exchange.records = [
        Record(3, 0, 4, 0.0, 0.1, 0.2, 1.0, 2, 6, 2, **one, preemptions=0, finish="stop") for one in (counts, other)
    ]
    found = logs.access_fields(exchange)
    assert found["drafted_by"] == {"a": 6, "b": 2}
    assert found["accepted_by"] == {"a": 2}
    assert found["drafted_at"] == [5, 2, 1]
    assert found["accepted_at"] == [1, 1, 0]


def test_a_refused_request_says_why(server, written, wait_until):
    ask(server, temperature=9)
    server.http.get("/nowhere", headers=MINE)
    wait_until(lambda: len(requests(written)) == 2)
    first, second = requests(written)
    assert (first["status"], first["reason"]) == (400, "invalid_value")
    assert "temperature" in first["error"]
    assert (second["status"], second["reason"]) == (404, "http_404")


def test_health_and_metrics_are_not_logged(server, written, wait_until):
    for path in ("/health", "/health/live", "/metrics", "/v1/models"):
        server.http.get(path, headers=MINE)
    wait_until(lambda: requests(written))
    assert [line["path"] for line in requests(written)] == ["/v1/models"]


def test_a_client_that_leaves_has_a_line_when_its_generation_has_ended(server, written, wait_until):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 900, "ignore_eos": True}
    with server.http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}, headers=MINE) as answer:
        next(answer.iter_lines())
    wait_until(lambda: requests(written))
    (line,) = requests(written)
    assert line["finish"] == "aborted"
    assert line["output_tokens"] < 900


def test_words_are_logged_when_asked(tiny_model, written, wait_until):
    with serving(tiny_llm(tiny_model), ServerConfig(served_model=MODEL, log_prompts=True)) as server:
        said = ask(server).json()["choices"][0]["message"]["content"]
        wait_until(lambda: requests(written))
    (line,) = requests(written)
    assert SECRET in line["prompts"][0]
    assert line["answers"] == [said]
