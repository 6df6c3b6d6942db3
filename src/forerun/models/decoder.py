"""The forward pass of a decoder-only model, written once over Ops, for every family and backend.

A drafter may run part of it: `skip` names sub-layers ("layers.3.attn", "layers.3.mlp") that are passed over, and
`first_kv_layer` says where its layers lie in the KV store when they are not the target's own, and `output` names
another vocabulary matrix, one with fewer rows for example.

Trained heads read hidden states of the target. They are numbered as Hugging Face numbers `hidden_states`: i is what
enters layer i, so 0 is the embedding, and L, the number of layers, is the last layer's output behind the final norm.
"""

from collections.abc import Collection, Set
from typing import TypeVar

from forerun.backends.base import Ops
from forerun.errors import UsageError
from forerun.models.spec import AttentionSpec, DenseMlpSpec, ModelSpec

V = TypeVar("V")


NOTHING: frozenset[str] = frozenset()


def hidden_name(index: int) -> str:
    """The name under which hidden state `index` is captured."""
    return f"hidden.{index}"


def check_captures(spec: ModelSpec, captures: Collection[int]) -> None:
    """Raises UsageError when a hidden state does not exist."""
    for index in captures:
        if not 0 <= index <= spec.num_layers:
            raise UsageError(f"hidden state {index} does not exist: the model has 0 to {spec.num_layers}")


def logits(
    spec: ModelSpec,
    ops: Ops[V],
    skip: Set[str] = NOTHING,
    first_kv_layer: int = 0,
    output: str | None = None,
    captures: Collection[int] = (),
) -> V:
    """Logits of the batch's output rows: [O, rows of the vocabulary matrix].

    captures  hidden states that are captured, all rows of them
    """
    x = ops.embed("embed")
    for index, layer in enumerate(spec.layers):
        if index in captures:
            ops.capture(hidden_name(index), x)
        prefix = f"layers.{index}."
        if prefix + "attn" not in skip:
            normed = ops.rms_norm(x, prefix + "attn_norm", spec.norm_eps)
            x = ops.add(x, attention(ops, normed, first_kv_layer + index, layer.mixer, prefix + "attn."))
        if prefix + "mlp" not in skip:
            normed = ops.rms_norm(x, prefix + "mlp_norm", spec.norm_eps)
            x = ops.add(x, mlp(ops, normed, layer.mlp, prefix + "mlp."))
    if spec.num_layers in captures:
        ops.capture(hidden_name(spec.num_layers), ops.rms_norm(x, "final_norm", spec.norm_eps))
    x = ops.rms_norm(ops.select_outputs(x), "final_norm", spec.norm_eps)
    return ops.linear(x, (output or spec.output_weight,))


def attention(ops: Ops[V], x: V, layer: int, spec: AttentionSpec, prefix: str) -> V:
    """An attention layer over the normed x [R, E]: [R, E]. layer  of the KV store; prefix  of its weights' names"""
    names = tuple(prefix + part for part in "qkv")
    biases = tuple(f"{name}.bias" if spec.qkv_bias else None for name in names)
    return attend(ops, ops.linear(x, names, biases), layer, spec, prefix)


def attend(ops: Ops[V], qkv: V, layer: int, spec: AttentionSpec, prefix: str) -> V:
    """An attention layer behind its first projection: qkv [R, (H + 2 G) D] side by side."""
    key_width = spec.num_kv_heads * spec.head_dim
    q, k, v = ops.split(qkv, (spec.num_heads * spec.head_dim, key_width, key_width))
    q = ops.rope(q, spec.num_heads, spec.rope)
    k = ops.rope(k, spec.num_kv_heads, spec.rope)
    ops.write_kv(layer, k, v, spec)
    mixed = ops.attention(layer, q, spec)
    return ops.linear(mixed, (prefix + "o",), (prefix + "o.bias" if spec.out_bias else None,))


def mlp(ops: Ops[V], x: V, spec: DenseMlpSpec, prefix: str) -> V:
    """down(silu(gate(x)) * up(x)) of the normed x [R, E]: [R, E]."""

    def bias(name: str) -> str | None:
        return f"{prefix}{name}.bias" if spec.bias else None

    both = ops.linear(x, (prefix + "gate", prefix + "up"), (bias("gate"), bias("up")))
    gate, up = ops.split(both, (spec.intermediate, spec.intermediate))
    return ops.linear(ops.silu_mul(gate, up), (prefix + "down",), (bias("down"),))
