"""A real server for tests: uvicorn on a free port in a thread, with the tiny model or another."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn

from forerun.config import SpeculationConfig
from forerun.llm import LLM
from forerun.options import EngineOptions
from forerun.server.app import build_app
from forerun.server.config import ServerConfig
from forerun.server.operations import Operations
from forerun.server.run import KEEP_ALIVE_S

MODEL = "tiny"


@dataclass(frozen=True)
class Server:
    """A running server and two clients of it. Of `llm`, tests may read statistics when nothing runs.

    http    a plain client of the server's root
    openai  the official client, which retries nothing
    """

    url: str
    llm: LLM
    http: httpx.Client
    openai: openai.OpenAI


@contextmanager
def serving(llm: LLM, config: ServerConfig | None = None, operations: Operations | None = None) -> Iterator[Server]:
    """Serve a loaded model until the block ends."""
    config = config or ServerConfig(served_model=MODEL)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        app = build_app(llm, config, operations)
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="warning", lifespan="on", timeout_keep_alive=KEEP_ALIVE_S)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                time.sleep(0.01)
            url = f"http://127.0.0.1:{port}"
            with (
                httpx.Client(base_url=url, timeout=60) as http,
                openai.OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=60) as official,
            ):
                yield Server(url, llm, http, official)
        finally:
            server.should_exit = True
            thread.join(30)


@pytest.fixture(scope="session", autouse=True)
def _engines_check_themselves() -> Iterator[None]:
    """After every step, whatever a test does to the server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORERUN_CHECK", "1")
        yield


def tiny_llm(model: Path, speculation: str | SpeculationConfig = "auto", **options: object) -> LLM:
    """The tiny model with small limits."""
    return LLM(
        str(model),
        speculation=speculation,
        threads=2,
        kv_cache_bytes=8 << 20,
        options=EngineOptions(**options),  # type: ignore[arg-type]
    )


@pytest.fixture(scope="session")
def server(tiny_model: Path, _engines_check_themselves: None) -> Iterator[Server]:
    """One server for every test that leaves it as it was."""
    with serving(tiny_llm(tiny_model)) as running:
        yield running


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that must happen within seconds."""

    def wait(happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 10
        while not happened():
            assert time.monotonic() < end, "it did not happen within 10 seconds"
            time.sleep(0.01)

    return wait
