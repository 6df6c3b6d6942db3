"""What the server says about itself holds: requests made from its OpenAPI document get only answers that are in it.

Both kinds are made: requests that fit the document and such that do not. Options that cost time are bounded by the
server's own limit for answers, so that no case takes long.
"""

import copy
import random
from collections.abc import Iterator

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck
from schemathesis.checks import FailureGroup, not_a_server_error
from schemathesis.specs.openapi import checks

from forerun.server.config import ServerConfig
from forerun.server.keys import KeyLimits, KeySources
from forerun.server.routes.refused import REFUSED_PATHS
from tests.server.conftest import MODEL, Server, serving, tiny_llm

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
TOKENS = ("/tokenize", "/detokenize")
READING = ("/v1/models", "/v1/models/{model}", "/v1/capabilities", "/health", "/health/live", "/health/ready")
WATCHING = ("/metrics", "/v1/dashboard")
ENDLESS = ("/v1/dashboard/stream",)  # has its own tests
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]
TIMEOUT_S = 60  # of one answer: a machine may be busy
REQUIRED = ("messages", "prompt", "input", "tokens", "text")


@pytest.fixture(scope="module")
def fuzzed(tiny_model) -> Iterator[Server]:
    limits = KeyLimits(max_output_tokens=4)
    config = ServerConfig(served_model=MODEL, keys=KeySources(limits=limits))
    with serving(tiny_llm(tiny_model, "ngram", max_num_seqs=16), config) as running:
        yield running


@pytest.fixture(scope="module")
def document(fuzzed: Server) -> dict:
    return fuzzed.http.get("/openapi.json").json()


def plainer(body: object) -> object:
    """A body of the served model with few of its options: the more there are, the surer two exclude each other, and
    nothing behind the first check would be met. One in ten stays as it is."""
    rng = random.Random(repr(body))
    if not isinstance(body, dict) or rng.random() < 0.1:
        return body
    kept = {name for name in body if name in REQUIRED or rng.random() < 2 / len(body)}
    body = {name: whole(value) for name, value in body.items() if name in kept}
    if isinstance(body.get("messages"), list):
        body["messages"] = [with_content(message) for message in body["messages"]]
    return body | {"model": MODEL}


def whole(value: object) -> object:
    """JSON calls 3.0 an integer, and the server does not."""
    if isinstance(value, list):
        return [whole(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def with_content(message: object) -> object:
    """A message that says something, which the document does not ask of it."""
    if not isinstance(message, dict) or message.get("role") == "tool":
        return message
    said = {name: value for name, value in message.items() if not name.startswith("tool_call")}
    return said if said.get("content") else {**said, "content": "hello"}


def ask(server: Server) -> str | None:
    messages = [{"role": "user", "content": "hello there"}]
    answer = server.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=4, temperature=0)
    return answer.choices[0].message.content


def check_refusal(error: dict, body: object) -> None:
    """One line of bounded length, and the option at fault where there are options."""
    assert 5 < len(error["message"]) < 1000
    assert len(error["message"].splitlines()) == 1
    assert error["code"]
    if isinstance(body, dict):
        assert error["param"], error


def fuzz(server: Server, document: dict, path: str, mode: schemathesis.GenerationMode, num_cases: int) -> set[int]:
    """Send cases of every operation of a path and check the answers; the statuses that came."""
    schema = schemathesis.openapi.from_dict(document)
    seen: set[int] = set()
    session = requests.Session()
    for operation in schema[path].values():

        @hypothesis.settings(
            max_examples=num_cases,
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
            phases=[hypothesis.Phase.generate],
        )
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def run(case: schemathesis.Case) -> None:
            case.body = plainer(case.body)
            answer = case.call(base_url=server.url, session=session, timeout=TIMEOUT_S)
            seen.add(answer.status_code)
            case.validate_response(answer, checks=CHECKS)
            if answer.status_code == 400:
                check_refusal(answer.json()["error"], case.body)

        run()
    session.close()
    return seen


@pytest.fixture(autouse=True)
def _afterwards_all_is_well(fuzzed: Server, wait_until) -> Iterator[None]:
    want = ask(fuzzed)
    yield
    assert ask(fuzzed) == want
    wait_until(lambda: not fuzzed.llm.engine.has_work)
    health = fuzzed.http.get("/health").json()
    assert health["ready"]
    assert health["engine"]["failures"] == health["engine"]["failed_steps"] == 0
    assert fuzzed.llm.engine.scheduler.pool.num_owned == 0
    fuzzed.llm.engine.check()


@pytest.mark.parametrize("path", GENERATING + TOKENS)
def test_what_has_a_body(fuzzed: Server, document, path: str) -> None:
    assert 200 in fuzz(fuzzed, document, path, schemathesis.GenerationMode.POSITIVE, 40)
    assert 400 in fuzz(fuzzed, document, path, schemathesis.GenerationMode.NEGATIVE, 25)


@pytest.mark.parametrize("path", READING + WATCHING)
def test_what_is_only_read(fuzzed: Server, document, path: str) -> None:
    seen = fuzz(fuzzed, document, path, schemathesis.GenerationMode.POSITIVE, 4)
    assert seen == ({404} if "{" in path else {200})


def test_what_is_not_here_says_so_and_no_path_was_forgotten(fuzzed: Server, document) -> None:
    absent = {f"/v1/{name}" for name in REFUSED_PATHS}
    for path in absent:
        assert fuzz(fuzzed, document, path, schemathesis.GenerationMode.POSITIVE, 1) == {404}
    assert set(document["paths"]) == absent.union(GENERATING, TOKENS, READING, WATCHING, ENDLESS)


def test_an_answer_outside_the_document_is_found(fuzzed: Server, document) -> None:
    """The control: the same checks, with a document that promises something else."""
    wrong = copy.deepcopy(document)
    wrong["components"]["schemas"]["Tokenized"]["properties"]["count"] = {"type": "string"}
    with pytest.raises(FailureGroup) as caught:
        fuzz(fuzzed, wrong, "/tokenize", schemathesis.GenerationMode.POSITIVE, 40)
    assert "violates schema" in str(caught.value.exceptions)
