"""Llama, Mistral and Qwen2: what a config or GGUF metadata becomes, and what is refused by name."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from forerun.errors import ForerunError, ModelFileError, UnsupportedModel
from forerun.models.registry import open_model
from forerun.models.spec import ModelSpec, RopeSpec
from tests.tiny import tiny_spec, write_tiny_folder, write_tiny_gguf

SPECS = {
    "llama": tiny_spec("llama"),
    "llama-untied": tiny_spec("llama", kv_heads=4, tied=False, head_dim=24),
    "llama-biases": tiny_spec("llama", kv_heads=1, qkv_bias=True, out_bias=True, mlp_bias=True),
    "llama-linear": tiny_spec("llama", rope=RopeSpec(500.0, 16, linear_factor=2.0)),
    "qwen2": tiny_spec("qwen2"),
    "qwen2-untied": tiny_spec("qwen2", tied=False, rope=RopeSpec(1000000.0, 16)),
}


@pytest.mark.parametrize("name", SPECS)
def test_folder_and_gguf_of_one_model_are_the_same(name: str, tmp_path: Path) -> None:
    """Equal weights mean that GGUF's order of Llama's q and k rows (and biases) was undone."""
    spec = SPECS[name]
    write_tiny_folder(tmp_path / "folder", spec)
    write_tiny_gguf(tmp_path / "model.gguf", spec)
    folder, file = open_model(tmp_path / "folder"), open_model(tmp_path / "model.gguf")
    assert folder.spec == spec
    assert file.spec.layers == spec.layers
    assert file.spec.norm_eps == pytest.approx(spec.norm_eps, rel=1e-6)  # GGUF stores it in float32
    assert (file.spec.tied_embeddings, file.spec.max_context) == (spec.tied_embeddings, spec.max_context)
    for weight in spec.weight_shapes():
        assert folder.weights.read(weight).tobytes() == file.weights.read(weight).tobytes()


def read_config(tmp_path: Path, family: str, **changes: Any) -> ModelSpec:
    write_tiny_folder(tmp_path, tiny_spec(family), config_changes=changes)
    return open_model(tmp_path).spec


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type is 'yarn'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_type is 'dynamic'"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0, "mscale": 2.0}}, "'mscale' is 2.0"),
        ({"rope_scaling": {"type": "linear", "factor": 4}, "rope_parameters": {"rope_theta": 1e4}}, "rope_parameters"),
        ({"quantization_config": {"quant_method": "gptq"}}, "'quantization_config' is {'quant_method': 'gptq'}"),
        ({"sliding_window": 4096}, "'sliding_window' is 4096"),
        ({"final_logit_softcapping": 30.0}, "'final_logit_softcapping' is 30.0"),
        ({"num_experts": 8}, "'num_experts' is 8"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_interleaved": True}, "'rope_interleaved' is True"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types is"),
        ({"architectures": ["FalconForCausalLM"]}, "FalconForCausalLM"),
        ({"architectures": None}, "None is unknown"),
    ],
)
def test_options_that_change_the_computation_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        read_config(tmp_path, "llama", **changes)
    assert named in str(caught.value)


def test_harmless_options_are_accepted(tmp_path: Path) -> None:
    harmless = {
        "pretraining_tp": 1,
        "attention_dropout": 0.1,
        "rope_interleaved": False,
        "is_llama_config": True,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        "layer_types": ["full_attention", "full_attention"],
        "partial_rotary_factor": 1.0,
        "sliding_window": None,
        "rope_scaling": {"rope_type": "default"},
    }
    assert read_config(tmp_path, "llama", **harmless) == tiny_spec("llama")


def test_defaults_of_old_llama_configs(tmp_path: Path) -> None:
    """Llama 2 names neither rope_theta nor head_dim nor, for the small ones, KV heads."""
    write_tiny_folder(
        tmp_path, tiny_spec("llama", kv_heads=4), config_changes=dict.fromkeys(("rope_theta", "head_dim"))
    )
    assert open_model(tmp_path).spec == tiny_spec("llama", kv_heads=4)
    spec = tiny_spec("llama", kv_heads=4)
    write_tiny_folder(tmp_path, spec, config_changes={"num_key_value_heads": None})
    assert open_model(tmp_path).spec == spec


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 KV heads"),
        ({"head_dim": 15}, "head size 15 is odd"),
        ({"head_dim": None, "num_attention_heads": 5}, "head_dim is missing"),
        ({"rms_norm_eps": 0}, "rms_norm_eps must be"),
        ({"rope_scaling": {"type": "linear"}}, "factor is missing"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_values_that_make_no_sense_are_refused(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read_config(tmp_path, "llama", **changes)
    assert named in str(caught.value)


def test_qwen2_windows(tmp_path: Path) -> None:
    off = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 1}
    assert read_config(tmp_path, "qwen2", **off) == tiny_spec("qwen2")
    with pytest.raises(UnsupportedModel, match="use_sliding_window is True"):
        read_config(tmp_path, "qwen2", use_sliding_window=True, sliding_window=4096)


@pytest.mark.parametrize("architecture", ["MistralForCausalLM", "Qwen2ForCausalLM"])
def test_kv_heads_are_never_guessed(tmp_path: Path, architecture: str) -> None:
    family = "qwen2" if architecture.startswith("Q") else "llama"
    with pytest.raises(ModelFileError, match="num_key_value_heads is missing"):
        read_config(tmp_path, family, architectures=[architecture], num_key_value_heads=None)


# ---- GGUF ----


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count is 8"),
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type is 'yarn'"),
        ({"llama.rope.dimension_count": 8}, "llama.rope.dimension_count is 8"),
        ({"llama.attention.value_length": 8}, "llama.attention.value_length is 8"),
        ({"llama.attention.sliding_window": 64}, "'llama.attention.sliding_window' is 64"),
        ({"llama.logit_scale": 0.5}, "'llama.logit_scale' is 0.5"),
        ({"llama.attention.head_count": [4, 2]}, "llama.attention.head_count differs between layers"),
        ({"general.type": "adapter"}, "'adapter'"),
        ({"general.architecture": "mamba"}, "'mamba' is unknown"),
        ({"llama.block_count": None}, "llama.block_count is missing"),
        ({"llama.vocab_size": 98}, "vocab_size exceeds the 97 embeddings"),
        ({"tokenizer.ggml.tokens": ["t"] * 98}, "more tokens than the 97 embeddings"),
        ({"llama.block_count": 3}, "'blk.2.attn_q.weight' of shape (64, 64) is missing"),
        ({"llama.block_count": 1}, "is not part of a llama model"),
        ({"llama.feed_forward_length": 64}, "'blk.0.ffn_gate.weight' has shape (96, 64), expected (64, 64)"),
    ],
)
def test_gguf_metadata_that_cannot_be_honoured(tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    write_tiny_gguf(tmp_path / "a.gguf", "llama", metadata=metadata)
    with pytest.raises(ForerunError) as caught:
        open_model(tmp_path / "a.gguf")
    assert named in str(caught.value)


def test_gguf_vocabulary_may_be_padded_and_scaling_off(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.tokens": ["t"] * 90,
        "llama.vocab_size": 90,
        "llama.expert_count": 0,
        "llama.rope.scaling.type": "none",
        "llama.rope.scaling.factor": 4.0,
        "llama.attention.head_count": [4, 4],
    }
    write_tiny_gguf(tmp_path / "a.gguf", "llama", metadata=metadata)
    spec = open_model(tmp_path / "a.gguf").spec
    assert spec.vocab_size == 97
    assert spec.layers == tiny_spec("llama").layers


def write_with_extra(path: Path, name: str, array: np.ndarray) -> None:
    """A tiny Llama GGUF with one more tensor, through the package's own reader and writer."""
    write_tiny_gguf(path.with_suffix(".base"), "llama")
    reader = gguf.GGUFReader(path.with_suffix(".base"))
    writer = gguf.GGUFWriter(path, "llama")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, np.ascontiguousarray(tensor.data))
    writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_rope_factors(tmp_path: Path) -> None:
    factors = np.array([1, 1, 1, 1.5, 2, 4, 8, 8], np.float32)
    write_with_extra(tmp_path / "a.gguf", "rope_freqs.weight", factors)
    assert open_model(tmp_path / "a.gguf").spec.layers[0].mixer.rope == RopeSpec(
        10000.0, 16, 1.0, tuple(factors.tolist())
    )
    write_with_extra(tmp_path / "b.gguf", "rope_freqs.weight", factors[:5])
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight' has shape \(5,\), expected \(8,\)"):
        open_model(tmp_path / "b.gguf")
    write_with_extra(tmp_path / "c.gguf", "rope_freqs.weight", factors - 1)
    with pytest.raises(ModelFileError, match="factor that is not above 0"):
        open_model(tmp_path / "c.gguf")


def test_a_bias_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    write_with_extra(tmp_path / "a.gguf", "blk.1.attn_q.bias", np.zeros(64, np.float32))
    with pytest.raises(ModelFileError, match=r"'blk\.1\.attn_q\.bias' \(1 in all\) is not part of a llama model"):
        open_model(tmp_path / "a.gguf")
