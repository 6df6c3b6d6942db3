"""The tiny models whose logits are compared with transformers, shared by the test and tools/make_parity_golden.py."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.models.rope import llama3_freq_factors
from forerun.models.spec import ModelSpec, RopeSpec
from tests.tiny import RandomWeights, tiny_spec

GOLDEN = Path(__file__).parent / "golden"
SEED = 11
NUM_TOKENS = 40

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3_ROPE = RopeSpec(
    theta=500.0,
    rotary_dim=24,
    freq_factors=llama3_freq_factors(
        500.0, 24, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64
    ),
)


@dataclass(frozen=True)
class Case:
    """A spec as it should be read, and how its config.json differs from what tests.tiny writes."""

    spec: ModelSpec
    config_changes: Mapping[str, Any] = field(default_factory=dict)


CASES = {
    "llama-gqa-tied": Case(tiny_spec("llama")),
    "llama-mha-untied": Case(tiny_spec("llama", kv_heads=4, tied=False)),
    "llama-mqa-biases": Case(
        tiny_spec("llama", kv_heads=1, qkv_bias=True, out_bias=True, mlp_bias=True, rope=RopeSpec(500.0, 16))
    ),
    "llama3-scaling": Case(  # heads wider than hidden / heads, as in Llama 3.2 derivatives
        tiny_spec("llama", head_dim=24, rope=LLAMA3_ROPE), {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}
    ),
    "llama3-parameters": Case(  # the spelling of transformers 5
        tiny_spec("llama", head_dim=24, rope=LLAMA3_ROPE),
        {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3}},
    ),
    "llama-linear": Case(tiny_spec("llama", tied=False, rope=RopeSpec(10000.0, 16, linear_factor=2.5))),
    "mistral": Case(
        tiny_spec("llama", heads=6, kv_heads=2, head_dim=8, tied=False),
        {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "attention_bias": None,
            "mlp_bias": None,
        },
    ),
    "qwen2-untied": Case(tiny_spec("qwen2", tied=False, rope=RopeSpec(1000000.0, 16))),
    "qwen2-tied": Case(
        tiny_spec("qwen2", heads=8, kv_heads=8, head_dim=8, layers=3),
        {"use_sliding_window": False, "sliding_window": 64, "max_window_layers": 2},
    ),
}


def case_tokens(case: Case) -> npt.NDArray[np.int64]:
    """The tokens that both sides read."""
    return np.random.default_rng(SEED).integers(0, case.spec.vocab_size, NUM_TOKENS)


def weights_digest(spec: ModelSpec) -> str:
    """Fingerprint of the seeded weights, so that a changed random stream is not taken for a changed model."""
    weights, digest = RandomWeights(spec, SEED), hashlib.sha256()
    for name in sorted(spec.weight_shapes()):
        digest.update(weights.read(name).tobytes())
    return digest.hexdigest()
