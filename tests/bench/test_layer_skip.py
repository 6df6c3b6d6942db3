"""The search on tiny models: agreement is that of real drafting, and planted useless sub-layers are found."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest

from forerun.backends.base import Limits, ProgramSpec
from forerun.bench import corpus
from forerun.bench.layer_skip import RUN, CalibrationText, SkipWish, own_text, search_profile
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.models import decoder
from forerun.sequence import SamplingParams
from tests.steps import Rows, make_batch
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

BLOCK = 16
OPTIONS = EngineOptions(block_size=BLOCK)
USELESS = {"layers.3.attn.o": "layers.3.attn", "layers.2.mlp.down": "layers.2.mlp"}


def load(folder: Path, zero: Collection[str] = (), layers: int = 6, **options: object) -> LLM:
    _, vocabulary = byte_level("smollm")
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), layers=layers, max_context=1024)
    write_tiny_gguf(folder / "tiny.gguf", spec, metadata=vocabulary, zero=zero)
    return LLM(str(folder / "tiny.gguf"), speculation="off", threads=1, options=OPTIONS, **options)  # type: ignore[arg-type]


def no_progress(done: int, total: int) -> None:
    pass


def test_agreement_is_that_of_drafts_behind_the_models_own_kv(tmp_path: Path) -> None:
    """Against single drafts by hand: the model's KV up to the draft, the pass's own inside it."""
    llm, count, skip = load(tmp_path), 64, frozenset({"layers.1.mlp", "layers.2.attn", "layers.4.mlp"})
    text = CalibrationText(llm, count)
    found = text.agreement(skip)
    tokens = [int(token) for token in text._text]
    spec, blocks = llm.model.spec, list(range(100, 108))
    program = llm.backend.add_program(
        ProgramSpec("by hand", llm.model, lambda ops: decoder.logits(spec, ops, skip), Limits(RUN, RUN, 2 * count))
    )
    same, overlap = 0, 0.0
    for start in (*range(32, 64, RUN), *range(96, 128, RUN)):
        run = tokens[start : start + RUN]
        llm.backend.forward(make_batch([Rows(tokens[:start], 0, blocks)], BLOCK, all_outputs=False))
        whole = llm.backend.forward(make_batch([Rows(run, start, blocks)], BLOCK)).logits(range(RUN))
        draft = program.forward(make_batch([Rows(run, start, blocks)], BLOCK)).logits(range(RUN))
        p, q = (np.exp(z - z.max(1, keepdims=True)) for z in (whole.astype(np.float64), draft.astype(np.float64)))
        same += int((whole.argmax(1) == draft.argmax(1)).sum())
        overlap += float(np.minimum(p / p.sum(1, keepdims=True), q / q.sum(1, keepdims=True)).sum())
    assert 0 < found.same_token < 1
    assert found.same_token == same / count
    # Tokens beyond the likeliest are taken together, which can only overestimate.
    assert overlap / count - 1e-5 <= found.overlap < overlap / count + 0.1


def test_the_text_is_the_models_own(tmp_path: Path) -> None:
    llm = load(tmp_path)
    source = llm.tokenizer.encode_prompt(corpus.text())
    text = own_text(llm, 64)
    assert (len(text), text[:32], text[64:96]) == (128, source[:32], source[32:64])
    for own in (32, 96):
        answer = llm.generate([text[:own]], SamplingParams(max_tokens=32, min_tokens=32))[0].choices[0]
        assert text[own : own + 32] == list(answer.token_ids)


def test_nothing_left_out_is_full_agreement(tmp_path: Path) -> None:
    found = CalibrationText(load(tmp_path), 64).agreement(frozenset())
    assert found.same_token == 1.0
    assert found.overlap == pytest.approx(1.0, abs=1e-4)


def test_useless_sub_layers_are_found(tmp_path: Path) -> None:
    llm = load(tmp_path, zero=USELESS)
    progress: list[tuple[int, int]] = []
    profile = search_profile(
        llm, SkipWish(tokens=64, max_measurements=60), OPTIONS, lambda done, total: progress.append((done, total))
    )
    assert set(profile.skip) == set(USELESS.values())
    assert profile.same_token == 1.0
    assert profile.overlap == pytest.approx(1.0, abs=1e-4)
    assert profile.speedup == pytest.approx(16 / (1 + 15 * profile.cost), rel=1e-3)
    assert profile.speedup > 1
    assert (profile.model.name, profile.model.num_layers) == ("tiny.gguf", 6)
    assert progress[0] == (1, 60)
    assert len(progress) <= 60


def test_the_same_seed_gives_the_same_profile(tmp_path: Path) -> None:
    llm = load(tmp_path)
    made = [search_profile(llm, SkipWish(64, seed, 40), OPTIONS, no_progress) for seed in (1, 1)]
    assert made[0] == made[1]


def test_the_engine_works_afterwards(tmp_path: Path) -> None:
    llm = load(tmp_path)
    before = llm.generate("Hello there")[0].choices[0].token_ids
    search_profile(llm, SkipWish(64, 0, 10), OPTIONS, no_progress)
    assert llm.generate("Hello there")[0].choices[0].token_ids == before


def test_what_cannot_be_done_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="multiple of 32"):
        SkipWish(tokens=48)
    with pytest.raises(UsageError, match="at least one measurement"):
        SkipWish(max_measurements=0)
    with pytest.raises(UsageError, match="none to leave out"):
        search_profile(load(tmp_path, layers=3), SkipWish(64), OPTIONS, no_progress)
    with pytest.raises(UsageError, match="at most 512 tokens"):
        CalibrationText(load(tmp_path), 544)
    with pytest.raises(UsageError, match="raise --kv-cache-bytes"):
        CalibrationText(load(tmp_path, kv_cache_bytes=1 << 20), 512)
