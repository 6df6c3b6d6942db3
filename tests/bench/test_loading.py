"""Loading: the peak of memory is seen, also of memory that is given back; files are read before."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from forerun.bench.loading import _STATUS, measure_load, warm
from forerun.llm import LLM

MB = 1 << 20


@pytest.mark.skipif(not _STATUS.exists(), reason="this system does not tell a process its memory")
def test_the_peak_counts_what_is_given_back() -> None:
    kept = []

    def load() -> LLM:
        # Above 32 MB malloc always maps fresh pages; below, memory that earlier tests freed could serve.
        kept.append(np.ones(40 * MB, np.uint8))
        passing = np.ones(60 * MB, np.uint8)
        time.sleep(0.05)
        del passing
        return cast(LLM, SimpleNamespace(files=SimpleNamespace(size_bytes=7)))

    _, cost = measure_load(load)
    assert cost.file_bytes == 7
    assert cost.seconds >= 0.05
    assert cost.kept_bytes is not None
    assert cost.peak_bytes is not None
    assert 35 * MB < cost.kept_bytes < 60 * MB
    assert 90 * MB < cost.peak_bytes < 140 * MB


def test_a_failed_load_passes_through() -> None:
    def load() -> LLM:
        raise MemoryError

    with pytest.raises(MemoryError):
        measure_load(load)


def test_warming_takes_files_parts_and_folders(tmp_path: Path) -> None:
    for name in ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf", "model.safetensors"):
        (tmp_path / name).write_bytes(b"x" * 1000)
    warm(tmp_path / "a-00001-of-00002.gguf")
    warm(tmp_path)
    (tmp_path / "a-00002-of-00002.gguf").unlink()
    (tmp_path / "a-00002-of-00002.gguf").mkdir()
    with pytest.raises(OSError, match="directory"):  # so the second part is read too
        warm(tmp_path / "a-00001-of-00002.gguf")
