"""Operations that run together against the same ones one by one: the same bits, in every kernel table.

`op_shapes` tells what runs together: such a kind is named by its parts, joined with "+".
"""

from dataclasses import replace

import numpy as np
import pytest

from forerun import _native
from forerun.backends.cpu import INT16_TABLES
from forerun.models.rope import rope_table
from forerun.models.spec import RopeSpec
from forerun.speculation.tree import DraftTree
from tests.backends.native_ops import TABLES, exact, new_view, pack, plain_batch, run
from tests.backends.test_packed_weights import pack_stored, random_blocks
from tests.steps import Rows, make_batch

SMALL = 2.0**-9  # added to values that bfloat16 holds, so that rounding has something to do


class Comparison:
    """Runs a recording fused and one by one. heads: (G, D) of the one KV layer"""

    def __init__(self, table, threads=2, codec="bf16", heads=(1, 16), block_size=16):
        self.table, self.codec, self.heads, self.block_size = table, codec, heads, block_size
        self.pool = _native.ThreadPool(threads)
        self.kept = []  # matrices and vectors

    def matrix(self, outputs, inputs, kind="bf16"):
        """A random matrix, as bfloat16 or in a packed format."""
        if kind == "bf16":
            return pack(exact((outputs, inputs), outputs), self.pool)
        return pack_stored(kind, random_blocks(kind, outputs, inputs), inputs, self.pool, self.table)

    def bits(self, inputs, record, width, batch, fuse):
        """Kinds of what runs, and the bits of the result."""
        rows, outputs = batch.num_rows, len(batch.output_rows)
        program = _native.Program(self.table, self.pool, rows, outputs, 4096)
        views = [new_view(program, values.shape[1]) for values in inputs]
        for values, view in zip(inputs, views, strict=True):
            program.embed(pack(values, self.pool), view)
        program.linear(views[0], self.matrix(1, inputs[0].shape[1]), -1, new_view(program, 1))  # ends the stage
        result = record(program, views)
        if not result.on_outputs:
            out = _native.View(program.add_buffer(width, True), 0, width)
            program.select_outputs(result.view, out)
        else:
            out = result.view
        program.finish(out, fuse=fuse)
        blocks = -(-max(rows, 1024) // self.block_size)
        store = _native.KvStore(self.table, blocks, self.block_size, [(*self.heads, self.codec)])
        run(program, store, batch)
        return [shape.kind for shape in _native.op_shapes(program)], program.logits()[:outputs].view(np.int32).copy()

    def check(self, inputs, record, width, batch=None):
        """Compare; returns the kinds of the fused program behind those that make the inputs."""
        batch = batch or plain_batch(len(inputs[0]))
        single, want = self.bits(inputs, record, width, batch, False)
        fused, got = self.bits(inputs, record, width, batch, True)
        assert not any("+" in kind for kind in single)
        np.testing.assert_array_equal(got, want)
        assert fused[:2] == ["embed+round", "linear"]
        return fused[2:]


class Result:
    """Where a recording leaves its result."""

    def __init__(self, view, on_outputs=False):
        self.view, self.on_outputs = view, on_outputs


def sum_norm_linear(compare, width, kind, reads_norm=False, reads_sum=True):
    """A recording: sum, norm and a linear layer beside others that read the sum or the norm, or do not."""
    matrix, weight = compare.matrix(40, width, kind), exact((width,), 2)

    def record(program, views):
        total, normed, out = new_view(program, width), new_view(program, width), program.add_buffer(40 + width, False)
        program.add(views[0], views[1], total)
        program.rms_norm(total, program.add_vector(weight), 1e-5, normed)
        program.linear(normed, matrix, -1, _native.View(out, 0, 40))
        read = normed if reads_norm else total if reads_sum else views[0]
        program.add(read, views[1], _native.View(out, 40, width))
        return Result(_native.View(out, 0, 40 + width))

    return record


every_table = pytest.mark.parametrize("table", TABLES)
every_size = pytest.mark.parametrize(("num_rows", "threads"), [(1, 2), (3, 1), (16, 2), (17, 3), (70, 4)])

# ---- rows ----


@every_table
@every_size
@pytest.mark.parametrize(("width", "kind"), [(33, "bf16"), (700, "bf16"), (96, "Q4_1"), (288, "Q8_0"), (1024, "Q6_K")])
def test_sum_norm_and_rounding(table, num_rows, threads, width, kind):
    x, y = exact((num_rows, width), 0, 3.0), exact((num_rows, width), 1, SMALL)
    y[num_rows // 2, 5] = np.nan
    compare = Comparison(table, threads)
    kinds = compare.check([x, y], sum_norm_linear(compare, width, kind), 40 + width)
    assert kinds == ["add+rms_norm+round", "linear", "add", "select_outputs"]


@every_table
@every_size
@pytest.mark.parametrize(("width", "kind"), [(33, "bf16"), (700, "bf16"), (96, "Q4_1"), (1024, "Q6_K")])
def test_activation_and_rounding(table, num_rows, threads, width, kind):
    compare = Comparison(table, threads)
    matrix = compare.matrix(50, width, kind)

    def record(program, views):
        product, out = new_view(program, width), new_view(program, 50)
        program.silu_mul(_native.View(0, 0, width), _native.View(0, width, width), product)
        program.linear(product, matrix, -1, out)
        return Result(out)

    kinds = compare.check([exact((num_rows, 2 * width), 0, 3.0)], record, 50)
    assert kinds == ["silu_mul+round", "linear", "select_outputs"]


class Gated:
    """A recording: a linear layer whose first half gates the second, and one that reads that."""

    def __init__(self, compare, inputs, half, kinds, *, bias=False):
        self.half, self.has_bias = half, bias
        self.first, self.second = compare.matrix(2 * half, inputs, kinds[0]), compare.matrix(40, half, kinds[1])

    def __call__(self, program, views):
        product, out = new_view(program, self.half), program.add_buffer(40 + self.half, False)
        both = program.add_buffer(2 * self.half, False)
        bias = program.add_vector(exact((2 * self.half,), 4)) if self.has_bias else -1
        program.linear(views[0], self.first, bias, _native.View(both, 0, 2 * self.half))
        program.silu_mul(*self.halves(both), product)
        program.linear(product, self.second, -1, _native.View(out, 0, 40))
        self.behind(program, both, product, _native.View(out, 40, self.half))
        return Result(_native.View(out, 0, 40 + self.half))

    def halves(self, both):
        return [_native.View(both, column, self.half) for column in (0, self.half)]

    def behind(self, program, both, product, out):
        program.rms_norm(_native.View(0, 0, self.half), program.add_vector(exact((self.half,), 3)), 1e-6, out)


@every_table
@pytest.mark.parametrize(
    ("num_rows", "threads"), [(1, 2), (3, 1), (16, 2), (17, 3), (33, 2), (64, 2), (70, 4), (1600, 2)]
)
@pytest.mark.parametrize(
    ("half", "kinds"), [(96, ("Q4_1", "Q8_0")), (256, ("Q8_0", "Q4_K")), (512, ("Q6_K", "Q5_0")), (256, ("Q4_K",) * 2)]
)
def test_a_linear_layer_gates_its_outputs(table, num_rows, threads, half, kinds):
    x = exact((num_rows, 512), 0, 3.0)
    x[num_rows // 2, 5] = np.nan
    compare = Comparison(table, threads)
    found = compare.check([x], Gated(compare, 512, half, kinds), 40 + half)
    gated = ["linear+silu_mul+round"] if table == "amx_bf16" else ["linear", "silu_mul+round"]
    assert found == ["round", *gated, "linear", "rms_norm", "select_outputs"]


class ReadsProduct(Gated):
    def behind(self, program, both, product, out):
        program.add(product, product, out)


class ReadsGates(Gated):
    def behind(self, program, both, product, out):
        program.add(self.halves(both)[0], product, out)


class Keeps(Gated):
    def behind(self, program, both, product, out):
        super().behind(program, both, product, out)
        program.keep(_native.View(both, 0, 2 * self.half))


class Swapped(Gated):
    def halves(self, both):
        return super().halves(both)[::-1]


@every_table
@pytest.mark.parametrize("recording", [ReadsProduct, ReadsGates, Keeps, Swapped])
def test_gated_outputs_that_somebody_reads_are_written(table, recording):
    compare = Comparison(table)
    found = compare.check([exact((5, 256))], recording(compare, 256, 256, ("Q4_0", "Q4_0")), 40 + 256)
    assert "linear+silu_mul+round" not in found


@every_table
@pytest.mark.parametrize(("half", "kinds"), [(96, ("bf16", "Q4_0")), (96, ("Q4_0", "bf16")), (72, ("Q4_0", "bf16"))])
def test_only_packed_layers_gate(table, half, kinds):
    compare = Comparison(table)
    found = compare.check([exact((5, 96))], Gated(compare, 96, half, kinds), 40 + half)
    assert "linear+silu_mul+round" not in found


@every_table
def test_a_layer_with_a_bias_does_not_gate(table):
    compare = Comparison(table)
    found = compare.check([exact((5, 256))], Gated(compare, 256, 96, ("Q4_0", "Q4_0"), bias=True), 40 + 96)
    assert "linear+silu_mul+round" not in found


@every_table
def test_layers_side_by_side_share_what_was_rounded(table):
    """Two packed formats and bfloat16, which needs no sums of inputs, or other inputs than packed formats."""
    compare = Comparison(table)
    matrices = [compare.matrix(32, 256, kind) for kind in ("Q4_0", "bf16", "Q6_K")]

    def record(program, views):
        normed, out = new_view(program, 256), program.add_buffer(96, False)
        program.rms_norm(views[0], program.add_vector(exact((256,), 3)), 1e-6, normed)
        for index, matrix in enumerate(matrices):
            program.linear(normed, matrix, -1, _native.View(out, 32 * index, 32))
        return Result(_native.View(out, 0, 96))

    kinds = compare.check([exact((21, 256))], record, 96)
    first = ["linear", "round"] if table in (*INT16_TABLES, "amx_bf16") else ["linear"]
    assert kinds == ["rms_norm+round", *first, "linear", "round", "linear", "select_outputs"]


# ---- what must stay ----


@every_table
@pytest.mark.parametrize("num_rows", [1, 40])
def test_a_value_that_is_read_again_is_written(table, num_rows):
    x, y = exact((num_rows, 200), 0, 3.0), exact((num_rows, 200), 1, SMALL)
    compare = Comparison(table)
    assert compare.check([x, y], sum_norm_linear(compare, 200, "bf16", reads_norm=True), 240)[0] == "add+rms_norm+round"
    assert compare.check([x, y], sum_norm_linear(compare, 200, "bf16", reads_sum=False), 240)[0] == "add+rms_norm+round"


@every_table
def test_part_of_a_value_that_is_read_again_is_written(table):
    """Its first columns are written anew in between, the others are not."""
    compare = Comparison(table)
    matrix = compare.matrix(48, 96)

    def record(program, views):
        buffer, out = program.add_buffer(96, False), new_view(program, 96)
        normed = _native.View(buffer, 0, 96)
        program.rms_norm(views[0], program.add_vector(exact((96,), 3)), 1e-6, normed)
        program.linear(normed, matrix, -1, _native.View(buffer, 0, 48))
        program.add(normed, normed, out)
        return Result(out)

    assert compare.check([exact((5, 96))], record, 96)[0] == "rms_norm+round"


@every_table
def test_a_value_that_is_the_result_is_written(table):
    compare = Comparison(table)
    matrix = compare.matrix(8, 64)

    def record(program, views):
        chosen, normed = (_native.View(program.add_buffer(64, True), 0, 64) for _ in range(2))
        program.select_outputs(views[0], chosen)
        program.rms_norm(chosen, program.add_vector(exact((64,), 3)), 1e-6, normed)
        program.linear(normed, matrix, -1, _native.View(program.add_buffer(8, True), 0, 8))
        return Result(normed, on_outputs=True)

    kinds = compare.check([exact((5, 64))], record, 64)
    assert kinds == ["select_outputs+rms_norm+round", "linear"]


@every_table
def test_operations_on_other_rows_stay_apart(table):
    """All rows first, the output rows behind: fewer, and in another order."""
    compare = Comparison(table)
    batch = plain_batch(20)
    batch = replace(batch, output_rows=np.array([19, 3, 4], np.int32))

    def record(program, views):
        total = new_view(program, 75)
        chosen, normed = (_native.View(program.add_buffer(75, True), 0, 75) for _ in range(2))
        program.add(views[0], views[1], total)
        program.select_outputs(total, chosen)
        program.rms_norm(chosen, program.add_vector(exact((75,), 3)), 1e-6, normed)
        return Result(normed, on_outputs=True)

    kinds = compare.check([exact((20, 75)), exact((20, 75), 1, SMALL)], record, 75, batch)
    assert kinds == ["add", "select_outputs+rms_norm"]


# ---- heads ----


def rotate_write_attend(heads, rotary_dim, order="qk", k_heads=None):
    """A recording over values [q | k | v] and small numbers to add. order: what is rotated, "vk" also the values"""
    num_heads, kv_heads, head_dim = heads
    widths = [num_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
    starts = dict(zip("qkv", np.cumsum([0, *widths[:2]]).tolist(), strict=True))
    cosine, sine = rope_table(RopeSpec(theta=1000.0, rotary_dim=rotary_dim), 4096)

    def record(program, views):
        both = program.add_buffer(sum(widths), False)
        program.add(views[0], views[1], _native.View(both, 0, sum(widths)))
        part = {n: _native.View(both, starts[n], w) for n, w in zip("qkv", widths, strict=True)}
        program.linear(views[0], pack(exact((1, sum(widths))), _native.ThreadPool(1)), -1, new_view(program, 1))
        table = program.add_rope_table(cosine, sine)
        for name in order:
            program.rope(part[name], num_heads if name == "q" else k_heads or kv_heads, rotary_dim, table)
        program.write_kv(0, part["k"], part["v"], kv_heads)
        out = new_view(program, widths[0])
        program.attention(0, part["q"], num_heads, kv_heads, head_dim**-0.5, 0, out)
        return Result(out)

    return record, sum(widths)


def check_heads(compare, batch, heads, rotary_dim, **changes):
    record, width = rotate_write_attend(heads, rotary_dim, **changes)
    inputs = [exact((batch.num_rows, width), 0, 2.0), exact((batch.num_rows, width), 1, SMALL)]
    batch = replace(batch, tokens=np.arange(batch.num_rows, dtype=np.int32))
    kinds = compare.check(inputs, record, heads[0] * heads[2], batch)
    return kinds[kinds.index("linear") + 1 : -2]


HEADS = [((9, 3, 64), 64), ((4, 1, 32), 20), ((5, 5, 80), 80), ((6, 2, 6), 4), ((2, 2, 272), 64)]


@every_table
@pytest.mark.parametrize("codec", ["bf16", "fp32"])
@pytest.mark.parametrize(("heads", "rotary_dim"), HEADS, ids=str)
@pytest.mark.parametrize(("num_rows", "threads", "block_size"), [(1, 2, 16), (2, 1, 32), (47, 2, 32), (210, 4, 48)])
def test_rotations_and_writing(table, codec, heads, rotary_dim, num_rows, threads, block_size):
    compare = Comparison(table, threads, codec, heads[1:], block_size)
    blocks = np.random.default_rng(1).permutation(1024 // block_size)[: -(-num_rows // block_size)]
    batch = make_batch([Rows([0] * num_rows, 0, [int(block) for block in blocks])], block_size)
    assert check_heads(compare, batch, heads, rotary_dim) == ["rope+write_kv"]


@every_table
@pytest.mark.parametrize("codec", ["bf16", "fp32"])
@pytest.mark.parametrize("block_size", [16, 32])
def test_rotations_and_writing_of_many_sequences(table, codec, block_size):
    """Single rows beside each other, a few rows across blocks, and trees."""
    heads = (6, 2, 32)
    tree = DraftTree.from_paths(5, [[6, 7, 8], [6, 9], [11, 12, 13, 14]])
    parts = [Rows([0], 0, [20]), Rows([0] * 21, 0, [3, 1]), *(Rows([0], 0, [b]) for b in (9, 4, 5))]
    parts += [Rows([], 0, [7], tree), Rows([0, 0], 0, [12]), Rows([0] * 3, 0, [30])]
    compare = Comparison(table, 2, codec, heads[1:], block_size)
    assert check_heads(compare, make_batch(parts, block_size), heads, 32) == ["rope+write_kv"]


@every_table
@pytest.mark.parametrize(
    ("order", "k_heads"), [("vk", None), ("kk", None), ("qk", 1)], ids=["values too", "twice", "across heads"]
)
def test_other_rotations_stay_apart(table, order, k_heads):
    heads = (4, 2, 32)
    compare = Comparison(table, 2, "bf16", heads[1:])
    kinds = check_heads(compare, plain_batch(40), heads, 32, order=order, k_heads=k_heads)
    assert kinds[-1] != "rope+write_kv" or kinds == ["rope", "rope+write_kv"]
    assert kinds[0] == "rope"
