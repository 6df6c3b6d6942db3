"""For every test: which forerun is tested, hypothesis without deadlines (CI machines are shared), tiny model files."""

import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

import forerun
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

hypothesis.settings.register_profile("forerun", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("forerun")


def pytest_report_header(config: pytest.Config) -> str:
    """Say which installation is under test: `make test` tests the one in .venv, not the source folder."""
    return f"forerun {forerun.__version__} from {Path(forerun.__file__).parent}"


TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session", autouse=True)
def _drafters_keep_nothing_at_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What engines learn about this machine goes into a temporary folder: no run finds what another one learned."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("forerun.llm.cache_folder", lambda: folder)
        yield


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
