"""DenseOps: the forward pass of one whole sequence in fp32, as large matrix products; the yardstick of quality.

Not row-invariant and in need of no KV store, but a hundred times quicker than the reference backend. Weights are read
when they are used and dropped again, so a pass needs little more memory than its largest values.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from forerun.backends.base import LoadedModel, Weights
from forerun.models.decoder import logits
from forerun.models.rope import rope_table
from forerun.models.spec import AttentionSpec, RopeSpec

Float32 = npt.NDArray[np.float32]

CHUNK_BYTES = 64 << 20  # of a matrix, read and multiplied at once


def dense_logits(model: LoadedModel, tokens: Sequence[int]) -> Float32:
    """[T, V] float32 logits after each of the tokens, from dequantised weights in float32 throughout."""
    with np.errstate(over="ignore"):  # exp(-gate) may overflow to inf, and gate / inf is the right zero
        return logits(model.spec, DenseOps(model.weights, tokens))


class DenseOps:
    """Ops over one sequence from its start; a value is an array [T, width] float32."""

    def __init__(self, weights: Weights, tokens: Sequence[int]) -> None:
        self._weights = weights
        self._tokens = np.array(tokens)
        self._kv: tuple[Float32, Float32]  # of the layer at hand

    def embed(self, weight: str) -> Float32:
        rows = {token: self._weights.read(weight, token, token + 1)[0] for token in set(self._tokens.tolist())}
        return np.stack([rows[token] for token in self._tokens.tolist()])

    def rms_norm(self, x: Float32, weight: str, eps: float) -> Float32:
        mean: Float32 = np.mean(x * x, axis=-1, keepdims=True)
        scaled: Float32 = x / np.sqrt(mean + np.float32(eps)) * self._weights.read(weight)
        return scaled

    def linear(self, x: Float32, weights: Sequence[str], biases: Sequence[str | None] = ()) -> Float32:
        parts = []
        for name, bias in zip(weights, biases or (None,) * len(weights), strict=True):
            part = np.concatenate([x @ rows.T for rows in self._chunks(name)], axis=1)
            parts.append(part if bias is None else part + self._weights.read(bias))
        return np.concatenate(parts, axis=1)

    def split(self, x: Float32, widths: Sequence[int]) -> tuple[Float32, ...]:
        return tuple(np.split(x, np.cumsum(widths)[:-1], axis=1))

    def rope(self, x: Float32, num_heads: int, rope: RopeSpec) -> Float32:
        cos, sin = (table[:, None, :] for table in rope_table(rope, len(x)))
        heads = x.reshape(len(x), num_heads, -1)
        half = rope.rotary_dim // 2
        first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
        return turned.reshape(len(x), -1)

    def write_kv(self, layer: int, k: Float32, v: Float32, spec: AttentionSpec) -> None:
        self._kv = k, v

    def attention(self, layer: int, q: Float32, spec: AttentionSpec) -> Float32:
        length, groups, size = len(q), spec.num_kv_heads, spec.head_dim
        keys, values = (a.reshape(length, groups, size).transpose(1, 0, 2)[:, None] for a in self._kv)  # [G, 1, T, D]
        queries = q.reshape(length, groups, -1, size).transpose(1, 2, 0, 3)  # [G, H / G, T, D]
        scores = queries @ keys.swapaxes(-1, -2) * np.float32(spec.scale)
        scores[..., np.triu(np.ones((length, length), bool), k=1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (weights @ values) / weights.sum(axis=-1, keepdims=True)
        return np.ascontiguousarray(mixed.transpose(2, 0, 1, 3)).reshape(length, -1)

    def silu(self, x: Float32) -> Float32:
        return self.silu_mul(x, np.ones(1, np.float32))

    def silu_mul(self, gate: Float32, up: Float32) -> Float32:
        one = np.ones(1, np.float32)
        return gate / (one + np.exp(-gate)) * up

    def add(self, x: Float32, y: Float32) -> Float32:
        return x + y

    def select_outputs(self, x: Float32) -> Float32:
        return x

    def features(self, width: int) -> Float32:
        raise NotImplementedError("a dense pass reads tokens only")

    def capture(self, name: str, x: Float32) -> None:
        raise NotImplementedError("a dense pass yields logits only")

    def _chunks(self, name: str) -> Iterator[Float32]:
        rows, cols = self._weights.shape(name)
        step = max(1, CHUNK_BYTES // (4 * cols))
        for start in range(0, rows, step):
            yield self._weights.read(name, start, min(rows, start + step))
