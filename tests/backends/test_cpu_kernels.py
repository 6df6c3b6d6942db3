"""Every native operation, in every kernel table, against numpy in float64, on ragged and odd sizes."""

import dataclasses

import numpy as np
import pytest

from forerun import _native
from forerun.backends.reference_kv import round_to_bf16
from forerun.models.rope import rope_table
from forerun.models.spec import RopeSpec
from tests.backends.native_ops import TABLES, Bench, exact, new_view, pack, plain_batch, run
from tests.steps import Rows, make_batch

pytestmark = pytest.mark.parametrize("table", TABLES)


def awkward_floats():
    """Bit patterns at every border of the rounding rule, with both signs."""
    bits = [0, 1, 0x7FFFFF, 0x800000, 0x808000, 0x3F800000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001]
    bits += [0x7F7FFFFF, 0x7F7F7FFF, 0x7F7F8000, 0x7F800000, 0x7F800001, 0x7F80FFFF, 0x7FC00000, 0x7FFFFFFF]
    both = np.array(bits + [b | 0x80000000 for b in bits], np.uint32)
    rng = np.random.default_rng(0)
    return np.concatenate([both, rng.integers(0, 1 << 32, 4096 - len(both), dtype=np.uint32)]).view(np.float32)


def test_one_rounding_rule(table):
    values = awkward_floats()
    want = (round_to_bf16(values).view(np.uint32) >> 16).astype(np.uint16)
    for rule in (table, "scalar"):
        got = np.empty(len(values), np.uint16)
        _native.round_to_bf16(rule, values, got)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("width", [1, 31, 33, 80])
def test_embed_is_exact(table, width):
    rows = exact((37, width))
    np.testing.assert_array_equal(Bench(table).run([rows], lambda _p, views: views[0], width), rows)


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 47, 96])
@pytest.mark.parametrize("inputs", [1, 31, 32, 70, 160])
@pytest.mark.parametrize("num_rows", [1, 3, 16, 17, 33, 49])
def test_linear(table, outputs, inputs, num_rows):
    x, w, bias = exact((num_rows, inputs)), exact((outputs, inputs), 1), exact((outputs,), 2)

    def record(program, views):
        out = new_view(program, outputs)
        program.linear(views[0], pack(w, _native.ThreadPool(1)), program.add_vector(bias), out)
        return out

    want = x.astype(np.float64) @ w.T.astype(np.float64) + bias
    bound = 1e-6 * (np.abs(x) @ np.abs(w).T + np.abs(bias)) + 1e-30
    assert (np.abs(Bench(table).run([x], record, outputs) - want) <= bound).all()


def test_linear_rounds_its_input_to_bf16(table):
    x, ones = exact((4, 64)), np.ones((1, 64), np.float32)
    sums = [x.copy()]

    def record(program, views):
        doubled, out = new_view(program, 64), new_view(program, 1)
        program.add(views[0], views[1], doubled)
        program.linear(doubled, pack(ones, _native.ThreadPool(1)), -1, out)
        return out

    small = exact((4, 64), 3, 2.0**-7)
    want = round_to_bf16(x + small).astype(np.float64).sum(axis=1, keepdims=True)
    got = Bench(table).run([*sums, small], record, 1)
    np.testing.assert_allclose(got, want, atol=1e-4)


def test_linear_of_many_rows_and_inputs_equals_one_row(table):
    """512 rows of 1,100 inputs take the path that rests accumulators in memory between input ranges."""
    num_rows, inputs, outputs = 520, 1100, 40
    x, w = exact((num_rows, inputs)), exact((outputs, inputs), 1)

    def record(program, views):
        out = new_view(program, outputs)
        program.linear(views[0], pack(w, _native.ThreadPool(1)), -1, out)
        return out

    together = Bench(table).run([x], record, outputs)
    for row in (0, 15, 16, 31, 32, 511, 512, 519):
        alone = Bench(table).run([x[row : row + 1]], record, outputs)
        np.testing.assert_array_equal(together[row].view(np.int32), alone[0].view(np.int32))
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    assert (np.abs(together - want) <= 3e-6 * (np.abs(x) @ np.abs(w).T)).all()


@pytest.mark.parametrize("width", [1, 15, 63, 64, 65, 200])
def test_rms_norm(table, width):
    x, weight = exact((9, width)), exact((width,), 1)

    def record(program, views):
        out = new_view(program, width)
        program.rms_norm(views[0], program.add_vector(weight), 1e-5, out)
        return out

    wide = x.astype(np.float64)
    want = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(Bench(table).run([x], record, width), want, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (64, 64), (80, 32), (128, 128), (6, 4)])
def test_rope(table, head_dim, rotary_dim):
    heads, num_rows = 3, 21
    x = exact((num_rows, heads * head_dim))
    spec = RopeSpec(theta=10000.0, rotary_dim=rotary_dim)
    cosine, sine = rope_table(spec, 4096)
    positions = np.arange(num_rows, dtype=np.int32) * 190

    def record(program, views):
        program.rope(views[0], heads, rotary_dim, program.add_rope_table(cosine, sine))
        return views[0]

    batch = dataclasses.replace(plain_batch(num_rows), positions=positions, block_table=np.zeros((1, 256), np.int32))
    got = Bench(table).run([x], record, heads * head_dim, batch)
    half = rotary_dim // 2
    h = x.reshape(num_rows, heads, head_dim).astype(np.float64)
    c, s = cosine[positions][:, None, :], sine[positions][:, None, :]
    a, b = h[..., :half], h[..., half:rotary_dim]
    want = np.concatenate([a * c - b * s, b * c + a * s, h[..., rotary_dim:]], axis=-1).reshape(num_rows, -1)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=2e-6)


def test_rope_leaves_neighbouring_columns_alone(table):
    x = exact((2, 3 * 6))
    cosine, sine = rope_table(RopeSpec(theta=100.0, rotary_dim=6), 4096)

    def record(program, views):
        program.rope(_native.View(0, 6, 6), 1, 6, program.add_rope_table(cosine, sine))
        return views[0]

    got = Bench(table).run([x], record, 18)
    np.testing.assert_array_equal(got[:, :6], x[:, :6])
    np.testing.assert_array_equal(got[:, 12:], x[:, 12:])
    assert (got[1, 6:12] != x[1, 6:12]).any()


@pytest.mark.parametrize("width", [1, 17, 96])
def test_silu_mul_and_add(table, width):
    gate, up = exact((5, width), 0, 4.0), exact((5, width), 1)
    gate[0, 0], gate[1, 0], gate[2, 0], gate[3, 0] = -1000.0, 1000.0, 0.0, -87.5

    def silu(program, views):
        out = new_view(program, width)
        program.silu_mul(views[0], views[1], out)
        return out

    def add(program, views):
        out = new_view(program, width)
        program.add(views[0], views[1], out)
        return out

    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        want = wide / (1 + np.exp(-wide)) * up
    np.testing.assert_allclose(Bench(table).run([gate, up], silu, width), want, rtol=1e-6, atol=1e-30)
    np.testing.assert_array_equal(Bench(table).run([gate, up], add, width), gate + up)


def test_nan_stays_in_its_row(table):
    gate, up = exact((4, 20)), exact((4, 20), 1)
    gate[2, 5] = np.nan

    def record(program, views):
        out, logits = new_view(program, 20), new_view(program, 24)
        program.silu_mul(views[0], views[1], out)
        program.linear(out, pack(exact((24, 20), 2), _native.ThreadPool(1)), -1, logits)
        return logits

    got = Bench(table).run([gate, up], record, 24)
    assert np.isnan(got[2]).all()
    assert np.isfinite(got[[0, 1, 3]]).all()


def attend(table, codec, qkv, heads, batch, block_size=16, window=0):
    """Write k and v, then attention, through the native program."""
    num_heads, kv_heads, head_dim = heads

    def record(program, views):
        out = new_view(program, num_heads * head_dim)
        program.write_kv(0, views[1], views[2], kv_heads)
        program.attention(0, views[0], num_heads, kv_heads, head_dim**-0.5, window, out)
        return out

    bench = Bench(table, codec=codec)
    return bench.run(qkv, record, num_heads * head_dim, batch, (kv_heads, head_dim), (1024 // block_size, block_size))


def is_tiled(table, codec, head_dim):
    """Whether attention multiplies tiles: queries and weights are rounded to bfloat16 then."""
    return table.startswith("amx") and codec == "bf16" and head_dim % 16 == 0 and head_dim <= 256


def check_attention(table, codec, qkv, heads, got, window=0):
    """Compare with float64, within what the rounding of weights may lose."""
    head_dim = heads[-1]
    q, k, v = qkv
    if not is_tiled(table, codec, head_dim):
        np.testing.assert_allclose(got, attention_oracle(q, k, v, heads, window), rtol=1e-5, atol=4e-6)
        return
    octaves = np.float32(np.float32(head_dim**-0.5) * np.float32(np.log2(np.e)))
    rounded = round_to_bf16(q * octaves) / (np.log2(np.e) * head_dim**-0.5)
    want, size = (attention_oracle(rounded, k, x, heads, window) for x in (v, np.abs(v)))
    error = np.abs(got - want)
    assert (error <= 4.3e-3 * size + 1e-6).all()  # half a unit in the last place is 3.9e-3
    assert error.mean() <= 1.5e-3 * size.mean()  # rounding is not one-sided


def attention_oracle(q, k, v, heads, window=0):
    """Causal attention in float64."""
    num_heads, kv_heads, head_dim = heads
    n, repeat = len(q), num_heads // kv_heads
    qh = q.reshape(n, num_heads, head_dim).astype(np.float64)
    kh, vh = (np.repeat(x.reshape(n, kv_heads, head_dim).astype(np.float64), repeat, axis=1) for x in (k, v))
    scores = np.einsum("ihd,jhd->hij", qh, kh) * head_dim**-0.5
    distance = np.arange(n)[:, None] - np.arange(n)
    scores[:, (distance < 0) | ((distance >= window) if window else False)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hij,jhd->ihd", weights, vh).reshape(n, -1)


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "heads",
    [(4, 2, 16), (3, 1, 64), (5, 5, 80), (7, 1, 128), (2, 1, 6), (140, 1, 16), (3, 1, 256), (2, 1, 272)],
    ids=str,
)
@pytest.mark.parametrize("num_rows", [1, 15, 65, 150])
def test_attention(table, codec, heads, num_rows):
    num_heads, kv_heads, head_dim = heads
    q = exact((num_rows, num_heads * head_dim), 0, 2.0)
    k, v = exact((num_rows, kv_heads * head_dim), 1), exact((num_rows, kv_heads * head_dim), 2)
    got = attend(table, codec, [q, k, v], heads, plain_batch(num_rows))
    check_attention(table, codec, [q, k, v], heads, got)


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("window", [1, 7, 64, 100, 600])
def test_sliding_window(table, codec, window):
    heads, num_rows = (5, 1, 32), 700
    q, k, v = exact((num_rows, 160), 0, 2.0), exact((num_rows, 32), 1), exact((num_rows, 32), 2)
    got = attend(table, codec, [q, k, v], heads, plain_batch(num_rows), window=window)
    check_attention(table, codec, [q, k, v], heads, got, window)


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
def test_a_row_of_a_window_is_the_same_alone(table, codec):
    heads, num_rows, window = (5, 1, 32), 700, 90
    qkv = exact((num_rows, 160), 0, 2.0), exact((num_rows, 32), 1), exact((num_rows, 32), 2)
    together = attend(table, codec, qkv, heads, plain_batch(num_rows), window=window)
    for row in (0, 63, 64, 89, 90, 130, 511, 600, 699):
        # The other rows see nothing and are written only.
        batch = plain_batch(num_rows)
        start = np.array([0, row, row + 1, num_rows], np.int32)
        batch = dataclasses.replace(
            batch,
            query_start=start,
            context_len=np.zeros(3, np.int32),
            block_table=np.repeat(batch.block_table, 3, axis=0),
            tree_root=np.full(3, -1, np.int32),
        )
        alone = attend(table, codec, qkv, heads, batch, window=window)
        np.testing.assert_array_equal(alone[row].view(np.int32), together[row].view(np.int32))


@pytest.mark.parametrize("block_size", [16, 32, 48, 128])
def test_attention_over_spans_and_block_sizes(table, block_size):
    heads, num_rows = (2, 1, 32), 700  # two spans
    q, k, v = exact((num_rows, 64)), exact((num_rows, 32), 1), exact((num_rows, 32), 2)
    order = np.random.default_rng(5).permutation(1024 // block_size)
    assert len(order) * block_size >= num_rows
    batch = make_batch([Rows(list(range(num_rows)), 0, [int(b) for b in order])], block_size)
    got = attend(table, "bf16", [q, k, v], heads, batch, block_size)
    check_attention(table, "bf16", [q, k, v], heads, got)
    sixteen = attend(table, "bf16", [q, k, v], heads, plain_batch(num_rows))
    np.testing.assert_array_equal(got.view(np.int32), sixteen.view(np.int32))


def test_invisible_slots_may_hold_nan(table):
    """Everything in the store is NaN but the keys a row sees: also the rest of its last block."""
    heads, num_rows = (2, 1, 16), 20
    q, k, v = exact((num_rows, 32)), exact((num_rows, 16), 1), exact((num_rows, 16), 2)
    poison = np.full((1, 16), np.nan, np.float32)
    clean = attend(table, "bf16", [q, k, v], heads, plain_batch(num_rows))
    # The same rows, and behind them a sequence that fills every other slot with NaN, in the same blocks too.
    spare = list(range(num_rows, 128))
    everything = make_batch([Rows(list(range(num_rows)), 0, [0, 1])], 16)
    batch = dataclasses.replace(
        everything,
        tokens=np.array([*everything.tokens, *[num_rows] * len(spare)], np.int32),
        positions=np.array([*everything.positions, *[0] * len(spare)], np.int32),
        slots=np.array([*everything.slots, *spare], np.int32),
        query_start=np.array([0, num_rows, num_rows + len(spare)], np.int32),
        context_len=np.zeros(2, np.int32),
        block_table=np.array([[0, 1], [7, -1]], np.int32),
        tree_root=np.array([-1, -1], np.int32),
        ancestors=np.zeros(num_rows + len(spare), np.uint64),
    )
    all_qkv = [np.vstack([q, q[:1]]), np.vstack([k, poison]), np.vstack([v, poison])]
    poisoned = attend(table, "bf16", all_qkv, heads, batch)
    np.testing.assert_array_equal(poisoned[:num_rows].view(np.int32), clean.view(np.int32))
    assert np.isnan(poisoned[num_rows:]).all()


@pytest.mark.parametrize("codec", ["fp32", "bf16"])
@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("num_rows", "at"), [(20, 0), (20, 12), (100, 66), (100, 99), (600, 530)])
def test_what_a_later_row_holds_does_not_reach_earlier_rows(table, codec, wild, num_rows, at):
    """Rows of one tile see different parts of a chunk: a weight of zero must not meet a value that is not finite."""
    heads = (3, 1, 32)
    q, k, v = exact((num_rows, 96)), exact((num_rows, 32), 1), exact((num_rows, 32), 2)
    clean = attend(table, codec, [q, k, v], heads, plain_batch(num_rows))
    v[at, 5], k[at, 7] = wild, np.nan
    got = attend(table, codec, [q, k, v], heads, plain_batch(num_rows))
    np.testing.assert_array_equal(got[:at].view(np.int32), clean[:at].view(np.int32))
    assert np.isnan(got[at:]).all()


def test_finite_rows_are_the_same_beside_a_wild_value(table):
    """A wild value that only the last rows see sends the chunk down the slow path, which gives the fast one's bits."""
    heads, num_rows = (3, 1, 48), 64
    q, k, v = exact((num_rows, 144)), exact((num_rows, 48), 1), exact((num_rows, 48), 2)
    clean = attend(table, "bf16", [q, k, v], heads, plain_batch(num_rows))
    v[60, 3] = np.inf
    got = attend(table, "bf16", [q, k, v], heads, plain_batch(num_rows))
    np.testing.assert_array_equal(got[:60].view(np.int32), clean[:60].view(np.int32))
    others = np.arange(144) % 48 != 3
    np.testing.assert_array_equal(got[60:, others].view(np.int32), clean[60:, others].view(np.int32))
    assert not np.isfinite(got[60:, ~others]).any()


@pytest.mark.parametrize("block_size", [16, 32, 48])
def test_slots_move_between_blocks(table, block_size):
    """Keys and values written elsewhere and moved into place give the same bits."""
    heads, num_rows = (4, 2, 32), 40
    q, k, v = exact((num_rows, 128)), exact((num_rows, 64), 1), exact((num_rows, 64), 2)
    batch = make_batch([Rows(list(range(num_rows)), 0, [0, 1, 2])], block_size)
    want = attend(table, "bf16", [q, k, v], heads, batch, block_size)
    apart = dataclasses.replace(batch, slots=batch.slots[::-1] + 4 * block_size)
    program = _native.Program(table, _native.ThreadPool(1), num_rows, num_rows, 4096)
    views = [_native.View(program.add_buffer(x.shape[1], False), 0, x.shape[1]) for x in (q, k, v)]
    for view, values in zip(views, (q, k, v), strict=True):
        program.embed(pack(values, _native.ThreadPool(1)), view)
    program.write_kv(0, views[1], views[2], 2)
    program.attention(0, views[0], 4, 2, 32**-0.5, 0, views[0])
    out = _native.View(program.add_buffer(128, True), 0, 128)
    program.select_outputs(views[0], out)
    program.finish(out)
    store = _native.KvStore(table, 16, block_size, [(2, 32, "bf16")])
    run(program, store, apart)
    store.move_slots(list(zip(apart.slots.tolist(), batch.slots.tolist(), strict=True)))
    last = dataclasses.replace(
        batch,
        tokens=batch.tokens[-1:],
        positions=batch.positions[-1:],
        slots=batch.slots[-1:],
        query_start=np.array([0, 1], np.int32),
        ancestors=np.zeros(1, np.uint64),
        output_rows=np.zeros(1, np.int32),
    )
    run(program, store, last)
    np.testing.assert_array_equal(program.logits()[0].view(np.int32), want[-1].view(np.int32))
