"""Logits of every family against transformers, from golden files: no torch here (see tools/make_parity_golden.py)."""

from pathlib import Path

import numpy as np
import pytest

from forerun.backends.base import Limits, LoadedModel
from forerun.backends.reference import ReferenceBackend
from forerun.cache.layout import KvLayout, KvStack
from forerun.models.registry import open_model
from tests.parity.cases import CASES, GOLDEN, NUM_TOKENS, SEED, case_tokens, weights_digest
from tests.steps import Rows, make_batch
from tests.tiny import write_tiny_folder


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    with np.load(GOLDEN / f"{name}.npz") as golden:
        assert str(golden["weights_sha256"]) == weights_digest(case.spec), (
            "numpy's random stream changed: remake goldens"
        )
        expected = golden["logits"]
    write_tiny_folder(tmp_path, case.spec, seed=SEED, config_changes=case.config_changes)
    model = open_model(tmp_path)
    assert model.spec == case.spec
    attention = model.spec.layers[0].mixer
    stack = KvStack("target", model.spec.num_layers, attention.num_kv_heads, attention.head_dim, "fp32")
    backend = ReferenceBackend()
    backend.load(LoadedModel(model.spec, model.weights), Limits(NUM_TOKENS, NUM_TOKENS, NUM_TOKENS))
    backend.allocate_kv(KvLayout(3, 16, (stack,)))
    batch = make_batch([Rows(case_tokens(case).tolist(), 0, [2, 0, 1])], 16)
    logits = backend.forward(batch).logits(range(NUM_TOKENS))
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)
    assert np.abs(expected).max() > 1.0  # logits of zeros would agree with anything


def test_every_golden_file_belongs_to_a_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.npz")} == set(CASES)


def test_scaled_rope_has_all_three_bands() -> None:
    """The llama3 case would prove little if no frequency were kept, stretched and blended."""
    factors = CASES["llama3-scaling"].spec.layers[0].mixer.rope.freq_factors
    assert factors is not None
    assert {1.0, 8.0} < set(factors)
    assert any(1.0 < factor < 8.0 for factor in factors)
