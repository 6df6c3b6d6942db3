"""ModelSpec: what a model is, as frozen data, independent of file format and backend.

A family file (`models/families`) turns a Hugging Face config or GGUF metadata into a ModelSpec; the decoder reads it.
Weights have logical names, the same for every family and file format:

    embed                      [V, E]         layers.{i}.mlp_norm         [E]
    layers.{i}.attn_norm       [E]            layers.{i}.mlp.gate         [F, E]
    layers.{i}.attn.q          [H*D, E]       layers.{i}.mlp.up           [F, E]
    layers.{i}.attn.k          [G*D, E]       layers.{i}.mlp.down         [E, F]
    layers.{i}.attn.v          [G*D, E]       final_norm                  [E]
    layers.{i}.attn.o          [E, H*D]       output                      [V, E]  (absent when tied)

A bias has its matrix's name plus ".bias". Matrices are [outputs, inputs], row-major, in the half-split ("neox") rotary
order: loaders undo GGUF's permutation of Llama's q and k.
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding, half-split pairs (i, i + rotary_dim / 2).

    `freq_factors` divides the base frequencies elementwise (Llama 3 scaling, computed at load), `linear_factor` divides
    positions. Both are fixed at load, so a token's rotation depends on its position alone.
    """

    theta: float
    rotary_dim: int
    linear_factor: float = 1.0
    freq_factors: tuple[float, ...] | None = None  # [rotary_dim / 2]


@dataclass(frozen=True)
class AttentionSpec:
    """Full causal attention with H query heads over G key/value heads of size D."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope: RopeSpec
    scale: float  # multiplies q.k, usually D ** -0.5
    qkv_bias: bool = False
    out_bias: bool = False


@dataclass(frozen=True)
class DenseMlpSpec:
    """down(silu(gate(x)) * up(x)) with F intermediate units."""

    intermediate: int
    bias: bool = False


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: x += mixer(norm(x)); x += mlp(norm(x))."""

    mixer: AttentionSpec
    mlp: DenseMlpSpec


@dataclass(frozen=True)
class ModelSpec:
    """A decoder-only language model."""

    family: Literal["llama", "qwen2"] | str
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tied_embeddings: bool
    max_context: int  # positions the model was made for
    extra: dict[str, str] = field(default_factory=dict, compare=False)  # facts to show, never read by code

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def output_weight(self) -> str:
        """Logical name of the vocabulary matrix."""
        return "embed" if self.tied_embeddings else "output"

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """Every logical weight the decoder reads, with its shape."""
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, self.hidden), "final_norm": (self.hidden,)}
        if not self.tied_embeddings:
            shapes["output"] = (self.vocab_size, self.hidden)
        for index, layer in enumerate(self.layers):
            prefix = f"layers.{index}."
            attn, mlp = layer.mixer, layer.mlp
            matrices = {
                "attn.q": (attn.num_heads * attn.head_dim, self.hidden, attn.qkv_bias),
                "attn.k": (attn.num_kv_heads * attn.head_dim, self.hidden, attn.qkv_bias),
                "attn.v": (attn.num_kv_heads * attn.head_dim, self.hidden, attn.qkv_bias),
                "attn.o": (self.hidden, attn.num_heads * attn.head_dim, attn.out_bias),
                "mlp.gate": (mlp.intermediate, self.hidden, mlp.bias),
                "mlp.up": (mlp.intermediate, self.hidden, mlp.bias),
                "mlp.down": (self.hidden, mlp.intermediate, mlp.bias),
            }
            for name, (rows, cols, bias) in matrices.items():
                shapes[prefix + name] = (rows, cols)
                if bias:
                    shapes[f"{prefix}{name}.bias"] = (rows,)
            shapes[prefix + "attn_norm"] = (self.hidden,)
            shapes[prefix + "mlp_norm"] = (self.hidden,)
        return shapes
