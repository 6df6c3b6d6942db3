"""The process: it starts, tells its plan, reloads, and ends so that every stream has an end. It is `forerun serve`."""

import json
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

BODY: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


class Process:
    """A running server. `log` grows while it runs."""

    def __init__(self, words: list[str], environment: dict[str, str]) -> None:
        self.popen = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "forerun",
                "serve",
                "--served-model-name",
                "tiny",
                "--port",
                "0",
                "--log-format",
                "json",
                *words,
            ],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.log: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stderr is not None
        for line in self.popen.stderr:
            self.log.append(json.loads(line) if line.startswith("{") else {"message": line})

    def wait_for(self, message: str, count: int = 1) -> dict[str, Any]:
        """The log line that begins so; the `count`th of them."""
        end = time.monotonic() + 120
        while True:
            found = [line for line in self.log if line["message"].startswith(message)]
            if len(found) >= count:
                return found[count - 1]
            assert time.monotonic() < end, self.log
            assert self.popen.poll() is None, self.log
            time.sleep(0.01)

    @property
    def url(self) -> str:
        return str(self.wait_for("ready")["url"]).removesuffix("/v1")

    def end(self) -> int:
        code = self.popen.wait(60)
        self._reader.join(10)
        return code


Start = Callable[..., Process]


@pytest.fixture
def start(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Call it with options."""
    import os

    started: list[Process] = []

    def run(*words: str, **environment: str) -> Process:
        all_of_it = os.environ | {"FORERUN_CACHE": str(tmp_path)} | environment
        started.append(Process(["--model", str(tiny_model), "--kv-cache-bytes", "8M", *words], all_of_it))
        return started[-1]

    yield run
    for process in started:
        process.popen.kill()
        process.end()
        assert process.popen.stderr is not None
        process.popen.stderr.close()


def stream(url: str, max_tokens: int) -> tuple[threading.Thread, list[str], threading.Event]:
    """A streamed answer that is read on a thread: its lines, and the event that it has begun."""
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = BODY | {"stream": True, "max_tokens": max_tokens, "ignore_eos": True}
        try:
            with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    lines.append(line)
                    if '"content"' in line and '"role"' not in line:
                        begun.set()
        except httpx.TransportError as error:
            lines.append(f"broken: {error}")
        begun.set()

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread, lines, begun


def is_reachable(url: str) -> bool:
    try:
        httpx.get(f"{url}/health/live")
    except httpx.ConnectError:
        return False
    return True


def test_it_tells_its_plan_and_ends_with_0(start: Start) -> None:
    limits = ("--max-num-seqs", "3", "--prefill-slowdown", "2.5", "--tokens-per-minute", "5000")
    server = start("--threads", "1", *limits)
    assert httpx.get(f"{server.url}/health/ready").json() == {"ready": True}
    plan = {line["message"].removeprefix("plan: "): line for line in server.log if line["message"].startswith("plan: ")}
    assert plan.keys() == {"model", "memory", "compute", "speculation", "limits", "address"}
    assert (plan["compute"]["threads"], plan["limits"]["running"], plan["limits"]["key_tokens_per_minute"]) == (
        1,
        3,
        5000,
    )
    assert plan["limits"]["prefill_slowdown"] == 2.5
    assert plan["memory"]["drafts_mb"] == 0  # repetitions need no model
    assert plan["memory"]["kv_mb"] == pytest.approx(8.4, abs=0.2)
    assert plan["address"]["url"].startswith("http://127.0.0.1:")
    assert set(plan["speculation"]["by_request"].split("+")) == {"grammar", "prediction"}
    server.popen.send_signal(signal.SIGINT)
    assert server.end() == 0
    assert not [line for line in server.log if line.get("level", "none") in ("warning", "error", "none")]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stream_is_finished_and_new_requests_are_refused(
    start: Start, number: signal.Signals, wait_until: Callable[[Callable[[], bool]], None]
) -> None:
    server = start()
    url = server.url
    with httpx.Client(base_url=url) as client:
        assert client.get("/health/live").status_code == 200
        thread, lines, begun = stream(url, 900)
        assert begun.wait(30)
        server.popen.send_signal(number)
        server.wait_for(number.name)
        wait_until(lambda: not is_reachable(url))
        thread.join(60)
    assert server.end() == 0
    assert lines[-2:] == ["data: [DONE]", ""]
    final = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]
    assert final["choices"][0]["finish_reason"] == "length"
    (access,) = [line for line in server.log if line.get("path") == "/v1/chat/completions"]
    assert access["output_tokens"] == 900


def test_after_the_grace_period_a_stream_ends_with_an_error(start: Start) -> None:
    server = start("--grace", "0.1", "--threads", "1")
    streams = [stream(server.url, 1000 - 40) for _ in range(6)]
    for _, _, begun in streams:
        assert begun.wait(30)
    server.popen.send_signal(signal.SIGTERM)
    assert server.end() == 0
    ends = []
    for thread, lines, _ in streams:
        thread.join(60)
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]  # cut short or not: nothing is half written
        ends.append(json.loads([line for line in lines if line.startswith("data: {")][-1][6:]))
    assert {end["error"]["code"] for end in ends if "error" in end} == {"aborted"}
    asked = [line for line in server.log if line.get("path") == "/v1/chat/completions"]
    assert {line["reason"] for line in asked if line["finish"] == "aborted"} == {"aborted"}


def test_a_second_signal_ends_at_once(start: Start) -> None:
    server = start("--threads", "1")
    streams = [stream(server.url, 900) for _ in range(48)]  # far more than can be done between the two signals
    assert streams[0][2].wait(60)
    server.popen.send_signal(signal.SIGTERM)
    server.wait_for("SIGTERM: finishing")
    before = time.monotonic()
    server.popen.send_signal(signal.SIGTERM)
    assert server.end() == 130
    assert time.monotonic() - before < 10
    assert any("data: [DONE]" not in lines for _, lines, _ in streams)
    assert not [line for line in server.log if "traceback" in line]


def test_sighup_reads_the_keys_again_and_a_bad_file_changes_nothing(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("alice:first-key-1\n")
    server = start(
        "--api-key-file", str(path), "--public-metrics", FORERUN_API_KEYS="env:env-key-123,other:env-key-456"
    )

    def status(key: str) -> int:
        return httpx.get(f"{server.url}/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    assert [status(key) for key in ("first-key-1", "second-key", "env-key-123", "env-key-456")] == [200, 401, 200, 200]
    assert httpx.get(f"{server.url}/metrics").status_code == 200
    path.write_text("alice:second-key\n")
    server.popen.send_signal(signal.SIGHUP)
    server.wait_for("3 API keys")
    assert [status(key) for key in ("first-key-1", "second-key", "env-key-123")] == [401, 200, 200]
    path.write_text("alice:x\n")
    server.popen.send_signal(signal.SIGHUP)
    assert "keys:1" in server.wait_for("the keys stay")["message"]
    assert status("second-key") == 200
    server.popen.send_signal(signal.SIGTERM)
    assert server.end() == 0
    assert not re.search(r"first-key|second-key|env-key", json.dumps(server.log))


def test_https_with_files_that_are_read_again(start: Start, tmp_path: Path) -> None:
    def write(authority: trustme.CA) -> None:
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        (tmp_path / "cert.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    def trusts(authority: trustme.CA) -> ssl.SSLContext:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        return context

    first, second = trustme.CA(), trustme.CA()
    write(first)
    server = start(
        "--host", "localhost", "--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")
    )
    url = server.url
    assert url.startswith("https://localhost:")
    answer = httpx.post(f"{url}/v1/chat/completions", json=BODY | {"max_tokens": 3}, verify=trusts(first))
    assert answer.status_code == 200
    write(second)
    server.popen.send_signal(signal.SIGHUP)
    server.wait_for("the certificate was read again")
    assert httpx.get(f"{url}/health", verify=trusts(second)).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health", verify=trusts(first))


def test_slow_headers_end_the_connection_and_slow_bodies_get_408(start: Start) -> None:
    server = start("--receive-timeout", "0.5")
    url = httpx.URL(server.url)

    def talk(*parts: bytes) -> bytes:
        with socket.create_connection((url.host, url.port), timeout=20) as connection:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.1)
            answer = b""
            try:
                while got := connection.recv(65536):
                    answer += got
            except ConnectionResetError:
                pass
            return answer

    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
    assert talk() == b""
    assert talk(head, b"X: ", *[b"y"] * 2) == b""
    assert b" 408 " in talk(head + b"Content-Length: 100\r\n\r\n{").partition(b"\r\n")[0]
    # A connection that is used again has its time anew, for a further request that trickles.
    answer = talk(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health")
    assert answer.count(b" 200 OK") == 1
    with httpx.Client(base_url=server.url) as client:
        assert client.get("/health").status_code == 200
        time.sleep(0.8)  # idle between two requests is no slowness
        assert client.get("/health").status_code == 200


def test_the_log_as_text_and_an_open_address(tiny_model: Path, start: Start) -> None:
    server = start("--host", "0.0.0.0", "--log-format", "text")
    server.wait_for("")
    end = time.monotonic() + 120
    while not any(" ready " in line["message"] for line in server.log):
        assert time.monotonic() < end
        time.sleep(0.02)
    text = "".join(line["message"] for line in server.log)
    assert re.search(r"^\S+Z info plan: memory weights_mb=[\d.]+ kv_mb=", text, re.MULTILINE)
    assert "warning anybody who reaches" in text
