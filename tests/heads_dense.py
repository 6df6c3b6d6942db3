"""Trained heads as published, in plain numpy over a whole sequence at once: what the programs must compute."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tests.head_files import HEAD_DIM, HEADS, KV_HEADS

Float32 = npt.NDArray[np.float32]


def silu(x: Float32) -> Float32:
    return x / (1 + np.exp(-x))


def norm(x: Float32, weight: Float32, eps: float = 1e-5) -> Float32:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def rotate(x: Float32, heads: int, positions: npt.NDArray[np.int64]) -> Float32:
    """[n, heads, D] with pairs (i, i + D / 2) turned by position."""
    x = x.reshape(len(x), heads, HEAD_DIM)
    half = HEAD_DIM // 2
    angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


def attention(q: Float32, k: Float32, v: Float32, visible: npt.NDArray[np.bool_]) -> Float32:
    """q [n, H D] over k, v [m, G D]; visible [n, m]."""
    q = q.reshape(len(q), HEADS, HEAD_DIM)
    k, v = (np.repeat(a.reshape(len(a), KV_HEADS, HEAD_DIM), HEADS // KV_HEADS, axis=1) for a in (k, v))
    scores = np.where(visible[None], np.einsum("nhd,mhd->hnm", q, k) * HEAD_DIM**-0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = np.einsum("hnm,mhd->nhd", weights / weights.sum(-1, keepdims=True), v)
    return mixed.reshape(len(q), -1)


def medusa(arrays: dict[str, Any], head: int, blocks: int, hidden: Float32, output: Float32 | None = None) -> Float32:
    """[n, V] scores of a head."""
    x = hidden
    for block in range(blocks):
        x = x + silu(x @ arrays[f"{head}.{block}.linear.weight"].T + arrays[f"{head}.{block}.linear.bias"])
    return x @ (arrays[f"{head}.{blocks}.weight"] if output is None else output).T


def _causal_layer(arrays: dict[str, Any], stem: str, read: Float32, residual: Float32) -> Float32:
    """A decoder layer whose attention reads `read`."""
    w = {name: arrays[f"{stem}.{name}.weight"] for name in (*(f"self_attn.{p}_proj" for p in "qkvo"),)}
    positions = np.arange(len(read))
    q = rotate(read @ w["self_attn.q_proj"].T, HEADS, positions)
    k = rotate(read @ w["self_attn.k_proj"].T, KV_HEADS, positions)
    visible = positions[:, None] >= positions
    mixed = attention(q, k, read @ w["self_attn.v_proj"].T, visible)
    x = residual + mixed @ w["self_attn.o_proj"].T
    h = norm(x, arrays[f"{stem}.post_attention_layernorm.weight"])
    gate, up = (h @ arrays[f"{stem}.mlp.{part}_proj.weight"].T for part in ("gate", "up"))
    return x + (silu(gate) * up) @ arrays[f"{stem}.mlp.down_proj.weight"].T


def eagle1(arrays: dict[str, Any], embedded: Float32, features: Float32, layers: int = 1) -> Float32:
    """[n, E] states of rows (token, feature before it), the first at position 0."""
    x = np.concatenate([embedded, features], axis=1) @ arrays["fc.weight"].T + arrays.get("fc.bias", 0.0)
    for index in range(layers):
        read = norm(x, arrays[f"layers.{index}.input_layernorm.weight"]) if index else x
        x = _causal_layer(arrays, f"layers.{index}", read, x)
    return x


def eagle3(arrays: dict[str, Any], embedded: Float32, features: Float32) -> Float32:
    """[n, E] states; features [n, E] behind fc."""
    read = np.concatenate(
        [
            norm(embedded, arrays["midlayer.input_layernorm.weight"]),
            norm(features, arrays["midlayer.hidden_norm.weight"]),
        ],
        axis=1,
    )
    return _causal_layer(arrays, "midlayer", read, features)


def eagle3_scores(arrays: dict[str, Any], states: Float32) -> Float32:
    """[n, C] scores over the draft vocabulary."""
    return norm(states, arrays["norm.weight"]) @ arrays["lm_head.weight"].T


def block_head(
    arrays: dict[str, Any], spec: Any, hidden: Float32, rows: Float32, position: int
) -> tuple[Float32, Float32]:
    """Fused hidden states [n, E] of committed tokens, and the normed states [d, E] of a block's rows behind them.

    hidden    [n, captures * E]   rows  [d, E] inputs of the block, without the fused state of row 0, which is added
    position  of row 0, n
    """
    parts = np.split(hidden, len(spec.captures), axis=1)
    fused = sum(norm(part, arrays[f"head.feature_norm.{i}"]) @ arrays[f"head.fc.{i}"].T for i, part in enumerate(parts))
    x = rows.copy()
    x[0] += fused[-1]
    context, own = np.arange(position), position + np.arange(len(x))
    visible = np.concatenate([np.ones((len(x), position), bool), own[:, None] >= own], axis=1)
    for index in range(len(spec.layers)):
        w = {part: arrays[f"head.layers.{index}.{part}"] for part in ("attn_norm", "mlp_norm")}
        q, k, v, o = (arrays[f"head.layers.{index}.attn.{part}"] for part in "qkvo")
        gate, up, down = (arrays[f"head.layers.{index}.mlp.{part}"] for part in ("gate", "up", "down"))
        read, before = norm(x, w["attn_norm"]), norm(fused, w["attn_norm"])
        keys = np.concatenate([rotate(before @ k.T, KV_HEADS, context), rotate(read @ k.T, KV_HEADS, own)])
        values = np.concatenate([before @ v.T, read @ v.T])
        x = x + attention(rotate(read @ q.T, HEADS, own), keys, values, visible) @ o.T
        h = norm(x, w["mlp_norm"])
        x = x + (silu(h @ gate.T) * (h @ up.T)) @ down.T
    return fused, norm(x, arrays["head.norm"])
