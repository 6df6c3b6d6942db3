"""read_block_head and write_block_head: the checkpoint of a block head, forerun's own layout.

One safetensors file, or a folder that holds it as block_head.safetensors. Its metadata:

    format   "forerun.block-head"
    version  "1"
    spec     JSON: hidden, captures, num_layers, num_heads, num_kv_heads, head_dim, intermediate, rope_theta, norm_eps,
             size, mask_token, vocab_size

Tensors have the names of models/heads without "head.": feature_norm.{i} [E], fc.{i} [E, E], layers.{i}.attn_norm, ...,
norm [E], output [C, E], mask_hidden [E], positions [K - 1, E]; and where they are wanted

    tokens          [C] int64 target id of each column; without it column i is token i
    markov.before   [V, r], markov.after [r, C]
    confidence      [E + 2] and confidence.bias [1]
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.families.settings import Settings
from forerun.models.files.heads_file import HeadFile, HeadSource, HeadWeights
from forerun.models.heads import BlockSpec
from forerun.models.spec import AttentionSpec, DenseMlpSpec, LayerSpec, ModelSpec, RopeSpec

WEIGHT_FILE = "block_head.safetensors"
FORMAT, VERSION = "forerun.block-head", "1"

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class BlockHead:
    """A read checkpoint.

    columns  [C] int32 target id of each column, -1 where there is none
    arrays   weights that the drafter itself reads, by name, see BlockSpec.array_shapes
    """

    spec: BlockSpec
    weights: HeadWeights
    columns: npt.NDArray[np.int32]
    arrays: Mapping[str, Float32]


def read_block_head(path: Path, target: ModelSpec) -> BlockHead:
    """The head of a checkpoint, for a target. Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    file = HeadFile(path, (WEIGHT_FILE,))
    if file.metadata.get("format") != FORMAT:
        raise ModelFileError(f"{file.where} is no block head: its metadata do not say format {FORMAT!r}")
    if file.metadata.get("version") != VERSION:
        raise UnsupportedModel(f"{file.where} is a block head of version {file.metadata.get('version')!r:.20}, not 1")
    spec, vocab_size = _spec(file)
    if (spec.hidden, vocab_size) != (target.hidden, target.vocab_size) or max(spec.captures) > target.num_layers:
        raise UnsupportedModel(
            f"{file.where} is made for hidden states of width {spec.hidden} and {vocab_size} tokens, the model has "
            f"{target.hidden} and {target.vocab_size}: give a head that was trained for this model"
        )
    shapes = {**spec.weight_shapes(), **spec.array_shapes(vocab_size)}
    sources = {name: HeadSource(name.removeprefix("head.")) for name in shapes}
    weights = HeadWeights(file, sources, shapes, frozenset(("tokens",)))
    arrays = {name: weights.read(name) for name in spec.array_shapes(vocab_size)}
    return BlockHead(spec, weights, _columns(file, spec, vocab_size), arrays)


def _spec(file: HeadFile) -> tuple[BlockSpec, int]:
    """The spec, and the target's number of tokens."""
    try:
        values = json.loads(file.metadata["spec"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFileError(f"{file.where}: the metadata's spec is not JSON; write the head again") from error
    if not isinstance(values, dict):
        raise ModelFileError(f"{file.where}: the metadata's spec is not a JSON object; write the head again")
    config = Settings(values, f"{file.where}: spec")
    heads, kv_heads = config.integer("num_heads"), config.integer("num_kv_heads")
    head_dim = config.integer("head_dim")
    if heads % kv_heads or head_dim % 2:
        raise ModelFileError(f"{file.where}: heads must share KV heads evenly and have an even size; write it again")
    attention = AttentionSpec(
        heads, kv_heads, head_dim, RopeSpec(config.number("rope_theta"), head_dim), head_dim**-0.5
    )
    layer = LayerSpec(attention, DenseMlpSpec(config.integer("intermediate")))
    vocab_size = config.integer("vocab_size")
    captures, masks = config.whole_numbers("captures"), config.whole_numbers("mask_token")
    if captures is None or len(set(captures)) != len(captures):
        raise ModelFileError(f"{file.where}: spec: captures must list hidden states once each; write the head again")
    if masks is None or len(masks) != 1 or masks[0] >= vocab_size:
        raise ModelFileError(f"{file.where}: spec: mask_token must be a list of one token; write the head again")
    markov = file.tensors.get("markov.after")
    spec = BlockSpec(
        hidden=config.integer("hidden"),
        captures=captures,
        layers=(layer,) * config.integer("num_layers"),
        norm_eps=config.number("norm_eps"),
        size=config.integer("size", maximum=63),
        mask_token=masks[0],
        num_columns=file.shape("output")[0],
        markov_rank=markov.shape[0] if markov is not None else 0,
        has_confidence="confidence" in file.tensors,
    )
    config.refuse_rest()
    return spec, vocab_size


def _columns(file: HeadFile, spec: BlockSpec, vocab_size: int) -> npt.NDArray[np.int32]:
    ids = file.integers("tokens") if "tokens" in file.tensors else np.arange(spec.num_columns)
    if ids.shape != (spec.num_columns,):
        raise ModelFileError(f"{file.where}: tokens has the shape {ids.shape}, not {spec.num_columns}; write it again")
    return np.where((ids >= 0) & (ids < vocab_size), ids, -1).astype(np.int32)


def write_block_head(
    path: Path,
    spec: BlockSpec,
    vocab_size: int,
    arrays: Mapping[str, Float32],
    tokens: npt.NDArray[np.int64] | None = None,
) -> None:
    """Write a checkpoint in float32. All layers are alike.

    arrays  every weight of spec.weight_shapes and spec.array_shapes, by name
    tokens  [C] target id of each column; None: column i is token i
    """
    wanted = {**spec.weight_shapes(), **spec.array_shapes(vocab_size)}
    assert {name: array.shape for name, array in arrays.items()} == wanted
    mixer, rope = spec.layers[0].mixer, spec.layers[0].mixer.rope
    assert rope == RopeSpec(rope.theta, mixer.head_dim), "the layout has no room for scaled positions"
    values = {
        "hidden": spec.hidden,
        "captures": list(spec.captures),
        "num_layers": len(spec.layers),
        "num_heads": mixer.num_heads,
        "num_kv_heads": mixer.num_kv_heads,
        "head_dim": mixer.head_dim,
        "intermediate": spec.layers[0].mlp.intermediate,
        "rope_theta": rope.theta,
        "norm_eps": spec.norm_eps,
        "size": spec.size,
        "mask_token": [spec.mask_token],
        "vocab_size": vocab_size,
    }
    entries: dict[str, tuple[str, npt.NDArray[np.generic]]] = {
        name.removeprefix("head."): ("F32", np.ascontiguousarray(array, np.float32)) for name, array in arrays.items()
    }
    if tokens is not None:
        entries["tokens"] = ("I64", np.ascontiguousarray(tokens, np.int64))
    header: dict[str, object] = {
        "__metadata__": {"format": FORMAT, "version": VERSION, "spec": json.dumps(values)},
    }
    end = 0
    for name, (dtype, array) in entries.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # data begins at a multiple of the largest number
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in entries.values():
            file.write(array.tobytes())
