"""The fake hub as a fixture, with the user's folders in a temporary place."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun.models import download
from tests.models.hub_server import OTHER, WEIGHTS, FakeHub, running


@pytest.fixture
def fake_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one GGUF repository, one split one and one of safetensors; the user's folders are temporary."""
    fake = FakeHub(
        repositories={
            "org/one-GGUF": {"README.md": b"read me", "model.Q4_1.gguf": WEIGHTS},
            "org/many-GGUF": {"m-F16.gguf": WEIGHTS, "m-BF16.gguf": OTHER, "m-Q4_K_M.gguf": OTHER},
            "org/split-GGUF": {
                "Q8/big-00001-of-00002.gguf": WEIGHTS,
                "Q8/big-00002-of-00002.gguf": OTHER,
                "small-Q4_0.gguf": OTHER,
            },
            "org/tensors": {
                "config.json": b"{}",
                "tokenizer.json": b'{"a": 1}',
                "model-00001-of-00002.safetensors": WEIGHTS,
                "model-00002-of-00002.safetensors": OTHER,
                "model.safetensors.index.json": b"{}",
                "consolidated.00.safetensors": OTHER,
                "pytorch_model.bin": OTHER,
                "../escape.safetensors": OTHER,
            },
            "org/nothing": {"README.md": b"read me", "pytorch_model.bin": OTHER},
        }
    )
    with running(fake):
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
        monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("FORERUN_HOME", str(tmp_path / "home"))
        monkeypatch.setattr(download.time, "sleep", lambda seconds: None)
        yield fake
