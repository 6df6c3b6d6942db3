"""Checkpoints of trained heads in their published layouts, written by tests; a target that a head can predict exactly.

Names of tensors are spelled out here a second time on purpose, as a check on `forerun.models.files.heads_*`.
"""

import json
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import save_file

from forerun.backends.reference_kv import round_to_bf16
from forerun.models.heads import BlockSpec
from forerun.models.spec import AttentionSpec, DenseMlpSpec, LayerSpec, ModelSpec, RopeSpec
from tests.text.vocabularies import byte_level
from tests.tiny import RandomWeights, tiny_spec, write_tiny_gguf

Arrays = dict[str, npt.NDArray[Any]]


def random(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """Normal numbers that bfloat16 holds."""
    return round_to_bf16(np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale))


def write(folder: Path, config: Mapping[str, Any], arrays: Arrays, file: str = "model.safetensors") -> Path:
    """A head's folder. file  its ending says which format"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(arrays, folder / file)
    else:
        write_torch(folder / file, arrays)
    return folder


# ---- Medusa ----


def medusa_arrays(
    hidden: int, vocab: int, heads: int, blocks: int = 1, output: bool = True, prefix: str = ""
) -> Arrays:
    """Random Medusa heads."""
    arrays: Arrays = {}
    for head in range(heads):
        for block in range(blocks):
            seed = 10 * head + block
            arrays[f"{prefix}{head}.{block}.linear.weight"] = random((hidden, hidden), seed, hidden**-0.5)
            arrays[f"{prefix}{head}.{block}.linear.bias"] = random((hidden,), seed + 100, 0.1)
        if output:
            arrays[f"{prefix}{head}.{blocks}.weight"] = random((vocab, hidden), head + 200, 0.3)
    return arrays


def medusa_config(heads: int, blocks: int = 1) -> dict[str, Any]:
    return {"medusa_num_heads": heads, "medusa_num_layers": blocks, "base_model_name_or_path": "tiny"}


# ---- PyTorch files, without PyTorch ----


def write_torch(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """A zip file as torch.save writes a module's state. Stand-ins for the names in its pickle live here only."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def rebuild(*_: Any) -> None: ...

    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = "torch._utils", *(["_rebuild_tensor_v2"] * 2)
    utils._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]
    kinds = {np.float32: "FloatStorage", np.float16: "HalfStorage", np.int64: "LongStorage", np.bool_: "BoolStorage"}
    storages = {}
    for kind, name in kinds.items():
        storages[kind] = type(name, (), {"__module__": "torch"})
        setattr(torch, name, storages[kind])

    class Tensor:
        def __init__(self, key: str, array: npt.NDArray[Any]) -> None:
            self.key, self.array = key, array

    class Storage(Tensor):
        pass

    class Pickler(pickle.Pickler):
        def persistent_id(self, thing: Any) -> Any:
            if isinstance(thing, Storage):
                return ("storage", storages[thing.array.dtype.type], thing.key, "cpu", thing.array.size)
            return None

        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is Tensor:
                strides = tuple(stride // thing.array.itemsize for stride in thing.array.strides)
                storage = Storage(thing.key, thing.array)
                return rebuild, (storage, 0, thing.array.shape, strides, False, OrderedDict())
            return NotImplemented

    with pytest.MonkeyPatch.context() as patch, zipfile.ZipFile(path, "w") as archive:
        patch.setitem(sys.modules, "torch", torch)
        patch.setitem(sys.modules, "torch._utils", utils)
        with archive.open("archive/data.pkl", "w") as file:
            state = OrderedDict((name, Tensor(str(i), array)) for i, (name, array) in enumerate(arrays.items()))
            state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
            Pickler(file, 2).dump(state)
        for index, array in enumerate(arrays.values()):
            archive.writestr(f"archive/data/{index}", array.tobytes())


# ---- a target whose next token follows from the last one ----


def vocabulary() -> dict[str, Any]:
    """Tokenizer metadata of the tiny models."""
    return byte_level("smollm")[1]


VOCAB = len(vocabulary()["tokenizer.ggml.tokens"])
LOOKUP_SPEC = replace(
    tiny_spec("llama", tied=False, layers=4, hidden=704, heads=4, kv_heads=2, head_dim=16, intermediate=32),
    vocab_size=VOCAB,
    max_context=512,
)
NEXT = np.random.default_rng(11).permutation(VOCAB)  # token -> the one that follows


class LookupWeights(RandomWeights):
    """Layers add nothing, token t is the t-th unit vector, and the output matrix looks up its successor."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        values = np.zeros(self.shape(name), np.float32)
        if name == "embed":
            values[np.arange(VOCAB), np.arange(VOCAB)] = 1.0
        elif name == "output":
            values[NEXT, np.arange(VOCAB)] = 0.5
        elif name.endswith("norm"):
            values += 1.0
        return np.ascontiguousarray(values[start:stop])


def follower(times: int, scale: float = 1.0) -> npt.NDArray[np.float32]:
    """[VOCAB, E] matrix that takes token t's unit vector to that of the token `times` steps behind it."""
    matrix = np.zeros((VOCAB, LOOKUP_SPEC.hidden), np.float32)
    tokens = np.arange(VOCAB)
    target = tokens
    for _ in range(times):
        target = NEXT[target]
    matrix[target, tokens] = scale
    return matrix


def square(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The same, [E, E]."""
    padded = np.zeros((LOOKUP_SPEC.hidden, LOOKUP_SPEC.hidden), np.float32)
    padded[:VOCAB] = matrix
    return padded


RANDOM_SPEC = replace(tiny_spec("llama", tied=False, layers=5), vocab_size=VOCAB)


def write_target(path: Path, spec: ModelSpec) -> Path:
    """A target with a tokenizer: LOOKUP_SPEC's weights, or random ones."""
    weights = LookupWeights(spec) if spec == LOOKUP_SPEC else RandomWeights(spec, 3)
    write_tiny_gguf(path, spec, metadata=vocabulary(), weights=weights)
    return path


# ---- EAGLE ----

KV_HEADS, HEADS, HEAD_DIM, INTERMEDIATE = 2, 4, 16, 48


def eagle_config(version: int, hidden: int, vocab: int, **changes: Any) -> dict[str, Any]:
    """config.json of an EAGLE head."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3" if version == 3 else "LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": INTERMEDIATE,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "vocab_size": vocab,
        "torch_dtype": "float16",
        "use_cache": True,
    }
    config |= {"draft_vocab_size": 40} if version == 3 else {"bias": True}
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def layer_arrays(stem: str, inputs: int, hidden: int, seed: int) -> Arrays:
    """A decoder layer whose attention reads `inputs` numbers."""
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes = {
        "self_attn.q_proj": (wide, inputs),
        "self_attn.k_proj": (narrow, inputs),
        "self_attn.v_proj": (narrow, inputs),
        "self_attn.o_proj": (hidden, wide),
        "mlp.gate_proj": (INTERMEDIATE, hidden),
        "mlp.up_proj": (INTERMEDIATE, hidden),
        "mlp.down_proj": (hidden, INTERMEDIATE),
    }
    arrays = {f"{stem}.{n}.weight": random(s, seed + i, s[1] ** -0.5) for i, (n, s) in enumerate(shapes.items())}
    return {**arrays, f"{stem}.post_attention_layernorm.weight": 1 + random((hidden,), seed + 50, 0.1)}


def eagle1_arrays(hidden: int, bias: bool = True, embed: int = 0, layers: int = 1) -> Arrays:
    """Random EAGLE-1 head."""
    arrays: Arrays = {"fc.weight": random((hidden, 2 * hidden), 1, (2 * hidden) ** -0.5)}
    if bias:
        arrays["fc.bias"] = random((hidden,), 2, 0.1)
    if embed:
        arrays["embed_tokens.weight"] = random((embed, hidden), 3, 0.3)
    for index in range(layers):
        arrays |= layer_arrays(f"layers.{index}", hidden, hidden, 100 + 100 * index)
        if index:
            arrays[f"layers.{index}.input_layernorm.weight"] = 1 + random((hidden,), 5, 0.1)
    return arrays


def eagle3_arrays(hidden: int, vocab: int, columns: int, target_hidden: int = 0, stem: str = "midlayer") -> Arrays:
    """Random EAGLE-3 head over a draft vocabulary of `columns` tokens spread over the target's."""
    ids = np.sort(np.random.default_rng(4).choice(vocab, columns, replace=False)).astype(np.int64)
    known = np.zeros(vocab, np.bool_)
    known[ids] = True
    return {
        "fc.weight": random((hidden, 3 * (target_hidden or hidden)), 1, (3 * hidden) ** -0.5),
        **layer_arrays(stem, 2 * hidden, hidden, 200),
        f"{stem}.hidden_norm.weight": 1 + random((hidden,), 5, 0.1),
        f"{stem}.input_layernorm.weight": 1 + random((hidden,), 6, 0.1),
        "norm.weight": 1 + random((hidden,), 7, 0.1),
        "lm_head.weight": random((columns, hidden), 8, 0.3),
        "d2t": ids - np.arange(columns),
        "t2d": known,
    }


# ---- block head ----


def block_spec(hidden: int, captures: tuple[int, ...], columns: int, **changes: Any) -> BlockSpec:
    """A block head of five rows and two layers."""
    mixer = AttentionSpec(HEADS, KV_HEADS, HEAD_DIM, RopeSpec(10000.0, HEAD_DIM), HEAD_DIM**-0.5)
    layer = LayerSpec(mixer, DenseMlpSpec(INTERMEDIATE))
    spec = BlockSpec(hidden, captures, (layer, layer), 1e-5, size=5, mask_token=3, num_columns=columns)
    return replace(spec, **changes)


def block_arrays(spec: BlockSpec, vocab: int) -> dict[str, npt.NDArray[np.float32]]:
    """Random weights of a block head."""
    arrays = {}
    for seed, (name, shape) in enumerate({**spec.weight_shapes(), **spec.array_shapes(vocab)}.items()):
        scale = 0.3 if name in ("head.output", "head.mask_hidden", "head.positions") else shape[-1] ** -0.5
        arrays[name] = 1 + random(shape, seed, 0.1) if "norm" in name else random(shape, seed, scale)
    return arrays
