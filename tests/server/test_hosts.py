"""Names by which the server may be called: a page whose name was made to point here gets nothing."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.server.config import ServerConfig
from forerun.server.keys import KeySources
from tests.server.conftest import MODEL, Server, serving, tiny_llm

EVIL = "rebound.example:8000"


def status(server: Server, host: str, path: str = "/v1/models", **headers: str) -> int:
    return server.http.get(path, headers={"Host": host, **headers}).status_code


@pytest.fixture(scope="module", params=[(), ("box.example.org", "fd00::7"), ("*",)], ids=str)
def named(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[tuple[Server, tuple[str, ...]]]:
    with serving(tiny_llm(tiny_model), ServerConfig(served_model=MODEL, allowed_hosts=request.param)) as running:
        yield running, request.param


def test_own_names_pass_and_others_do_not(named: tuple[Server, tuple[str, ...]]) -> None:
    server, allowed = named
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000"):
        assert status(server, host) == 200
    for path in ("/", "/health", "/v1/models", "/v1/chat/completions"):
        assert (status(server, EVIL, path) == 403) == (allowed != ("*",))
    for host in ("box.example.org", "Box.example.org:80", "[fd00::7]:80"):
        assert status(server, host) == (200 if allowed else 403)


def test_the_refusal_says_what_to_do(server: Server) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    answer = server.http.post("/v1/chat/completions", json=body, headers={"Host": EVIL})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (403, "host_not_allowed", "permission_error")
    assert "--allowed-host" in error["message"]
    assert server.http.post("/v1/chat/completions", json=body | {"max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("config", [{"keys": KeySources(("key-of-alice",))}, {"host": "0.0.0.0"}], ids=str)
def test_with_keys_or_for_the_network_any_name_will_do(tiny_model: Path, config) -> None:
    with serving(tiny_llm(tiny_model), ServerConfig(served_model=MODEL, **config)) as server:
        assert status(server, EVIL, Authorization="Bearer key-of-alice") == 200


def test_a_request_without_a_name_passes(server: Server) -> None:
    """As old programs send it; browsers do not."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as client:
        client.sendall(b"GET /v1/models HTTP/1.0\r\n\r\n")
        assert client.recv(1024).split()[1] == b"200"
