"""A loaded model that gets other KV layers cuts its KV cache as a new one does."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.backends.cpu import CpuBackend
from forerun.cache.layout import KvLayout
from forerun.config import SpeculationConfig
from forerun.llm import LLM
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

CONTEXT = 2048


def write(path: Path, layers: int) -> str:
    _, vocabulary = byte_level("smollm")
    spec = tiny_spec("llama", layers=layers, max_context=CONTEXT)
    spec = replace(spec, vocab_size=len(vocabulary["tokenizer.ggml.tokens"]))
    write_tiny_gguf(path, spec, metadata=vocabulary)
    return str(path)


def test_neither_old_kv_memory_nor_drafters_to_come_are_overlooked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = 4_000_000
    allocate = CpuBackend.allocate_kv
    backends: list[CpuBackend] = []
    kv_bytes = 0

    def allocate_kv(self: CpuBackend, layout: KvLayout) -> None:
        nonlocal kv_bytes
        allocate(self, layout)
        backends.append(self)
        kv_bytes = layout.total_bytes

    monkeypatch.setattr(CpuBackend, "allocate_kv", allocate_kv)
    monkeypatch.setattr("forerun.llm.available_memory", lambda: free - kv_bytes - backends[-1].memory().drafts)
    draft = write(tmp_path / "draft.gguf", 1)
    drafting = SpeculationConfig("draft-model", options={"draft-model.model": draft}, budget="fixed")
    llm = LLM(write(tmp_path / "target.gguf", 4), speculation="off", threads=1)
    plain = llm.kv_layout.total_bytes
    sizes = []
    for speculation in (drafting, SpeculationConfig("off"), drafting):
        llm.reconfigure(speculation=speculation)
        sizes.append(llm.kv_layout.total_bytes)
    drafts = llm.backend.memory().drafts
    assert plain == pytest.approx(free / 2, rel=0.05)
    assert drafts > free / 10
    assert sizes[1] == plain
    assert sizes[0] == sizes[2] == pytest.approx((free - drafts) / 2, rel=0.05)
