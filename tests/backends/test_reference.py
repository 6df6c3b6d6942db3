"""The oracle itself: against a dense forward pass written differently, and bit for bit against itself."""

import numpy as np
import pytest

from forerun.backends.base import Limits, LoadedModel, SlotMove
from forerun.backends.reference import ReferenceBackend
from forerun.backends.reference_kv import round_to_bf16
from forerun.cache.layout import KvLayout, KvStack
from forerun.errors import ModelFileError, UsageError
from forerun.models.rope import llama3_freq_factors, rope_table
from forerun.models.spec import ModelSpec, RopeSpec
from forerun.speculation.tree import DraftTree
from tests.steps import Rows, make_batch
from tests.tiny import Float32, RandomWeights, tiny_spec

BLOCK = 4
TOKENS = [int(t) for t in np.random.default_rng(5).integers(0, 97, 23)]


def make_backend(spec: ModelSpec, codec: str = "bf16", num_blocks: int = 40) -> ReferenceBackend:
    backend = ReferenceBackend()
    backend.load(LoadedModel(spec, RandomWeights(spec, seed=3)), Limits(256, 256, 128))
    attn = spec.layers[0].mixer
    stack = KvStack("target", spec.num_layers, attn.num_kv_heads, attn.head_dim, codec)
    backend.allocate_kv(KvLayout(num_blocks, BLOCK, (stack,)))
    return backend


def run(backend: ReferenceBackend, *parts: Rows) -> Float32:
    batch = make_batch(parts, BLOCK)
    return backend.forward(batch).logits(range(batch.num_rows))


def dense_logits(spec: ModelSpec, tokens: list[int]) -> Float32:
    """The same model over a whole text in float64 with an explicit causal mask and complex rotation."""
    weights = RandomWeights(spec, seed=3)

    def read(name: str) -> np.ndarray:
        return weights.read(name).astype(np.float64)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + spec.norm_eps) * read(name)

    def linear(x: np.ndarray, name: str) -> np.ndarray:
        bias = read(f"{name}.bias") if f"{name}.bias" in weights else 0.0
        return x @ read(name).T + bias

    x = read("embed")[tokens]
    future = np.triu(np.full((len(tokens), len(tokens)), -np.inf), 1)
    for index, layer in enumerate(spec.layers):
        attn, prefix = layer.mixer, f"layers.{index}."
        half = attn.head_dim // 2
        turn = np.outer(np.arange(len(tokens)), attn.rope.theta ** (-np.arange(half) / half))
        h = norm(x, prefix + "attn_norm")
        heads = {}
        for part, count in (("q", attn.num_heads), ("k", attn.num_kv_heads), ("v", attn.num_kv_heads)):
            y = linear(h, f"{prefix}attn.{part}").reshape(len(tokens), count, -1).swapaxes(0, 1)
            if part != "v":
                z = (y[..., :half] + 1j * y[..., half:]) * np.exp(1j * turn)
                y = np.concatenate([z.real, z.imag], axis=-1)
            heads[part] = np.repeat(y, attn.num_heads // count, axis=0)
        scores = heads["q"] @ heads["k"].swapaxes(1, 2) * attn.scale + future
        p = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (p / p.sum(-1, keepdims=True)) @ heads["v"]
        x = x + linear(mixed.swapaxes(0, 1).reshape(len(tokens), -1), prefix + "attn.o")
        h = norm(x, prefix + "mlp_norm")
        gate = linear(h, prefix + "mlp.gate")
        x = x + linear(gate / (1 + np.exp(-gate)) * linear(h, prefix + "mlp.up"), prefix + "mlp.down")
    return norm(x, "final_norm") @ read(spec.output_weight).T


@pytest.mark.parametrize(
    "spec",
    [
        tiny_spec("llama"),
        tiny_spec("llama", kv_heads=4, tied=False),
        tiny_spec("llama", kv_heads=1, out_bias=True, mlp_bias=True),
        tiny_spec("qwen2", heads=6, kv_heads=3, head_dim=8),
    ],
    ids=["gqa", "mha-untied", "mqa-biases", "qwen2"],
)
def test_agrees_with_a_dense_forward_pass(spec: ModelSpec) -> None:
    logits = run(make_backend(spec, "fp32"), Rows(TOKENS, 0, [7, 2, 9, 4, 0, 5]))
    np.testing.assert_allclose(logits, dense_logits(spec, TOKENS), atol=2e-4)


@pytest.mark.parametrize("codec", ["bf16", "fp32"])
@pytest.mark.parametrize("chunks", [[1] * 23, [5, 1, 16, 1], [22, 1]])
def test_chunks_do_not_change_a_bit(codec: str, chunks: list[int]) -> None:
    spec = tiny_spec("qwen2")
    blocks = [3, 8, 1, 0, 11, 6]
    whole = run(make_backend(spec, codec), Rows(TOKENS, 0, blocks))
    backend, parts, done = make_backend(spec, codec), [], 0
    for size in chunks:
        parts.append(run(backend, Rows(TOKENS[done : done + size], done, blocks)))
        done += size
    assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_neighbours_do_not_change_a_bit() -> None:
    spec = tiny_spec()
    alone = run(make_backend(spec), Rows(TOKENS[:9], 0, [0, 1, 2]))
    others = [Rows(TOKENS[k:], 0, range(3 + 6 * k, 9 + 6 * k)) for k in range(3)]
    together = run(make_backend(spec), *others, Rows(TOKENS[:9], 0, [30, 22, 25]))
    assert together[-9:].tobytes() == alone.tobytes()


@pytest.mark.parametrize("before", [0, 3])
def test_a_tree_path_equals_plain_decoding(before: int) -> None:
    """Each node's logits have the bits that decoding its path alone gives."""
    spec = tiny_spec("qwen2")
    blocks = list(range(12))
    tree = DraftTree.from_paths(40, [(1, 2, 3), (1, 5), (6, 7), (6, 2)])
    context, pending = TOKENS[: 10 - before], TOKENS[10 - before : 10]
    backend = make_backend(spec)
    run(backend, Rows(context, 0, blocks))
    rows = run(backend, Rows(pending, len(context), blocks, tree))[before:]
    for node in range(len(tree)):
        path = [40, *(tree.tokens[row] for row in tree.path(node))]
        plain = run(make_backend(spec), Rows(TOKENS[:10] + path, 0, blocks))
        assert rows[node].tobytes() == plain[-1].tobytes()


def test_moving_an_accepted_path_equals_never_having_drafted() -> None:
    spec = tiny_spec()
    blocks = list(range(12))
    tree = DraftTree.from_paths(40, [(1, 2), (6, 7)])  # rows 3, 4 are the second path
    backend = make_backend(spec)
    run(backend, Rows(TOKENS[:10], 0, blocks))
    run(backend, Rows([], 10, blocks, tree))
    backend.move_kv([SlotMove(10 + 3, 10 + 1), SlotMove(10 + 4, 10 + 2)])
    after = run(backend, Rows([8], 13, blocks))
    plain = run(make_backend(spec), Rows([*TOKENS[:10], 40, 6, 7, 8], 0, blocks))
    assert after[0].tobytes() == plain[-1].tobytes()


def test_copied_blocks_hold_the_same_prefix() -> None:
    spec = tiny_spec()
    backend = make_backend(spec)
    run(backend, Rows(TOKENS[:8], 0, [0, 1]))
    backend.copy_blocks([(0, 20), (1, 21)])
    first, second = (run(backend, Rows(TOKENS[8:10], 8, blocks)) for blocks in ([0, 1, 2], [20, 21, 22]))
    assert first.tobytes() == second.tobytes()


def test_nan_stays_in_its_sequence_and_clearing_removes_it() -> None:
    spec = tiny_spec()
    backend = make_backend(spec)
    assert backend._kv is not None
    clean = run(backend, Rows(TOKENS[:4], 0, [5]))
    for keys in backend._kv.keys:
        keys[backend._kv.block(3)] = np.nan
    both = run(backend, Rows([1], 4, [3, 4]), Rows(TOKENS[:4], 0, [5]))
    assert np.isnan(both[0]).all()
    assert both[1:].tobytes() == clean.tobytes()
    backend.clear_blocks([3])
    assert np.isfinite(run(backend, Rows([1], 4, [3, 4]))).all()


def test_bf16_rounding() -> None:
    def bf16(bits: int) -> int:
        value = np.array([bits], np.uint32).view(np.float32)
        return int(round_to_bf16(value).view(np.uint32)[0])

    assert bf16(0x3F800000) == 0x3F800000
    assert bf16(0x3F808000) == 0x3F800000  # tie to even, down
    assert bf16(0x3F818000) == 0x3F820000  # tie to even, up
    assert bf16(0x3F808001) == 0x3F810000
    assert bf16(0x7F7FFFFF) == 0x7F800000  # rounds to infinity
    assert bf16(0x807FFFFF) == 0x80000000  # a denormal becomes zero of its sign
    assert bf16(0x00800000) == 0x00800000  # the smallest normal stays
    assert bf16(0x7F800001) == 0x7FC00000  # NaN stays NaN
    assert bf16(0xFF800000) == 0xFF800000


def test_rope_table() -> None:
    cos, sin = rope_table(RopeSpec(theta=10000.0, rotary_dim=8), 6)
    assert cos.shape == sin.shape == (6, 4)
    assert cos.dtype == sin.dtype == np.float32
    assert sin[3, 0] == np.float32(np.sin(3.0))
    assert cos[5, 1] == np.float32(np.cos(0.5))
    slow, _ = rope_table(RopeSpec(theta=10000.0, rotary_dim=8, linear_factor=2.0), 6)
    np.testing.assert_array_equal(slow[4], cos[2])
    divided, _ = rope_table(RopeSpec(theta=10000.0, rotary_dim=8, freq_factors=(1.0, 2.0, 4.0, 8.0)), 6)
    assert divided[5, 2] == np.float32(np.cos(5 * 0.01 / 4))


def test_llama3_factors_keep_fast_pairs_and_stretch_slow_ones() -> None:
    factors = llama3_freq_factors(
        500000.0, 64, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
    )
    assert len(factors) == 32
    assert factors[0] == 1.0
    assert factors[-1] == 8.0
    assert list(factors) == sorted(factors)
    assert any(1.0 < f < 8.0 for f in factors)


class WrongWeights(RandomWeights):
    """Misses one weight or has it in a wrong shape."""

    def __init__(self, spec: ModelSpec, missing: str = "", cut: str = "") -> None:
        super().__init__(spec)
        self.missing, self.cut = missing, cut

    def __contains__(self, name: str) -> bool:
        return name != self.missing and super().__contains__(name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        return super().read(name, start, stop)[: -1 if name == self.cut else None]


def test_wrong_weights_are_refused() -> None:
    spec = tiny_spec()
    for weights in (WrongWeights(spec, missing="layers.1.mlp.up"), WrongWeights(spec, cut="layers.1.mlp.up")):
        with pytest.raises(ModelFileError, match=r"layers\.1\.mlp\.up"):
            ReferenceBackend().load(LoadedModel(spec, weights), Limits(8, 8, 64))


def test_memory_and_numerics_id() -> None:
    spec = tiny_spec()
    backend = make_backend(spec, "bf16", num_blocks=10)
    assert backend.memory().weights == sum(4 * int(np.prod(shape)) for shape in spec.weight_shapes().values())
    assert backend.memory().kv == 2 * 4 * spec.num_layers * 10 * BLOCK * 2 * 16
    other_rope = tiny_spec(rope=RopeSpec(theta=500.0, rotary_dim=16))
    backends = [backend, make_backend(spec, "fp32"), make_backend(other_rope, "bf16")]
    assert len({backend.numerics_id for backend in backends}) == 3
    assert make_backend(spec, "bf16").numerics_id == backend.numerics_id


def test_unknown_codec_is_refused() -> None:
    backend = ReferenceBackend()
    spec = tiny_spec()
    backend.load(LoadedModel(spec, RandomWeights(spec)), Limits(8, 8, 64))
    with pytest.raises(UsageError, match="int3"):
        backend.allocate_kv(KvLayout(2, BLOCK, (KvStack("target", 2, 2, 16, "int3"),)))
