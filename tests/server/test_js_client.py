"""OpenAI's client for JavaScript drives every endpoint: see js/client.mjs."""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.calling_models import write_calling_model
from tests.server.conftest import MODEL, Server, serving, tiny_llm

HERE = Path(__file__).parent / "js"
CHECKS = ["models", "chat", "completions", "responses", "tools", "structuredOutput", "errors", "abort"]
FIRST_NODE = 18


@pytest.fixture(scope="module")
def node() -> str:
    """The program, where it is new enough for the client."""
    path = shutil.which("node") if shutil.which("npm") else None
    if path is not None:
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        if int(version.lstrip("v").split(".")[0]) >= FIRST_NODE:
            return path
    assert not os.environ.get("CI"), "CI must have the packages nodejs and npm"
    pytest.skip(f"no Node.js {FIRST_NODE} or newer here: install the packages nodejs and npm")


@pytest.fixture(scope="module")
def openai_client(request: pytest.FixtureRequest) -> Path:
    """The client's main file, installed as the lock file says into pytest's cache, once for each of its versions."""
    lock = (HERE / "package-lock.json").read_bytes()
    folder = Path(request.config.cache.mkdir(f"js-client-{hashlib.sha256(lock).hexdigest()[:12]}"))
    main = folder / "node_modules" / "openai" / "index.mjs"
    if not main.is_file():
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, folder)
        command = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        if made.returncode:
            shutil.rmtree(folder)
            assert not os.environ.get("CI"), made.stderr
            pytest.skip(f"npm cannot install the client here: {made.stderr.strip().splitlines()[0]}")
    return main


@pytest.fixture(scope="module")
def calling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tiny_llm(write_calling_model(tmp_path_factory.mktemp("models"), "hermes"), "suffix")) as running:
        yield running


def test_the_client_for_javascript(node: str, openai_client: Path, calling: Server, wait_until) -> None:
    made = subprocess.run(
        [node, HERE / "client.mjs", calling.url, MODEL],
        env={**os.environ, "OPENAI_CLIENT": openai_client.as_uri()},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.split() == CHECKS
    wait_until(lambda: not calling.llm.engine.has_work)
    assert calling.llm.engine.scheduler.pool.num_owned == 0
    calling.llm.engine.check()
