"""`cli` runs one command line in this process; the user's folders are temporary."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from forerun.cli.main import main
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf


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


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GGUF model that answers nonsense, with a tokenizer and a chat template; its context is 1024 tokens."""
    return _write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TEMPLATE)


@pytest.fixture(scope="session")
def tiny_model_without_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same without a chat template."""
    return _write_model(tmp_path_factory.mktemp("models") / "plain.gguf", None)


def _write_model(path: Path, template: str | None) -> Path:
    _, vocabulary = byte_level("smollm")
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), max_context=1024)
    write_tiny_gguf(path, spec, metadata={**vocabulary, "tokenizer.chat_template": template})
    return path
