"""The quality gate: dense fp32 arithmetic agrees with the oracle, statistics are right, the real model passes."""

from pathlib import Path

import numpy as np
import pytest

from forerun.backends.base import Limits, LoadedModel
from forerun.backends.reference import ReferenceBackend
from forerun.bench.dense import dense_logits
from forerun.bench.quality import compare_logits, engine_logits, measure_quality
from forerun.cache.layout import KvLayout, KvStack
from forerun.errors import ForerunError, UsageError
from forerun.llm import DEFAULT_MODEL, LLM, EngineOptions
from forerun.models.hub import resolve
from forerun.models.spec import RopeSpec
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights, tiny_spec

SPECS = {
    "llama": tiny_spec("llama", rope=RopeSpec(theta=5000.0, rotary_dim=16, freq_factors=(1.0, 1.5) * 4)),
    "qwen2": tiny_spec("qwen2", tied=False, heads=3, kv_heads=1, head_dim=32),
    "biases": tiny_spec("llama", qkv_bias=True, out_bias=True, mlp_bias=True, kv_heads=4),
}


@pytest.mark.parametrize("name", SPECS)
def test_dense_arithmetic_agrees_with_the_reference_backend(name: str) -> None:
    spec = SPECS[name]
    model = LoadedModel(spec, RandomWeights(spec))
    tokens = [int(token) for token in np.random.default_rng(1).integers(0, spec.vocab_size, 40)]
    reference, mixer = ReferenceBackend(), spec.layers[0].mixer
    reference.load(model, Limits(64, 64, 64))
    reference.allocate_kv(
        KvLayout(4, 16, (KvStack("target", spec.num_layers, mixer.num_kv_heads, mixer.head_dim, "fp32"),))
    )
    expected = reference.forward(make_batch([Rows(tokens, 0, [0, 1, 2])], 16)).logits(range(40))
    np.testing.assert_allclose(dense_logits(model, tokens), expected, rtol=1e-4, atol=1e-5)


def test_engine_logits_go_in_pieces(tiny_model: Path) -> None:
    """Whatever the pieces, the same bits, and as many rows as tokens."""
    tokens = list(range(50, 120))
    made = []
    for limit in (96, 20):
        options = EngineOptions(max_outputs=limit, max_num_seqs=8)
        llm = LLM(str(tiny_model), speculation="off", threads=1, options=options)
        made.append(engine_logits(llm, tokens, options))
        assert llm.engine.scheduler.pool.num_owned == 0
    assert made[0].shape == (70, llm.model.spec.vocab_size)
    assert made[0].tobytes() == made[1].tobytes()


def test_statistics() -> None:
    fp32 = np.log(np.array([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5]], np.float32))
    engine = np.log(np.array([[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]], np.float32)) + 3  # a constant changes nothing
    found = compare_logits(fp32, engine, np.array([0, 1]))
    assert found.tokens == 2
    assert found.max_kl == pytest.approx(0.25 * np.log(2), rel=1e-5)
    assert found.mean_kl == pytest.approx(found.max_kl / 2, rel=1e-5)
    assert found.top1_agreement == 0.5
    assert found.perplexity_fp32 == pytest.approx((0.5 * 0.3) ** -0.5, rel=1e-5)
    assert found.perplexity == pytest.approx((0.25 * 0.3) ** -0.5, rel=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_a_tiny_model_is_computed_well(tiny_model: Path, backend: str) -> None:
    options = EngineOptions(backend=backend)
    llm = LLM(str(tiny_model), speculation="off", threads=1, options=options)
    progress: list[tuple[int, int]] = []
    found = measure_quality(llm, 60, options, lambda done, total: progress.append((done, total)))
    assert 0 < found.mean_kl < 1e-3
    assert found.top1_agreement > 0.9
    assert progress == [(60, 120), (120, 120)]


def test_a_text_that_is_too_long_is_refused(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), speculation="off", threads=1)
    with pytest.raises(UsageError, match="between 1 and 1024 tokens"):
        measure_quality(llm, 2000, EngineOptions(), lambda done, total: None)


def test_a_consistently_wrong_model_does_not_pass(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's reason to be: an engine that is wrong in the same way everywhere passes every lossless test."""
    llm = LLM(str(tiny_model), speculation="off", threads=1)
    forward = llm.backend.forward

    def shifted(batch):
        positions = batch.positions + np.int32(1) * (batch.positions > 20)  # a wrong rotary position
        return forward(type(batch)(**{**vars(batch), "positions": positions}))

    monkeypatch.setattr(llm.backend, "forward", shifted)
    assert measure_quality(llm, 60, EngineOptions(), lambda done, total: None).mean_kl > 1e-3


def test_the_default_model_is_computed_well() -> None:
    """The real-model gate: mean KL from fp32 over real text below 1e-3."""
    try:
        resolve(DEFAULT_MODEL)
    except ForerunError as error:
        pytest.skip(f"THE REAL-MODEL GATE DID NOT RUN, the default model could not be fetched: {error}")
    options = EngineOptions()
    found = measure_quality(LLM(speculation="off", options=options), 256, options, lambda done, total: None)
    assert found.mean_kl < 1e-3
    assert found.max_kl < 5e-2
    assert found.top1_agreement > 0.95
    assert found.perplexity == pytest.approx(found.perplexity_fp32, rel=0.01)
    assert found.perplexity_fp32 < 60  # the text makes sense to the model
