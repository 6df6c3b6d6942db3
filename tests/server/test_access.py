"""Keys, limits and CORS over HTTP: who gets in, what a tenant can take, and what tenants share: nothing."""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from forerun.server.config import ServerConfig
from forerun.server.keys import KeyLimits, KeySources
from tests.server.conftest import MODEL, Server, serving, tiny_llm

ORIGIN = "https://page.example"
KEYS = (
    "alice:key-of-alice",
    "alice:key-of-alice-2",
    "bob:key-of-bob-1",
    "slow:key-of-slow requests_per_minute=2",
    "few:key-of-few-1 tokens_per_minute=200 max_prompt_tokens=60 max_output_tokens=50",
    "one:key-of-one-1 concurrent=1",
    "tiny:key-of-tiny-1 tokens_per_minute=80",
)


@pytest.fixture(scope="module")
def keyed(tiny_model: Path) -> Iterator[Server]:
    config = ServerConfig(served_model=MODEL, keys=KeySources(KEYS), cors_origins=(ORIGIN,))
    with serving(tiny_llm(tiny_model), config) as running:
        yield running


def ask(server: Server, key: str | None, text: str = "hello", **options) -> httpx.Response:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | options
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    return server.http.post("/v1/chat/completions", json=body, headers=headers)


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong-key"}, {"Authorization": "Basic key-of-alice"}]
)
@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/openapi.json", "/nowhere"])
def test_nothing_is_told_without_a_key(keyed, headers, path):
    answer = keyed.http.get(path, headers=headers)
    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "key-of" not in answer.text


def test_a_refused_body_is_not_read(keyed):
    def endless():
        while True:
            yield b" " * 65536

    # The server answers and closes although the body would never end; the client may only see that it closed.
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        assert keyed.http.post("/v1/chat/completions", content=endless()).status_code == 401


def test_a_refused_body_of_some_length_is_read_so_that_the_client_reads_the_answer(keyed):
    answer = keyed.http.post("/v1/chat/completions", content=b" " * (4 << 20))
    assert answer.status_code == 401
    assert "connection" not in answer.headers


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
def test_health_needs_no_key(keyed, path):
    assert keyed.http.get(path).status_code == 200


def test_a_key_opens_the_server_in_both_headers(keyed):
    assert ask(keyed, "key-of-alice").status_code == 200
    assert keyed.http.get("/v1/models", headers={"X-Api-Key": "key-of-bob-1"}).status_code == 200
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="not-a-key", max_retries=0)
    with pytest.raises(openai.AuthenticationError), client:
        client.models.list()


def test_tenants_share_no_prefix_and_keys_of_one_tenant_do(keyed):
    text = "a long enough beginning " * 12

    def cached(key: str, **options) -> int:
        answer = ask(keyed, key, text, **options).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached("key-of-alice") == 0
    assert cached("key-of-alice") > 0
    assert cached("key-of-alice-2") > 0
    assert cached("key-of-bob-1") == 0
    assert cached("key-of-alice", cache_salt="other") == 0


def test_requests_a_minute(keyed):
    answers = [ask(keyed, "key-of-slow") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0"]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 30
    error = answers[2].json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("rate_limit_exceeded", "requests", None)
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="key-of-slow", max_retries=0)
    with pytest.raises(openai.RateLimitError), client:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "x"}])
    assert keyed.http.get("/v1/models", headers={"X-Api-Key": "key-of-slow"}).status_code == 200  # costs nothing


def test_tokens_a_minute_and_of_one_request(keyed):
    first = ask(keyed, "key-of-few-1")
    used = first.json()["usage"]["total_tokens"]
    second = ask(keyed, "key-of-few-1")
    assert first.status_code == second.status_code == 200
    left = int(second.headers["x-ratelimit-remaining-tokens"])
    assert left <= 200 - 2 * used + 2  # what refilled meanwhile is little
    assert ask(keyed, "key-of-few-1", "word " * 200).json()["error"]["code"] == "context_length_exceeded"
    assert ask(keyed, "key-of-few-1", max_tokens=51).json()["error"]["param"] == "max_tokens"
    whole = ask(keyed, "key-of-few-1", max_tokens=None, ignore_eos=True).json()
    assert whole["usage"]["completion_tokens"] == 50
    assert whole["choices"][0]["finish_reason"] == "length"
    answers = [ask(keyed, "key-of-few-1", max_tokens=50) for _ in range(4)]
    assert answers[-1].status_code == 429
    error = answers[-1].json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "tokens")


CHAT = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/chat/completions", CHAT, "max_tokens"),
        ("/v1/chat/completions", CHAT, "max_completion_tokens"),
        ("/v1/completions", {"prompt": "hello"}, "max_tokens"),
        ("/v1/responses", {"input": "hello"}, "max_output_tokens"),
    ],
)
@pytest.mark.parametrize(
    ("key", "limit", "more"),
    [("key-of-few-1", 51, {}), ("key-of-tiny-1", 90, {}), (None, 2, {"min_tokens": 3})],
    ids=["of an answer", "of a minute", "least"],
)
def test_the_limit_goes_by_the_name_that_the_client_used(keyed, path, body, name, key, limit, more):
    headers = {"Authorization": f"Bearer {key or 'key-of-alice'}"}
    answer = keyed.http.post(path, json={"model": MODEL, **body, name: limit, **more}, headers=headers)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == ("min_tokens" if more else name)
    assert set(re.findall(r"max_\w+", error["message"])) == {name}


def test_a_continuation_that_names_no_length_is_cut_at_the_key_s(tiny_model):
    config = ServerConfig(served_model=MODEL, keys=KeySources(limits=KeyLimits(max_output_tokens=3)))
    with serving(tiny_llm(tiny_model), config) as server:
        body = {"model": MODEL, "prompt": "one two", "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 3
        assert server.http.post("/v1/completions", json=body | {"max_tokens": 4}).status_code == 400


def test_concurrent_requests_of_one_key(keyed):
    client = openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="key-of-one-1", max_retries=0)
    with client:
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "x"}],
            max_tokens=800,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        next(iter(stream))
        refused = ask(keyed, "key-of-one-1")
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "requests"
        assert ask(keyed, "key-of-bob-1").status_code == 200
        for _ in stream:
            pass
        assert ask(keyed, "key-of-one-1").status_code == 200


def test_limits_without_keys_are_for_all_together(tiny_model):
    config = ServerConfig(served_model=MODEL, keys=KeySources(limits=KeyLimits(requests_per_minute=1)))
    with serving(tiny_llm(tiny_model), config) as server:
        assert [ask(server, key).status_code for key in (None, "any")] == [200, 429]


def test_pages_of_an_allowed_origin_may_ask_and_read(keyed):
    preflight = keyed.http.options(
        "/v1/chat/completions",
        headers={
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,x-stainless-lang",
        },
    )
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == ORIGIN
    answer = keyed.http.get("/v1/models", headers={"Origin": ORIGIN})
    assert answer.status_code == 401
    assert answer.headers["access-control-allow-origin"] == ORIGIN  # so that the page can read why
    assert "x-request-id" in answer.headers["access-control-expose-headers"].lower()
    other = keyed.http.get("/v1/models", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_cors_is_off_by_default(server):
    answer = server.http.get("/v1/models", headers={"Origin": ORIGIN})
    assert "access-control-allow-origin" not in answer.headers
