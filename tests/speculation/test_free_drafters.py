"""Drafters without a model of their own on native kernels: alone and together they change no bit of a tiny model."""

import logging
from pathlib import Path

import pytest

from forerun import LLM, EngineOptions, SamplingParams
from forerun.config import SpeculationConfig
from forerun.speculation.drafters import recycle

DRAFTERS = ("suffix", "recycle", "lookahead", "ngram", "suffix+recycle", "ngram+suffix+recycle+lookahead")
PROMPTS = ["the cat sat on the mat. the cat", "one two three one two", "a"]
SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.8}}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    options = EngineOptions(max_num_seqs=8)
    return LLM(str(tiny_model), speculation="off", threads=2, max_model_len=256, options=options)


def said(llm: LLM, speculation: str, sampling: str, files: Path | None = None) -> list[tuple]:
    config = SpeculationConfig(speculation, max_depth=7, budget="fixed")
    llm.reconfigure(speculation=config, options=EngineOptions(max_num_seqs=8, drafter_files=files))
    params = SamplingParams(max_tokens=64, ignore_eos=True, seed=5, logits_hash=True, **SAMPLINGS[sampling])
    results = [generation.choices[0] for generation in llm.generate(PROMPTS, params)]
    assert llm.engine.speculator.stats.drafter_errors == 0
    return [(one.token_ids, one.logits_hashes) for one in results]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_nothing_changes(llm: LLM, drafter: str, sampling: str) -> None:
    assert said(llm, drafter, sampling) == said(llm, "off", sampling)


def test_a_second_engine_begins_with_what_the_first_learned(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recycle, "SAVE_EVERY", 1)
    plain = said(llm, "off", "greedy")
    assert said(llm, "recycle", "greedy", tmp_path) == plain
    first = llm.engine.speculator.stats.accepted
    (file,) = tmp_path.iterdir()
    assert said(llm, "recycle", "greedy", tmp_path) == plain
    assert llm.engine.speculator.stats.accepted > first
    file.write_bytes(b"not a table")
    with caplog.at_level(logging.WARNING):
        assert said(llm, "recycle", "greedy", tmp_path) == plain
    assert "ignored and will be learned again" in caplog.text
