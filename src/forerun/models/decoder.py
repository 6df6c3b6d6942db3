"""The forward pass of a decoder-only model, written once over Ops, for every family and backend.

A drafter may run part of it: `skip` names sub-layers ("layers.3.attn", "layers.3.mlp") that are passed over, and
`first_kv_layer` says where its layers lie in the KV store when they are not the target's own, and `output` names
another vocabulary matrix, one with fewer rows for example.
"""

from collections.abc import Set
from typing import TypeVar

from forerun.backends.base import Ops
from forerun.models.spec import AttentionSpec, DenseMlpSpec, ModelSpec

V = TypeVar("V")


NOTHING: frozenset[str] = frozenset()


def logits(
    spec: ModelSpec, ops: Ops[V], skip: Set[str] = NOTHING, first_kv_layer: int = 0, output: str | None = None
) -> V:
    """Logits of the batch's output rows: [O, rows of the vocabulary matrix]."""
    x = ops.embed("embed")
    for index, layer in enumerate(spec.layers):
        prefix = f"layers.{index}."
        if prefix + "attn" not in skip:
            normed = ops.rms_norm(x, prefix + "attn_norm", spec.norm_eps)
            x = ops.add(x, _attention(ops, normed, first_kv_layer + index, layer.mixer, prefix + "attn."))
        if prefix + "mlp" not in skip:
            normed = ops.rms_norm(x, prefix + "mlp_norm", spec.norm_eps)
            x = ops.add(x, _mlp(ops, normed, layer.mlp, prefix + "mlp."))
    x = ops.rms_norm(ops.select_outputs(x), "final_norm", spec.norm_eps)
    return ops.linear(x, (output or spec.output_weight,))


def _attention(ops: Ops[V], x: V, layer: int, spec: AttentionSpec, prefix: str) -> V:
    names = tuple(prefix + part for part in "qkv")
    biases = tuple(f"{name}.bias" if spec.qkv_bias else None for name in names)
    key_width = spec.num_kv_heads * spec.head_dim
    q, k, v = ops.split(ops.linear(x, names, biases), (spec.num_heads * spec.head_dim, key_width, key_width))
    q = ops.rope(q, spec.num_heads, spec.rope)
    k = ops.rope(k, spec.num_kv_heads, spec.rope)
    ops.write_kv(layer, k, v, spec)
    mixed = ops.attention(layer, q, spec)
    return ops.linear(mixed, (prefix + "o",), (prefix + "o.bias" if spec.out_bias else None,))


def _mlp(ops: Ops[V], x: V, spec: DenseMlpSpec, prefix: str) -> V:
    def bias(name: str) -> str | None:
        return f"{prefix}{name}.bias" if spec.bias else None

    both = ops.linear(x, (prefix + "gate", prefix + "up"), (bias("gate"), bias("up")))
    gate, up = ops.split(both, (spec.intermediate, spec.intermediate))
    return ops.linear(ops.silu_mul(gate, up), (prefix + "down",), (bias("down"),))
