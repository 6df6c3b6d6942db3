"""More than a server can take: everybody is answered at once, the queue and the memory stay bounded, and what comes
later works. Readers that do not read hold up nobody, lose nothing, and keep no block of the cache."""

import asyncio
import collections
import json
import resource
import socket
import time
from collections.abc import Iterator

import pytest

from forerun.machine import resident_memory
from forerun.server.config import ServerConfig
from tests.server.conftest import MODEL, Server, serving, tiny_llm

NUM_CONNECTIONS = 500
MAX_WAITING = 24
BODY = json.dumps({"model": MODEL, "prompt": "one two three", "max_tokens": 6, "temperature": 0}).encode()


@pytest.fixture(scope="module")
def small(tiny_model) -> Iterator[Server]:
    """A server that queues little. Both ends of its connections are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * NUM_CONNECTIONS
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this machine allows {hard} open files, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted) if soft != resource.RLIM_INFINITY else soft, hard))
    config = ServerConfig(served_model=MODEL, max_waiting=MAX_WAITING)
    with serving(tiny_llm(tiny_model, "ngram", max_num_seqs=8), config) as running:
        yield running
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def address(server: Server) -> tuple[str, int]:
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


async def send_all(server: Server, count: int) -> list[tuple[int, dict[str, str], bytes]]:
    """Requests one after the other: status, headers and body of each answer. A connection that was idle for seconds, as
    happens where a machine is busy, may be closed, and another one is opened."""
    reader, writer = await asyncio.open_connection(*address(server))
    answers = []
    while len(answers) < count:
        try:
            writer.write(request("/v1/completions", BODY))
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()
            reader, writer = await asyncio.open_connection(*address(server))
            continue
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
        answers.append((int(head[0].split()[1]), headers, await reader.readexactly(int(headers["content-length"]))))
    writer.close()
    return answers


@pytest.mark.parametrize("num_requests", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_requests_at_once(small: Server, wait_until, num_requests: int) -> None:
    small.http.post("/v1/completions", content=BODY, headers={"Content-Type": "application/json"})
    before = resident_memory() or 0
    most_open = 0

    async def scenario() -> list[tuple[int, dict[str, str], bytes]]:
        nonlocal most_open
        each = num_requests // NUM_CONNECTIONS
        tasks = [asyncio.ensure_future(send_all(small, each)) for _ in range(NUM_CONNECTIONS)]
        while not all(task.done() for task in tasks):
            scheduler = small.llm.engine.scheduler
            most_open = max(most_open, len(scheduler.waiting) + len(scheduler.running))
            await asyncio.sleep(0.02)
        return [answer for task in tasks for answer in task.result()]

    answers = asyncio.run(asyncio.wait_for(scenario(), 240))
    statuses = collections.Counter(status for status, _, _ in answers)
    assert statuses.keys() == {200, 503}
    assert sum(statuses.values()) == num_requests
    assert statuses[503] > num_requests // 10
    assert len({json.loads(body)["choices"][0]["text"] for status, _, body in answers if status == 200}) == 1
    for status, headers, body in answers:
        if status == 503:
            assert int(headers["retry-after"]) >= 1
            assert json.loads(body)["error"]["code"] == "overloaded"
    assert 8 < most_open <= 8 + MAX_WAITING
    assert (resident_memory() or 0) - before < 150e6
    good = small.http.post("/v1/completions", content=BODY, headers={"Content-Type": "application/json"})
    assert good.status_code == 200
    wait_until(lambda: small.http.get("/health").json()["generations"]["open"] == 0)
    assert small.llm.engine.scheduler.pool.num_owned == 0
    small.llm.engine.check()


def test_a_reader_that_pauses_keeps_no_blocks_and_loses_nothing(small: Server, wait_until) -> None:
    """The generation goes on without it; what was not read waits, as long as the answer is, and comes then."""
    options = {"model": MODEL, "prompt": "one two", "seed": 1, "ignore_eos": True, "max_tokens": 900, "logprobs": 5}
    whole = small.http.post("/v1/completions", json=options).json()["choices"][0]["text"]
    clients = []
    for _ in range(6):
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting: else it does not count
        client.settimeout(120)
        client.connect(address(small))
        client.sendall(request("/v1/completions", json.dumps({**options, "stream": True}).encode()))
        clients.append(client)
    wait_until(lambda: small.llm.engine.has_work)
    end = time.monotonic() + 120
    while small.llm.engine.has_work:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert small.llm.engine.scheduler.pool.num_owned == 0
    answer = small.http.post("/v1/completions", json={**options, "max_tokens": 3})
    assert answer.status_code == 200
    for client in clients:
        with client, client.makefile("rb") as file:
            text = ""
            for line in file:
                if line.strip() == b"data: [DONE]":
                    break
                if line.startswith(b"data: "):
                    text += json.loads(line[6:])["choices"][0]["text"]
            assert text == whole


def test_a_server_that_queues_nothing_runs_what_it_can(tiny_model) -> None:
    """What could never run is the client's error; what only finds no room now may come again."""
    config = ServerConfig(served_model=MODEL, max_waiting=0)
    with serving(tiny_llm(tiny_model, "ngram", max_num_seqs=2), config) as server:

        def ask(path: str, **options):
            return server.http.post(path, json={"model": MODEL, "max_tokens": 3, **options})

        messages = [{"role": "user", "content": "one two"}]
        assert ask("/v1/completions", prompt=["one", "two"]).status_code == 200
        assert ask("/v1/chat/completions", messages=messages, n=2).status_code == 200
        for path, param, options in (
            ("/v1/completions", "prompt", {"prompt": ["one", "two", "three"]}),
            ("/v1/completions", "n", {"prompt": "one", "n": 3}),
            ("/v1/chat/completions", "n", {"messages": messages, "n": 3}),
        ):
            answer = ask(path, **options)
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"]["param"] == param
            assert "takes" in answer.json()["error"]["message"]
