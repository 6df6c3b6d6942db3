"""What Llama and Qwen2 share: sizes, rotary scaling, tensor names and the keys that change nothing.

Both are stacks of one kind of layer (attention with rotary positions, then a gated MLP); they differ in biases, in
window options and in how GGUF orders q and k.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.families.settings import Settings
from forerun.models.rope import llama3_freq_factors
from forerun.models.spec import AttentionSpec, DenseMlpSpec, LayerSpec, ModelSpec, RopeSpec
from forerun.models.weights import TensorFile, TensorSource

MAX_CONTEXT = 1 << 30
MAX_LAYERS = 4096
MAX_HEAD_DIM = 4096
ROPE_FREQS = "rope_freqs.weight"

# Keys of config.json that say nothing about the forward pass of these families at inference.
HARMLESS_CONFIG_KEYS = frozenset(
    key
    for group in (
        # what it is
        "architectures model_type torch_dtype dtype transformers_version _name_or_path is_decoder "
        "is_encoder_decoder is_llama_config tokenizer_class transformers.js_config unsloth_version "
        "unsloth_fixed id2label label2id",
        # how transformers runs it
        "_attn_implementation _attn_implementation_autoset attn_implementation use_cache return_dict "
        "return_dict_in_generate chunk_size_feed_forward pretraining_tp",
        # training
        "max_sequence_length initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop",
        # special tokens
        "bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id mask_token_id decoder_start_token_id",
        # defaults of generate()
        "max_length min_length num_beams num_beam_groups num_return_sequences temperature top_k top_p "
        "typical_p diversity_penalty length_penalty repetition_penalty no_repeat_ngram_size "
        "encoder_no_repeat_ngram_size",
    )
    for key in group.split()
)
# Keys under "<architecture>." of GGUF metadata, likewise.
HARMLESS_GGUF_KEYS = frozenset(("tensor_data_layout", "rope.scaling.finetuned", "rope.scaling.original_context_length"))

# Logical name without "layers.{i}." -> name in the file without its layer prefix.
HF_TOP = {"embed": "model.embed_tokens.weight", "final_norm": "model.norm.weight", "output": "lm_head.weight"}
HF_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "attn.q": "self_attn.q_proj.weight",
    "attn.k": "self_attn.k_proj.weight",
    "attn.v": "self_attn.v_proj.weight",
    "attn.o": "self_attn.o_proj.weight",
    "mlp.gate": "mlp.gate_proj.weight",
    "mlp.up": "mlp.up_proj.weight",
    "mlp.down": "mlp.down_proj.weight",
}
GGUF_TOP = {"embed": "token_embd.weight", "final_norm": "output_norm.weight", "output": "output.weight"}
GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "attn.q": "attn_q.weight",
    "attn.k": "attn_k.weight",
    "attn.v": "attn_v.weight",
    "attn.o": "attn_output.weight",
    "mlp.gate": "ffn_gate.weight",
    "mlp.up": "ffn_up.weight",
    "mlp.down": "ffn_down.weight",
}


@dataclass(frozen=True)
class Biases:
    """Which matrices have biases."""

    qkv: bool = False
    out: bool = False
    mlp: bool = False


# ---- Hugging Face folders ----


def spec_from_config(family: str, config: Settings, biases: Biases, kv_heads_default: bool = False) -> ModelSpec:
    """ModelSpec of a config.json; the caller refuses the rest.

    kv_heads_default: an absent num_key_value_heads means as many as heads. Otherwise it must be there, because
    transformers would fill in a number that belongs to one model size.
    """
    config.require("hidden_act", "silu", "silu")
    layers = config.integer("num_hidden_layers", maximum=MAX_LAYERS)
    if config.has("layer_types"):
        config.require("layer_types", None, ["full_attention"] * layers)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads if kv_heads_default else None)
    head_dim = config.integer("head_dim", _even_share(hidden, heads), maximum=MAX_HEAD_DIM)
    attention = _attention(config, heads, kv_heads, head_dim, rope_from_config(config, head_dim), biases)
    return ModelSpec(
        family=family,
        vocab_size=config.integer("vocab_size"),
        hidden=hidden,
        layers=(LayerSpec(attention, DenseMlpSpec(config.integer("intermediate_size"), biases.mlp)),) * layers,
        norm_eps=config.number("rms_norm_eps", 1e-6),
        tied_embeddings=config.flag("tie_word_embeddings"),
        max_context=config.integer("max_position_embeddings", maximum=MAX_CONTEXT),
    )


def rope_from_config(config: Settings, head_dim: int) -> RopeSpec:
    """RopeSpec of a config, in the old spelling (rope_theta, rope_scaling) or the new one (rope_parameters)."""
    theta = config.number("rope_theta", 10000.0)
    config.require("partial_rotary_factor", 1.0, 1.0, 1)
    scaling, parameters = config.section("rope_scaling"), config.section("rope_parameters")
    if parameters is not None:
        if scaling is not None:
            raise UnsupportedModel(f"{config.where} has rope_scaling and rope_parameters; remove one of the two")
        theta = parameters.number("rope_theta", theta)
        parameters.require("partial_rotary_factor", 1.0, 1.0, 1)
        scaling = parameters
    if scaling is None:
        return RopeSpec(theta, head_dim)
    kind = scaling.choice("rope_type", scaling.text("type", "default"), "default", "linear", "llama3")
    linear, factors = 1.0, None
    if kind == "linear":
        linear = scaling.number("factor")
    elif kind == "llama3":
        factors = llama3_freq_factors(
            theta,
            head_dim,
            factor=scaling.number("factor"),
            low_freq_factor=scaling.number("low_freq_factor"),
            high_freq_factor=scaling.number("high_freq_factor"),
            original_context=scaling.integer("original_max_position_embeddings", maximum=MAX_CONTEXT),
        )
    scaling.refuse_rest()
    return RopeSpec(theta, head_dim, linear, factors)


def hf_sources(spec: ModelSpec) -> dict[str, TensorSource]:
    """The tensor behind each weight in a Hugging Face checkpoint."""
    return {name: TensorSource(_file_name(name, HF_TOP, "model.layers.", HF_LAYER)) for name in spec.weight_shapes()}


def hf_ignored(spec: ModelSpec) -> frozenset[str]:
    """Tensors that older checkpoints carry: rotary tables, and a copy of a tied output matrix."""
    tables = {"model.rotary_emb.inv_freq"}
    tables |= {f"model.layers.{index}.self_attn.rotary_emb.inv_freq" for index in range(spec.num_layers)}
    return frozenset(tables | ({HF_TOP["output"]} if spec.tied_embeddings else set()))


# ---- GGUF ----


def spec_from_gguf(family: str, metadata: Settings, file: TensorFile, biases: Biases) -> ModelSpec:
    """ModelSpec of GGUF metadata; refuses keys of the architecture that nobody reads.

    The vocabulary is the embedding's number of rows, which may exceed the number of tokens (padding).
    """
    names = set(file.names())
    layers = metadata.integer("block_count", maximum=MAX_LAYERS)
    hidden, heads = metadata.integer("embedding_length"), metadata.integer("attention.head_count")
    kv_heads = metadata.integer("attention.head_count_kv", heads)
    head_dim = metadata.integer("attention.key_length", _even_share(hidden, heads), maximum=MAX_HEAD_DIM)
    metadata.require("attention.value_length", head_dim, head_dim)
    attention = _attention(metadata, heads, kv_heads, head_dim, rope_from_gguf(metadata, file, head_dim), biases)
    for key in ("expert_count", "expert_used_count"):
        metadata.require(key, 0, 0)
    if GGUF_TOP["embed"] not in names:
        raise ModelFileError(f"{metadata.where}: tensor {GGUF_TOP['embed']!r} is missing; fetch the model again")
    vocab_size = file.shape(GGUF_TOP["embed"])[0]
    if metadata.integer("vocab_size", vocab_size) > vocab_size:
        raise ModelFileError(f"{metadata.where}: vocab_size exceeds the {vocab_size} embeddings; fetch the model again")
    spec = ModelSpec(
        family=family,
        vocab_size=vocab_size,
        hidden=hidden,
        layers=(LayerSpec(attention, DenseMlpSpec(metadata.integer("feed_forward_length"), biases.mlp)),) * layers,
        norm_eps=metadata.number("attention.layer_norm_rms_epsilon"),
        tied_embeddings=GGUF_TOP["output"] not in names,
        max_context=metadata.integer("context_length", maximum=MAX_CONTEXT),
    )
    metadata.refuse_rest(HARMLESS_GGUF_KEYS)
    return spec


def gguf_biases(file: TensorFile) -> Biases:
    """Biases that the first layer has; every layer must then have them."""
    names = set(file.names())
    return Biases(*(f"blk.0.{part}.bias" in names for part in ("attn_q", "attn_output", "ffn_down")))


def rope_from_gguf(metadata: Settings, file: TensorFile, head_dim: int) -> RopeSpec:
    """RopeSpec of GGUF metadata; Llama 3's factors come as a tensor."""
    metadata.require("rope.dimension_count", head_dim, head_dim)
    theta = metadata.number("rope.freq_base", 10000.0)
    kind = metadata.choice("rope.scaling.type", "linear", "none", "linear")
    linear = metadata.number("rope.scaling.factor", metadata.number("rope.scale_linear", 1.0))
    factors = None
    if ROPE_FREQS in file.names():
        if file.shape(ROPE_FREQS) != (head_dim // 2,):
            raise ModelFileError(
                f"{metadata.where}: tensor {ROPE_FREQS!r} has shape {file.shape(ROPE_FREQS)}, expected "
                f"{(head_dim // 2,)}; fetch the model again"
            )
        factors = tuple(float(factor) for factor in file.read(ROPE_FREQS, 0, head_dim // 2))
        if not all(0.0 < factor < float("inf") for factor in factors):
            raise ModelFileError(f"{metadata.where}: {ROPE_FREQS!r} has a factor that is not above 0; fetch it again")
    return RopeSpec(theta, head_dim, linear if kind == "linear" else 1.0, factors)


def gguf_sources(spec: ModelSpec, interleaved: bool) -> dict[str, TensorSource]:
    """The tensor behind each weight in GGUF. interleaved: q and k (and their biases) have adjacent rotary pairs."""
    sources = {}
    for name in spec.weight_shapes():
        turn = interleaved and name.removesuffix(".bias").endswith((".attn.q", ".attn.k"))
        tensor = _file_name(name, GGUF_TOP, "blk.", GGUF_LAYER)
        sources[name] = TensorSource(tensor, spec.layers[0].mixer.head_dim if turn else None)
    return sources


# ---- both ----


def _attention(
    settings: Settings, heads: int, kv_heads: int, head_dim: int, rope: RopeSpec, biases: Biases
) -> AttentionSpec:
    if heads % kv_heads:
        raise ModelFileError(f"{settings.where}: {heads} heads cannot share {kv_heads} KV heads; fetch the model again")
    if head_dim % 2:
        raise ModelFileError(f"{settings.where}: the head size {head_dim} is odd, rotary positions need pairs")
    return AttentionSpec(heads, kv_heads, head_dim, rope, head_dim**-0.5, biases.qkv, biases.out)


def _even_share(hidden: int, heads: int) -> int | None:
    """The head size when the file names none; None (then it must name one) when heads do not divide the width."""
    return hidden // heads if hidden % heads == 0 else None


def _file_name(name: str, top: Mapping[str, str], prefix: str, layer: Mapping[str, str]) -> str:
    """A logical weight's tensor name: layers.3.attn.q.bias -> blk.3.attn_q.bias."""
    if name in top:
        return top[name]
    _, index, part = name.split(".", 2)
    if part.endswith(".bias"):
        return f"{prefix}{index}.{layer[part.removesuffix('.bias')].removesuffix('.weight')}.bias"
    return f"{prefix}{index}.{layer[part]}"
