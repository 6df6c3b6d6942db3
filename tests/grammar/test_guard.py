"""GrammarGuard: grammars that take for ever are stopped, good ones before and after them are not."""

import json
import time

import pytest

from forerun.errors import RequestError
from forerun.grammar.guard import GrammarGuard
from forerun.grammar.source import Grammar

GOOD = Grammar.json_schema({"type": "object", "properties": {"a": {"type": "string"}}})
ENDLESS = [
    Grammar.json_schema({"type": "string", "allOf": [{"pattern": f".*a.{{{i}}}b"} for i in range(5, 25)]}),
    Grammar.json_schema({"type": "integer", "multipleOf": 123456789}),
    Grammar("json_schema", json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(9000)}})),
]


@pytest.fixture
def guard():
    guard = GrammarGuard(time_limit_s=0.5)
    yield guard
    guard.close()


@pytest.mark.parametrize("grammar", ENDLESS, ids=["intersection", "multiple", "properties"])
def test_a_grammar_that_takes_for_ever_is_stopped(guard: GrammarGuard, grammar: Grammar):
    guard.check(GOOD)
    start = time.monotonic()
    with pytest.raises(RequestError, match=r"more than 0\.5 s"):
        guard.check(grammar)
    assert time.monotonic() - start < 30
    guard.check(GOOD)


def test_what_is_wrong_is_said(guard: GrammarGuard):
    with pytest.raises(RequestError, match="unclosed group") as caught:
        guard.check(Grammar.regex("(a", "guided_regex"))
    assert caught.value.param == "guided_regex"
    guard.check(Grammar.regex("a\n\u2028é"))


def test_memory_is_bounded():
    guard = GrammarGuard(time_limit_s=20, memory_limit=300 << 20)
    try:
        guard.check(GOOD)
        with pytest.raises(RequestError, match="more than"):
            guard.check(ENDLESS[0])
    finally:
        guard.close()


def test_a_process_that_has_died_is_replaced(guard: GrammarGuard):
    guard.check(GOOD)
    assert guard._process is not None
    guard._process.kill()
    guard._process.wait()
    guard.check(GOOD)


def test_a_closed_guard_leaves_no_process(guard: GrammarGuard):
    guard.check(GOOD)
    process = guard._process
    assert process is not None
    guard.close()
    assert process.poll() is not None
