"""Faults through the whole server: each harms only who caused it, /health tells, and the next good request works."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import openai
import pytest

from forerun.server import async_engine
from tests.server.conftest import MODEL, Server, serving, tiny_llm

HELLO = [{"role": "user", "content": "hello there"}]


@pytest.fixture(scope="module")
def faulty(tiny_model) -> Iterator[Server]:
    """A server of this module's own, whose parts are broken and mended."""
    with serving(tiny_llm(tiny_model, "ngram", max_num_seqs=8)) as running:
        yield running


@pytest.fixture(autouse=True)
def quiet(caplog):
    """These tests provoke many tracebacks."""
    caplog.set_level(logging.CRITICAL + 1)


def ask(server: Server, text: str = "hello there", **options):
    options = {"max_tokens": 12, "temperature": 0, **options}
    messages = [{"role": "user", "content": text}]
    return server.openai.chat.completions.create(model=MODEL, messages=messages, **options)


@pytest.fixture
def sound(faulty: Server, wait_until) -> Iterator[Callable[[], None]]:
    """Afterwards everything is as before: the same text, no blocks lost."""
    want = ask(faulty).choices[0].message.content

    def check() -> None:
        wait_until(lambda: not faulty.llm.engine.has_work)
        assert ask(faulty).choices[0].message.content == want
        wait_until(lambda: not faulty.llm.engine.has_work)
        faulty.llm.engine.check()
        assert faulty.llm.engine.scheduler.pool.num_owned == 0

    yield check
    check()


@contextmanager
def broken(owner: object, name: str, error: Callable[..., BaseException | None]) -> Iterator[list[int]]:
    """A method that raises what `error` of its arguments gives, and works where that is None."""
    real, calls = getattr(owner, name), []

    def wrapped(*arguments, **options):
        failure = error(*arguments, **options)
        if failure is not None:
            calls.append(1)
            raise failure
        return real(*arguments, **options)

    setattr(owner, name, wrapped)
    try:
        yield calls
    finally:
        delattr(owner, name)


def once(error: BaseException):
    failures = iter([error])
    return lambda *_, **__: next(failures, None)


def together(server: Server, count: int = 4, **options) -> list[str]:
    """Texts of requests that run at the same time."""
    with ThreadPoolExecutor(count) as pool:
        found = pool.map(lambda i: ask(server, f"tell me about number {i}", **options), range(count))
        return [answer.choices[0].message.content for answer in found]


class TestPhases:
    """One failure in a phase of a step is noticed by nobody but /health."""

    @pytest.mark.parametrize("where", ["forward", "copy_blocks", "move_kv", "draw", "clear_blocks"])
    def test_the_backend_fails_once(self, faulty, sound, where):
        want = together(faulty)
        with broken(faulty.llm.backend, where, once(RuntimeError(f"injected in {where}"))) as calls:
            assert together(faulty) == want
            if where == "copy_blocks":  # a prompt that is known to its last token: its last block is copied
                assert ask(faulty, "tell me about number 1").choices
        state = faulty.http.get("/health").json()["engine"]
        if calls:
            assert state["failed_steps"] >= 1
            assert "injected" in state["last_error"]
        assert state["failures"] == 0

    @pytest.mark.parametrize("where", ["select", "commit"])
    def test_the_scheduler_fails_once(self, faulty, sound, where):
        if where == "select":
            want = together(faulty)
            with broken(faulty.llm.engine.scheduler, where, once(RuntimeError("injected"))) as calls:
                assert together(faulty) == want
            assert calls
            return
        with (
            broken(faulty.llm.engine.scheduler, where, once(RuntimeError("injected"))),
            pytest.raises(openai.InternalServerError, match="injected"),
        ):
            ask(faulty)

    @pytest.mark.parametrize("where", ["propose", "observe", "collect", "room"])
    def test_the_speculator_fails_once(self, faulty, sound, where):
        want = together(faulty)
        with broken(faulty.llm.engine.speculator, where, once(RuntimeError("injected"))) as calls:
            assert together(faulty) == want
        assert calls

    def test_a_block_that_cannot_be_published(self, faulty, sound):
        want = together(faulty, max_tokens=60)
        with broken(faulty.llm.engine.scheduler.index, "publish", lambda *_: RuntimeError("injected")):
            assert together(faulty, max_tokens=60) == want


class TestNumbers:
    def test_nan_ends_its_request_only(self, faulty, sound):
        """The third request to draw gets NaN; its text ends with an error, the others' do not change."""
        want = together(faulty)
        backend, victims = faulty.llm.backend, []
        forward = backend.forward

        def poisoned(batch):
            result = forward(batch)
            for draw in batch.draws:
                if draw.position > 40 and not victims:
                    victims.append(draw.key)
                if draw.key in victims:
                    result.view[draw.first_output : draw.first_output + len(draw.tree)] = np.nan
            return result

        backend.forward = poisoned
        try:
            with ThreadPoolExecutor(4) as pool:
                tries = [
                    pool.submit(ask, faulty, f"tell me about number {i}", seed=i, temperature=1e-6) for i in range(4)
                ]
                failed = [one.exception() for one in tries]
        finally:
            del backend.forward
        errors = [error for error in failed if error is not None]
        assert len(errors) == 1
        assert errors[0].code == "numerical_error"
        assert together(faulty) == want


class TestDrafters:
    def test_one_that_keeps_failing_is_switched_off_and_health_says_so(self, tiny_model):
        with serving(tiny_llm(tiny_model, "ngram")) as server:
            want = ask(server, max_tokens=40).choices[0].message.content
            (drafter,) = server.llm.engine.speculator.drafters
            with (
                broken(drafter, "observe", lambda *_: ValueError("injected")),
                broken(drafter, "propose", lambda *_: ValueError("injected")),
            ):
                assert ask(server, max_tokens=40).choices[0].message.content == want
            state = server.http.get("/health").json()
            assert state["engine"]["drafters_off"] == {"ngram": "ValueError: injected"}
            assert state["ready"]
            assert ask(server, max_tokens=40).choices[0].message.content == want
            server.llm.engine.check()


class TestStalls:
    def test_a_step_that_does_not_end_is_told_by_every_path_of_health(self, faulty, sound, monkeypatch, wait_until):
        release, forward = threading.Event(), faulty.llm.backend.forward
        monkeypatch.setattr(async_engine, "STALL_S", 0.2)
        monkeypatch.setattr(faulty.llm.backend, "forward", lambda batch: release.wait(30) and forward(batch))
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, faulty)
            wait_until(lambda: faulty.http.get("/health/live").status_code == 503)
            assert faulty.http.get("/health/ready").status_code == 503
            assert faulty.http.get("/health").json()["engine"]["stalled"]
            release.set()
            assert asked.result().choices
        wait_until(lambda: faulty.http.get("/health").status_code == 200)


class TestBodies:
    """What is no good request is refused and leaves nothing behind."""

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"\xff\xfe{}",
            b'{"model": "\xc3\x28", "messages": []}',
            b"[" * 100_000,
            b'{"messages": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}",
            b"null",
            b'"text"',
            json.dumps({"model": MODEL, "messages": HELLO, "temperature": "hot"}).encode(),
            json.dumps({"model": MODEL, "messages": "hello"}).encode(),
            json.dumps({"model": MODEL, "messages": HELLO, "colour": "red"}).encode(),
            json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 10**30}).encode(),
            json.dumps({"model": MODEL, "messages": HELLO, "priority": 10**6}).encode(),
            b'{"model": "tiny", "messages": [{"role": "user", "content": "a"}], "temperature": NaN}',
            b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}], "max_tokens": 2}',
        ],
        ids=range(15),
    )
    def test_it_is_refused(self, faulty, sound, body):
        answer = faulty.http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.json()["error"]["message"]


class TestClients:
    def connect(self, server: Server) -> socket.socket:
        host, port = server.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=30)

    def request(self, **options) -> bytes:
        raw = json.dumps({"model": MODEL, "messages": HELLO, **options}).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += f"Content-Length: {len(raw)}"
        return head.encode() + b"\r\n\r\n" + raw

    def test_half_a_request(self, faulty, sound):
        for upto in (1, 40, -1):
            with self.connect(faulty) as client:
                client.sendall(self.request(max_tokens=4)[:upto])

    @pytest.mark.parametrize("stream", [True, False])
    def test_clients_that_are_killed(self, faulty, sound, wait_until, stream):
        clients = [self.connect(faulty) for _ in range(20)]
        for client in clients:
            client.sendall(self.request(max_tokens=900, stream=stream, ignore_eos=True))
        wait_until(lambda: len(faulty.llm.engine.scheduler.running) > 1)
        for client in clients:  # with a reset, as a process that is killed
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            client.close()
        wait_until(lambda: not faulty.llm.engine.has_work)

    def test_a_reader_that_does_not_read_delays_nobody(self, faulty, sound):
        slow = [self.connect(faulty) for _ in range(4)]
        for client in slow:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.sendall(self.request(max_tokens=900, stream=True, ignore_eos=True, token_details=True))
        start = time.monotonic()
        assert ask(faulty).choices
        assert time.monotonic() - start < 30
        for client in slow:
            client.close()

    def test_many_more_than_can_run_wait_and_leave(self, faulty, sound, wait_until):
        leave = threading.Event()

        def hold() -> None:
            with self.connect(faulty) as client:
                client.sendall(self.request(max_tokens=900, ignore_eos=True))
                leave.wait(30)

        threads = [threading.Thread(target=hold) for _ in range(60)]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(faulty.llm.engine.scheduler.waiting) > 30)
        leave.set()
        for thread in threads:
            thread.join()
        wait_until(lambda: not faulty.llm.engine.has_work)
