"""Tiny models with random weights whose answers vary, behind the whole engine, on every backend and kernel table."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from forerun.bench.lossless import Answer, Cell, answer_plainly
from forerun.bench.verify import make_cells
from forerun.llm import LLM, EngineOptions
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf


@dataclass(frozen=True)
class Subject:
    """A loaded model, the requests that it is asked, and what plain decoding answers to them."""

    llm: LLM
    options: EngineOptions
    cells: list[Cell]
    plain: dict[str, Answer]


MODELS = {
    "llama": tiny_spec("llama", tied=False, layers=3),  # heads in groups
    "qwen2": tiny_spec("qwen2", tied=False, heads=3, kv_heads=1, head_dim=32),  # one KV head, biases, odd sizes
}
BACKENDS = {
    "portable": EngineOptions(isa="portable", block_size=16),
    "best": EngineOptions(block_size=16),
    "best-fp32-kv": EngineOptions(kv_format="fp32"),
    "reference": EngineOptions(backend="reference", block_size=16),
}
SIZES = {"reference": (6, 10)}  # prompts and new tokens: numpy is slow
SIZE = (9, 20)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of a model of MODELS."""
    folder = tmp_path_factory.mktemp("lossless")

    @cache
    def path(name: str) -> Path:
        _, vocabulary = byte_level("smollm")
        file = folder / f"{name}.gguf"
        write_tiny_gguf(file, _with_vocabulary(name, len(vocabulary["tokenizer.ggml.tokens"])), metadata=vocabulary)
        return file

    return path


def _with_vocabulary(name: str, size: int):
    return replace(MODELS[name], vocab_size=size)


@pytest.fixture(scope="session")
def subject(model_path: Callable[[str], Path]) -> Callable[..., Subject]:
    """A model of MODELS on a backend of BACKENDS with so many threads; loaded once."""

    @cache
    def load(model: str, backend: str, threads: int = 1) -> Subject:
        options = BACKENDS[backend]
        llm = LLM(str(model_path(model)), speculation="off", threads=threads, options=options)
        cells = make_cells(llm, *SIZES.get(backend, SIZE))
        return Subject(llm, options, cells, answer_plainly(llm, cells, options))

    return load
