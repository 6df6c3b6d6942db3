"""Tiny models for every test: a spec, seeded weights, and writers of both file kinds.

Weights come from numpy seeded by (seed, logical name), so they depend neither on the order of reading nor on torch.
Their values are exact in bfloat16: a backend that stores bf16 weights and one that stores float32 get the same model.
File names of tensors are spelled out here a second time on purpose, as a check on `forerun.models.families`. The
writers import their libraries themselves, so that `tools/make_parity_golden.py` needs none of them.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.models.spec import AttentionSpec, DenseMlpSpec, LayerSpec, ModelSpec, RopeSpec

Float32 = npt.NDArray[np.float32]

HF_PARTS = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    **{f"attn.{part}": f"self_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"attn.{part}.bias": f"self_attn.{part}_proj.bias" for part in "qkvo"},
    **{f"mlp.{part}": f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")},
    **{f"mlp.{part}.bias": f"mlp.{part}_proj.bias" for part in ("gate", "up", "down")},
}
HF_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "output": "lm_head.weight"}
GGUF_PARTS = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "attn.o": "attn_output.weight",
    "attn.o.bias": "attn_output.bias",
    **{f"attn.{part}": f"attn_{part}.weight" for part in "qkv"},
    **{f"attn.{part}.bias": f"attn_{part}.bias" for part in "qkv"},
    **{f"mlp.{part}": f"ffn_{part}.weight" for part in ("gate", "up", "down")},
    **{f"mlp.{part}.bias": f"ffn_{part}.bias" for part in ("gate", "up", "down")},
}
GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "output": "output.weight"}


# size: one optional argument for every number of a spec that a test may want to vary
def tiny_spec(
    family: str = "llama",
    *,
    layers: int = 2,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 16,
    vocab: int = 97,
    tied: bool = True,
    intermediate: int = 96,
    max_context: int = 512,
    rope: RopeSpec | None = None,
    qkv_bias: bool | None = None,
    out_bias: bool = False,
    mlp_bias: bool = False,
) -> ModelSpec:
    """A small ModelSpec; Qwen2 has QKV biases unless told otherwise."""
    attention = AttentionSpec(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        rope=rope or RopeSpec(theta=10000.0, rotary_dim=head_dim),
        scale=head_dim**-0.5,
        qkv_bias=family == "qwen2" if qkv_bias is None else qkv_bias,
        out_bias=out_bias,
    )
    layer = LayerSpec(attention, DenseMlpSpec(intermediate, bias=mlp_bias))
    return ModelSpec(
        family=family,
        vocab_size=vocab,
        hidden=hidden,
        layers=(layer,) * layers,
        norm_eps=1e-5,
        tied_embeddings=tied,
        max_context=max_context,
    )


class RandomWeights:
    """Seeded weights of a spec; those named in `zero` are all zero. Implements `Weights`."""

    def __init__(self, spec: ModelSpec, seed: int = 0, zero: Collection[str] = ()) -> None:
        self._shapes = spec.weight_shapes()
        self._seed = seed
        self._zero = zero

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        return self._shapes[name]

    def stored_format(self, name: str) -> str:
        return "F32"

    def num_bytes(self, name: str) -> int:
        return 4 * int(np.prod(self._shapes[name]))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        rng = np.random.default_rng((self._seed, zlib.crc32(name.encode())))
        shape = self._shapes[name]
        values = rng.standard_normal(shape, np.float32)
        if name.endswith("norm"):
            values = 1.0 + 0.1 * values
        elif name in ("embed", "output"):
            values *= 0.3
        else:
            values *= 0.1 if name.endswith(".bias") else shape[-1] ** -0.5
        if name in self._zero:
            values *= 0
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
        return np.ascontiguousarray(bits.view(np.float32)[start:stop])

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        return self.read(name, start, stop).view(np.uint8)


def hf_name(name: str) -> str:
    """Hugging Face tensor name of a logical weight."""
    return _file_name(name, HF_TOP, HF_PARTS, "model.layers.")


def gguf_name(name: str) -> str:
    """GGUF tensor name of a logical weight."""
    return _file_name(name, GGUF_TOP, GGUF_PARTS, "blk.")


def _file_name(name: str, top: Mapping[str, str], parts: Mapping[str, str], prefix: str) -> str:
    if name in top:
        return top[name]
    _, index, part = name.split(".", 2)
    return f"{prefix}{index}.{parts[part]}"


def hf_config(spec: ModelSpec, **changes: Any) -> dict[str, Any]:
    """config.json of a spec; `changes` are added, a value of None removes the key."""
    attn, mlp = spec.layers[0].mixer, spec.layers[0].mlp
    config: dict[str, Any] = {
        "architectures": ["Qwen2ForCausalLM" if spec.family == "qwen2" else "LlamaForCausalLM"],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": attn.num_heads,
        "num_key_value_heads": attn.num_kv_heads,
        "intermediate_size": mlp.intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": attn.rope.theta,
        "max_position_embeddings": spec.max_context,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": "float32",
    }
    if spec.family == "llama":
        config |= {"head_dim": attn.head_dim, "attention_bias": attn.qkv_bias, "mlp_bias": mlp.bias}
    if attn.rope.linear_factor != 1.0:
        config["rope_scaling"] = {"rope_type": "linear", "factor": attn.rope.linear_factor}
    config |= changes
    return {key: value for key, value in config.items() if value is not None}


def write_tiny_folder(
    path: Path,
    model: ModelSpec | str = "llama",
    *,
    seed: int = 0,
    dtype: str = "F32",
    shards: int = 1,
    config_changes: Mapping[str, Any] | None = None,
) -> ModelSpec:
    """Write a Hugging Face folder of float32 ("F32"), "F16" or "BF16" weights and return its spec."""
    spec = tiny_spec(model) if isinstance(model, str) else model
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(hf_config(spec, **(config_changes or {}))))
    weights = RandomWeights(spec, seed)
    arrays = {hf_name(name): weights.read(name) for name in spec.weight_shapes()}
    names = sorted(arrays)
    if shards == 1:
        _save_safetensors(path / "model.safetensors", arrays, dtype)
        return spec
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: arrays[name] for name in names[shard::shards]}
        _save_safetensors(path / file, part, dtype)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(a.nbytes for a in arrays.values())}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return spec


def _save_safetensors(path: Path, arrays: Mapping[str, Float32], dtype: str) -> None:
    from safetensors.numpy import save_file

    if dtype != "BF16":
        save_file({name: a.astype({"F32": np.float32, "F16": np.float16}[dtype]) for name, a in arrays.items()}, path)
        return
    header, data = {}, b""  # numpy has no bfloat16: write the file by hand
    for name, array in arrays.items():
        raw = (array.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


# size: one optional argument for everything that a test may want to vary
def write_tiny_gguf(
    path: Path,
    model: ModelSpec | str = "llama",
    *,
    seed: int = 0,
    formats: str | Mapping[str, str] = "F32",
    metadata: Mapping[str, Any] | None = None,
    max_tensors_per_part: int = 0,
    zero: Collection[str] = (),
    weights: RandomWeights | None = None,
) -> ModelSpec:
    """Write a GGUF file and return its spec.

    formats   one format for every matrix, or formats by logical name (F32 for the rest); norms and biases are F32.
              F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0 or Q5_1: what the gguf package can quantise to
    metadata  keys to add or replace, a tokenizer for example; None removes a key
    max_tensors_per_part  0 writes one file; otherwise `path`'s stem gets -00001-of-0000N suffixes
    zero      logical weights that are all zero
    weights   other ones than the seeded
    """
    import gguf

    spec = tiny_spec(model) if isinstance(model, str) else model
    writer = gguf.GGUFWriter(path, spec.family, split_max_tensors=max_tensors_per_part)
    for key, value in {**_gguf_metadata(spec), **(metadata or {})}.items():
        _add_value(writer, key, value)
    weights = weights or RandomWeights(spec, seed, zero)
    for name, shape in spec.weight_shapes().items():
        array = weights.read(name)
        if spec.family == "llama" and name.split(".bias")[0].endswith(("attn.q", "attn.k")):
            array = interleave_pairs(array, spec.layers[0].mixer.head_dim)
        wanted = formats if isinstance(formats, str) else formats.get(name, "F32")
        kind = gguf.GGMLQuantizationType["F32" if len(shape) == 1 else wanted]
        if kind in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16):
            writer.add_tensor(gguf_name(name), array.astype(np.float16 if kind.name == "F16" else np.float32))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return spec


def interleave_pairs(array: Float32, head_dim: int) -> Float32:
    """Rows of each head reordered from half-split to 0, D/2, 1, D/2+1, ..., as GGUF stores Llama's q and k."""
    heads = array.reshape(-1, 2, head_dim // 2, *array.shape[1:])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(array.shape)


def _gguf_metadata(spec: ModelSpec) -> dict[str, Any]:
    attn, arch = spec.layers[0].mixer, spec.family
    values: dict[str, Any] = {
        "general.name": "tiny",
        f"{arch}.vocab_size": spec.vocab_size,
        f"{arch}.context_length": spec.max_context,
        f"{arch}.embedding_length": spec.hidden,
        f"{arch}.block_count": spec.num_layers,
        f"{arch}.feed_forward_length": spec.layers[0].mlp.intermediate,
        f"{arch}.attention.head_count": attn.num_heads,
        f"{arch}.attention.head_count_kv": attn.num_kv_heads,
        f"{arch}.attention.layer_norm_rms_epsilon": spec.norm_eps,
        f"{arch}.attention.key_length": attn.head_dim,
        f"{arch}.attention.value_length": attn.head_dim,
        f"{arch}.rope.freq_base": attn.rope.theta,
        f"{arch}.rope.dimension_count": attn.rope.rotary_dim,
    }
    if attn.rope.linear_factor != 1.0:
        values |= {f"{arch}.rope.scaling.type": "linear", f"{arch}.rope.scaling.factor": attn.rope.linear_factor}
    return values


def _add_value(writer: Any, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))
