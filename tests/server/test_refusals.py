"""Refusals that a client meets by mistake: each names the option and says what helps, whatever the form of the body."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forerun.server.routes.refused import REFUSED_BEHIND
from forerun.server.schema.refused import REFUSED_VALUES
from tests.server.conftest import MODEL, Server, serving, tiny_llm
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
TEXT = {"prompt": "x", "max_tokens": 2}
INPUT = {"input": "x", "max_output_tokens": 2}
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT, "/v1/responses": INPUT}


def ask(server: Server, path: str, options: dict[str, Any]) -> httpx.Response:
    return server.http.post(path, json={"model": MODEL, **BODIES[path], **options})


@pytest.mark.parametrize(
    ("path", "options", "param", "code", "words"),
    [
        ("/v1/chat/completions", {"logit_bias": {"05": 1, "5": 2}}, "logit_bias", "invalid_value", 'such as "42"'),
        ("/v1/chat/completions", {"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value", "must be token ids"),
        ("/v1/chat/completions", {"response_format": "json"}, "response_format", "invalid_value", "must be an object"),
        ("/v1/chat/completions", {"messages": "x"}, "messages", "invalid_value", "messages must be a list"),
        ("/v1/chat/completions", {"metadata": []}, "metadata", "invalid_value", "must be an object"),
        ("/v1/completions", {"prompt": [5, -1]}, "prompt[1]", "invalid_value", "greater than or equal to 0"),
        ("/v1/completions", {"prompt": [[1, -1]]}, "prompt[0][1]", "invalid_value", "greater than or equal to 0"),
        ("/v1/completions", {"service_tier": "flex"}, "service_tier", "unsupported_value", "there is one tier"),
        ("/v1/responses", {"truncation": "auto"}, "truncation", "unsupported_value", "never shortened"),
        ("/v1/responses", {"truncation": 3}, "truncation", "invalid_value", "'disabled'"),
        ("/v1/responses", {"background": True}, "background", "unsupported_value", "nobody could fetch"),
        (
            "/v1/responses",
            {"input": [{"type": "function_call_output", "call_id": "c", "output": "o"}]},
            "input[0]",
            "unsupported_content",
            REFUSED_VALUES["tools"],
        ),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": "x"}, {"type": "item_reference", "id": "m"}]},
            "input[1]",
            "unsupported_content",
            "pass the item itself",
        ),
    ],
)
def test_it_is_said_what_is_wrong(server: Server, path: str, options: dict, param: str, code: str, words: str) -> None:
    answer = ask(server, path, options)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (400, param, code)
    assert words in error["message"]


def test_what_asks_for_nothing_is_taken(server: Server) -> None:
    for path, options in (
        ("/v1/responses", {"background": False, "truncation": "disabled", "service_tier": "auto"}),
        ("/v1/chat/completions", {"logit_bias": {"0": 1, "10": -1}, "service_tier": "default"}),
    ):
        assert ask(server, path, options).status_code == 200


@pytest.mark.parametrize("path", BODIES)
def test_a_least_length_that_the_context_cannot_hold(server: Server, path: str) -> None:
    """It would end before, and so break what it promised."""
    limit = {"max_output_tokens" if path == "/v1/responses" else "max_tokens": 5000}
    error = ask(server, path, {"min_tokens": 2000, **limit}).json()["error"]
    assert (error["param"], error["code"]) == ("min_tokens", "invalid_value")
    assert "min_tokens is 2000 but the context holds 1024" in error["message"]


@pytest.mark.parametrize("path", BODIES)
def test_a_body_must_say_that_it_is_json_and_be_it_as_it_stands(server: Server, path: str) -> None:
    raw = json.dumps({"model": MODEL, **BODIES[path]}).encode()
    for headers, code, words in (
        ({}, "invalid_content_type", "the body has no Content-Type: send application/json"),
        ({"Content-Type": "text/plain"}, "invalid_content_type", "'text/plain'"),
        (
            {"Content-Type": "application/json", "Content-Encoding": "gzip"},
            "invalid_content_encoding",
            "'gzip': send it as it is",
        ),
    ):
        answer = server.http.post(path, content=raw, headers=headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == code
        assert words in answer.json()["error"]["message"]
    plain = {"Content-Type": "application/json; charset=utf-8", "Content-Encoding": "identity"}
    assert server.http.post(path, content=raw, headers=plain).status_code == 200


@pytest.mark.parametrize("name", REFUSED_BEHIND)
def test_what_is_not_stored_cannot_be_fetched(server: Server, name: str) -> None:
    for method, rest in (("GET", "/abc_1"), ("POST", "/abc_1/cancel"), ("DELETE", "/abc_1")):
        answer = server.http.request(method, f"/v1/{name}{rest}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unsupported_endpoint")
        assert REFUSED_BEHIND[name] in answer.json()["error"]["message"]
    assert "POST /tokenize" in server.http.post("/v1/responses/input_tokens").json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions is"),
        ("/v1/v1/models", "/v1/models is"),
        ("/v1/tokenize", "/tokenize is"),
        ("/embeddings", "GET /v1/capabilities"),
        ("/v1/nothing", "GET /v1/capabilities"),
    ],
)
def test_a_base_url_without_v1_or_with_two_is_told_so(server: Server, path: str, meant: str) -> None:
    answer = server.http.post(path, json={})
    assert answer.status_code == 404
    assert meant in answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model whose template reads two variables of its own."""
    template = (
        "{% for m in messages %}{{ bos_token + m.content }}{% endfor %}{{ namespace(a=1).a }}"
        "{% if enable_thinking is defined and enable_thinking %}think{% endif %}{{ tone }}"
    )
    _, vocabulary = byte_level("smollm")
    path: Path = tmp_path_factory.mktemp("models") / "thinking.gguf"
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), max_context=1024)
    write_tiny_gguf(path, spec, metadata={**vocabulary, "tokenizer.chat_template": template})
    with serving(tiny_llm(path)) as running:
        yield running


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_a_variable_that_the_template_reads_is_set(thinking: Server, path: str) -> None:
    counts = []
    for variables in ({}, {"enable_thinking": True}, {"enable_thinking": True, "tone": "kind"}):
        usage = ask(thinking, path, {"chat_template_kwargs": variables}).json()["usage"]
        counts.append(usage.get("prompt_tokens", usage.get("input_tokens")))
    assert counts == sorted(set(counts))


@pytest.mark.parametrize("name", ["enable_thinkin", "messages", "tools", "bos_token", "namespace", "m"])
def test_a_variable_that_it_does_not_read_would_be_ignored_and_is_refused(thinking: Server, name: str) -> None:
    error = ask(thinking, "/v1/chat/completions", {"chat_template_kwargs": {name: True}}).json()["error"]
    assert error["param"] == "chat_template_kwargs"
    assert f"no variable {name!r} from clients: it takes enable_thinking, tone" in error["message"]


def test_a_template_without_variables_says_so(server: Server) -> None:
    error = ask(server, "/v1/chat/completions", {"chat_template_kwargs": {"x": 1}}).json()["error"]
    assert error["message"].endswith("it takes none")
    assert ask(server, "/v1/chat/completions", {"chat_template_kwargs": {}}).status_code == 200
