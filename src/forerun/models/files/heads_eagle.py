"""read_eagle: published EAGLE checkpoints, of EAGLE and EAGLE-2 (version 1) and of EAGLE-3.

    config.json                            as of a Llama model with one layer; draft_vocab_size, target_hidden_size
    model.safetensors or pytorch_model.bin
      version 1   fc.weight [E, 2 E] (token's embedding, hidden state), fc.bias
                  layers.{i}.self_attn..., layers.0 without input_layernorm; embed_tokens.weight may be there
      version 3   fc.weight [E, 3 Et], midlayer.self_attn.{q,k,v}_proj [.., 2 E] (embedding, hidden state)
                  midlayer.input_layernorm of the embedding, midlayer.hidden_norm of the hidden state
                  norm.weight, lm_head.weight [C, E] over the draft vocabulary
                  d2t [C]: column i stands for token i + d2t[i]; t2d [V]: which tokens have one

Names may begin with "model."; version 3 may call its layer "layers.0". Version 3 reads the hidden states that enter
layers 2, L / 2 and L - 3 of the target, unless the config names the layers whose outputs it reads.

Source: github.com/SafeAILab/EAGLE, the layout only; eagle_aux_hidden_state_layer_ids as SGLang reads it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.families.dense import HARMLESS_CONFIG_KEYS, HF_LAYER, rope_from_config
from forerun.models.families.settings import Settings
from forerun.models.files.heads_file import HeadFile, HeadSource, HeadWeights
from forerun.models.heads import EagleSpec
from forerun.models.spec import AttentionSpec, DenseMlpSpec, LayerSpec, ModelSpec

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
HARMLESS = HARMLESS_CONFIG_KEYS | {"max_position_embeddings", "tie_word_embeddings", "bias", "vocab_size", "modelopt"}
AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True)
class EagleHead:
    """A read checkpoint. columns  [C] int32 target id of each column of its scores, -1 where there is none"""

    spec: EagleSpec
    weights: HeadWeights
    columns: npt.NDArray[np.int32]


def read_eagle(path: Path, target: ModelSpec) -> EagleHead:
    """The head of a checkpoint, for a target. Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    file = HeadFile(path, WEIGHT_FILES)
    if not file.config:
        raise ModelFileError(f"{file.where} has no config.json beside its weights; fetch the head's folder")
    stems = {name.removeprefix("model."): name for name in file.tensors}  # name without prefix -> name in the file
    version = 3 if any(stem.endswith("hidden_norm.weight") for stem in stems) else 1
    spec = _spec(file, stems, version, target)
    if spec.target_hidden != target.hidden or (not spec.own_embed and spec.hidden != target.hidden):
        raise UnsupportedModel(
            f"{file.where} is made for hidden states of width {spec.target_hidden}, the model's have {target.hidden}: "
            "give a head that was trained for this model"
        )
    sources = {name: _source(name, spec, stems) for name in spec.weight_shapes()}
    weights = HeadWeights(file, sources, spec.weight_shapes(), _ignored(stems))
    return EagleHead(spec, weights, _columns(file, stems, spec, target.vocab_size))


def _spec(file: HeadFile, stems: dict[str, str], version: int, target: ModelSpec) -> EagleSpec:
    config = Settings(file.config, f"{file.where}: config.json")
    config.require("hidden_act", "silu", "silu")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    head_dim = config.integer("head_dim", hidden // heads if hidden % heads == 0 else None)
    qkv_bias = config.flag("attention_bias") or _name(stems, version, "self_attn.q_proj.bias") in stems
    out_bias = _name(stems, version, "self_attn.o_proj.bias") in stems
    attention = AttentionSpec(
        heads, kv_heads, head_dim, rope_from_config(config, head_dim), head_dim**-0.5, qkv_bias, out_bias
    )
    config.require("mlp_bias", False, False)
    layer = LayerSpec(attention, DenseMlpSpec(config.integer("intermediate_size")))
    num_layers = config.integer("num_hidden_layers", 1)
    if version == 3 and num_layers != 1:
        raise UnsupportedModel(f"{file.where}: an EAGLE-3 head of {num_layers} layers is unknown; use one with a layer")
    target_hidden = config.integer("target_hidden_size", hidden)
    config.integer("draft_vocab_size", 1)  # the output matrix says it
    embed = stems.get("embed_tokens.weight")
    spec = EagleSpec(
        version=version,
        hidden=hidden,
        target_hidden=target_hidden,
        captures=_captures(config, target) if version == 3 else (target.num_layers,),
        layers=(layer,) * num_layers,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        num_columns=file.shape(stems.get("lm_head.weight", "lm_head.weight"))[0] if version == 3 else 0,
        own_embed=file.shape(embed)[0] if embed is not None else 0,
        fc_bias="fc.bias" in stems,
    )
    config.refuse_rest(HARMLESS)
    if spec.own_embed and spec.own_embed < target.vocab_size:
        raise UnsupportedModel(
            f"{file.where} has embeddings of {spec.own_embed} tokens, the model has {target.vocab_size}: "
            "give a head that was trained for this model"
        )
    return spec


def _captures(config: Settings, target: ModelSpec) -> tuple[int, ...]:
    """Hidden states that version 3 reads."""
    section = config.section("eagle_config")
    named = None
    for settings in (section, config):
        if settings is not None and named is None:
            named = settings.whole_numbers(AUX_LAYERS)
    if section is not None:
        section.require("use_aux_hidden_state", True, True)
        section.refuse_rest()
    if named is None:
        named = (1, target.num_layers // 2 - 1, target.num_layers - 4)
    captures = tuple(layer + 1 for layer in named)  # the output of a layer enters the next one
    if len(set(captures)) != len(captures) or not all(0 <= index < target.num_layers for index in captures):
        raise UnsupportedModel(
            f"{config.where}: EAGLE-3 reads what enters layers {captures}, the model has {target.num_layers} layers; "
            "give a head that was trained for this model"
        )
    return captures


def _name(stems: dict[str, str], version: int, part: str) -> str:
    """Name of a part of the first layer, without the prefix."""
    return (
        f"midlayer.{part}"
        if version == 3 and any(stem.startswith("midlayer.") for stem in stems)
        else (f"layers.0.{part}")
    )


def _source(name: str, spec: EagleSpec, stems: dict[str, str]) -> HeadSource:
    """The tensor, or the columns of one, behind a weight."""
    logical = name.removeprefix("head.")
    width = spec.hidden
    top = {
        "embed": HeadSource("embed_tokens.weight"),
        "output": HeadSource("lm_head.weight"),
        "norm": HeadSource("norm.weight"),
        "feature_norm": HeadSource(_name(stems, 3, "hidden_norm.weight")),
        "fc": HeadSource("fc.weight"),
        "fc.embed": HeadSource("fc.weight", (0, width)),
        "fc.feature": HeadSource("fc.weight", (width, width + spec.target_hidden)),
        "fc.bias": HeadSource("fc.bias"),
    }
    if logical in top:
        source = top[logical]
    else:
        _, index, part = logical.split(".", 2)
        takes_feature, is_bias = part.endswith(".feature"), part.endswith(".bias")
        tensor = HF_LAYER[part.removesuffix(".feature").removesuffix(".bias")]
        tensor = f"{tensor.removesuffix('.weight')}.bias" if is_bias else tensor
        stem = _name(stems, 3, tensor) if spec.version == 3 else f"layers.{index}.{tensor}"
        columns = None
        if spec.version == 3 and part.startswith(("attn.q", "attn.k", "attn.v")) and not is_bias:
            columns = (width, 2 * width) if takes_feature else (0, width)
        source = HeadSource(stem, columns)
    return HeadSource(stems.get(source.tensor, source.tensor), source.columns)


def _ignored(stems: dict[str, str]) -> frozenset[str]:
    """Tensors that no weight comes from: maps between vocabularies, rotary tables, a matrix that version 1 leaves to
    the target."""
    unread = [
        stem for stem in stems if stem in ("d2t", "t2d", "lm_head.weight") or stem.endswith("rotary_emb.inv_freq")
    ]
    return frozenset(stems[stem] for stem in unread)


def _columns(file: HeadFile, stems: dict[str, str], spec: EagleSpec, vocab_size: int) -> npt.NDArray[np.int32]:
    """Target ids of the columns."""
    count = spec.num_columns or vocab_size
    ids = np.arange(count, dtype=np.int64)
    if spec.num_columns and "d2t" in stems:
        offsets = file.integers(stems["d2t"])
        if offsets.shape != ids.shape:
            raise ModelFileError(
                f"{file.where}: d2t has the shape {offsets.shape}, expected {ids.shape}; fetch the head again"
            )
        ids = ids + offsets
        if "t2d" in stems:
            known = np.flatnonzero(file.integers(stems["t2d"]).reshape(-1))
            if not np.array_equal(np.sort(ids), known):
                raise ModelFileError(f"{file.where}: d2t and t2d contradict each other; fetch the head again")
    return np.where((ids >= 0) & (ids < vocab_size), ids, -1).astype(np.int32)
