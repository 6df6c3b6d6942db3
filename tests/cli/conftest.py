"""`cli` runs one command line in this process; the user's folders are temporary."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from forerun.cli.main import main


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ran]


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call it with the words of a command line, without "forerun"."""
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.delenv("FORERUN_DEBUG", raising=False)

    def run(*words: str) -> Ran:
        capsys.readouterr()
        code = main(words)
        return Ran(code, *capsys.readouterr())

    return run
