"""Bodies are bounded in length and time, with or without a stated length; the next request works."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from forerun.server.config import ServerConfig
from tests.server.conftest import MODEL, Server, serving, tiny_llm

LIMIT = 4096


@pytest.fixture(scope="module")
def bounded(tiny_model: Path) -> Iterator[Server]:
    config = ServerConfig(served_model=MODEL, max_body_bytes=LIMIT, receive_timeout_s=0.5)
    with serving(tiny_llm(tiny_model), config) as running:
        yield running


def body(length: int) -> bytes:
    head = b'{"model": "tiny", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]'
    return head + b" " * (length - len(head) - 1) + b"}"


def chunks(data: bytes, size: int = 1000) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


def post(server: Server, content) -> httpx.Response:
    return server.http.post("/v1/chat/completions", content=content, headers={"Content-Type": "application/json"})


@pytest.mark.parametrize("chunked", [False, True])
def test_the_longest_body_passes_and_one_byte_more_does_not(bounded, chunked):
    fits, too_long = body(LIMIT), body(LIMIT + 1)
    assert post(bounded, chunks(fits) if chunked else fits).status_code == 200
    answer = post(bounded, chunks(too_long) if chunked else too_long)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"
    assert post(bounded, body(200)).status_code == 200


def test_a_body_that_never_ends_is_cut_off(bounded):
    def endless() -> Iterator[bytes]:
        while True:
            yield b" " * 1000

    # The client may see that the server closed while it was still writing, and never read the answer.
    with contextlib.suppress(httpx.WriteError, httpx.RemoteProtocolError, httpx.ReadError):
        assert post(bounded, endless()).status_code == 413
    assert post(bounded, body(200)).status_code == 200


def test_a_huge_stated_length_is_refused_at_once(bounded):
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999999\r\n\r\n"
    assert b" 413 " in talk(bounded, request).partition(b"\r\n")[0]


def test_a_body_that_trickles_gets_408(bounded):
    request = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 500\r\n\r\n{"
    answer = talk(bounded, request)
    assert b" 408 " in answer.partition(b"\r\n")[0]
    assert b"connection: close" in answer.lower()


def talk(server: Server, request: bytes) -> bytes:
    """Send bytes, read until the server closes."""
    url = httpx.URL(server.url)
    with socket.create_connection((url.host, url.port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer
