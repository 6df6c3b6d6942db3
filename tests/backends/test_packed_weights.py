"""Weights in the file's own bits: every format in every kernel table, against the numbers that the file means."""

import gguf
import numpy as np
import pytest

from forerun import _native
from forerun.backends.cpu import INT16_TABLES
from forerun.backends.reference_kv import round_to_bf16
from forerun.models.files.dequantise import dequantise
from tests.backends.native_ops import (
    TABLES,
    Bench,
    exact,
    new_view,
    pack,
    packed_inputs,
    plain_batch,
    round_to_int16,
    run,
)

ROUNDING_TABLES = ("amx_bf16",)  # weights become bfloat16
FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where scales lie in a block


def random_blocks(name, rows, inputs, seed=0, powers_of_two=False):
    """[rows, bytes] blocks of any codes, with scales of both signs, zero and float16's smallest among them."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * inputs // block_size, block_bytes), np.uint8)
    for start in HALVES.get(name, (0,)):
        if powers_of_two:
            scales = np.ldexp(rng.choice((-1, 1), len(blocks)), rng.integers(-3, 1, len(blocks))).astype(np.float16)
        else:
            scales = (rng.standard_normal(len(blocks)) * 0.05).astype(np.float16)
            scales[::7], scales[3::11], scales[5::13] = 0, np.float16(6e-8), np.float16(-3e-5)
        blocks[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def values_of(name, blocks, inputs):
    kind = gguf.GGMLQuantizationType[name]
    return dequantise(blocks.reshape(-1), kind, len(blocks) * inputs).reshape(len(blocks), inputs)


def pack_stored(name, blocks, inputs, pool, table=TABLES[0]):
    arena = _native.Arena(_native.PackedMatrix.bytes(len(blocks), inputs, name))
    packed = _native.PackedMatrix(arena, len(blocks), inputs, name, table)
    half = len(blocks) // 32 * 16  # in two calls
    packed.pack_blocks(0, blocks[:half], pool)
    packed.pack_blocks(half, blocks[half:], pool)
    return packed


def linear(table, x, matrix, outputs, bias=None, threads=2):
    def record(program, views):
        out = new_view(program, outputs)
        program.linear(views[0], matrix, -1 if bias is None else program.add_vector(bias), out)
        return out

    return Bench(table, threads).run([x], record, outputs)


def multiplied_weights(table, packed, values):
    """What a table multiplies: the file's numbers, in tables with columns made bfloat16 as ones in the inputs show."""
    if table not in ROUNDING_TABLES:
        return values.astype(np.float64)
    outputs, inputs = values.shape
    ones = np.eye(inputs, dtype=np.float32)
    seen = np.concatenate([linear(table, ones[i : i + 512], packed, outputs) for i in range(0, inputs, 512)]).T
    np.testing.assert_array_equal(seen, round_to_bf16(seen))
    assert np.all(np.abs(seen - values) <= 2.0**-7.4 * np.abs(values) + 1e-6 * np.max(np.abs(values)))
    error = np.log2(np.abs(seen[values != 0]) / np.abs(values[values != 0]))
    assert abs(np.mean(error[np.isfinite(error)])) < 1e-3  # cutting bits off alone would make it -0.004
    return seen.astype(np.float64)


def linear_of_sum(table, x, y, matrix, outputs):
    """The same of x + y, which bfloat16 need not hold."""

    def record(program, views):
        total, out = new_view(program, x.shape[1]), new_view(program, outputs)
        program.add(views[0], views[1], total)
        program.linear(total, matrix, -1, out)
        return out

    return Bench(table).run([x, y], record, outputs)


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_a_packed_matrix_are_the_files(name):
    outputs, inputs = 37, 512
    blocks, pool = random_blocks(name, outputs, inputs), _native.ThreadPool(2)
    packed = pack_stored(name, blocks, inputs, pool)
    program = _native.Program(TABLES[0], pool, outputs, outputs, 64)
    rows = _native.View(program.add_buffer(inputs, False), 0, inputs)
    program.embed(packed, rows)
    out = _native.View(program.add_buffer(inputs, True), 0, inputs)
    program.select_outputs(rows, out)
    program.finish(out)
    run(program, _native.KvStore(TABLES[0], 64, 16, [(1, 1, "fp32")]), plain_batch(outputs))
    np.testing.assert_array_equal(program.logits()[:outputs], values_of(name, blocks, inputs))


def test_blocks_that_do_not_fit_are_refused():
    arena, pool = _native.Arena(1 << 16), _native.ThreadPool(1)
    with pytest.raises(ValueError, match="no multiple of the blocks of Q4_K"):
        _native.PackedMatrix(arena, 16, 128, "Q4_K")
    with pytest.raises(ValueError, match="no packed weight format named 'Q2_K'"):
        _native.PackedMatrix(arena, 16, 256, "Q2_K")
    packed = _native.PackedMatrix(arena, 40, 64, "Q4_0")
    with pytest.raises(ValueError, match="a row of blocks"):
        packed.pack_blocks(0, np.zeros((16, 35), np.uint8), pool)
    with pytest.raises(ValueError, match="multiple of 16 rows"):
        packed.pack_blocks(8, np.zeros((16, 36), np.uint8), pool)
    with pytest.raises(IndexError, match="not in a matrix of 40 rows"):
        packed.pack_blocks(32, np.zeros((9, 36), np.uint8), pool)
    with pytest.raises(ValueError, match="packed from blocks"):
        packed.pack_rows(0, np.zeros((16, 64), np.float32), pool)


SHAPES = [(16, 256), (1, 512), (50, 768), (161, 2304)]
ROWS = (1, 2, 3, 7, 8, 9, 16, 17, 31, 32, 33, 48, 49, 64)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_linear_is_right_and_a_row_does_not_depend_on_others(table, name, outputs, inputs):
    blocks, pool = random_blocks(name, outputs, inputs), _native.ThreadPool(2)
    packed, values = pack_stored(name, blocks, inputs, pool, table), values_of(name, blocks, inputs)
    x, bias = exact((64, inputs)), exact((outputs,), 2)
    everything = linear(table, x, packed, outputs, bias)
    weights = multiplied_weights(table, packed, values)
    size = np.abs(x) @ np.abs(weights).T + np.abs(bias)
    want = packed_inputs(table, x) @ weights.T + bias
    assert np.max(np.abs(everything - want) / size) < 2e-6
    for rows in ROWS:
        got = linear(table, x[:rows], packed, outputs, bias, threads=1 + rows % 3)
        np.testing.assert_array_equal(got, everything[:rows])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", TABLES)
def test_linear_of_small_whole_numbers_is_exact(table, name):
    """Every product and sum fits float32, so that no order of rounding can hide a wrong weight."""
    outputs, inputs = 50, 768
    blocks, pool = random_blocks(name, outputs, inputs, powers_of_two=True), _native.ThreadPool(2)
    packed, values = pack_stored(name, blocks, inputs, pool, table), values_of(name, blocks, inputs)
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (40, inputs)).astype(np.float32)
    want = x.astype(np.float64) @ multiplied_weights(table, packed, values).T
    got = linear(table, x, packed, outputs)
    if table in ROUNDING_TABLES and name in (
        "Q4_K",
        "Q5_K",
    ):  # minima leave crumbs of scales
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-7 * np.max(np.abs(want)))
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("alike", [("avx512", "avx512_bf16"), INT16_TABLES])
@pytest.mark.parametrize("name", FORMATS)
def test_tables_of_the_same_arithmetic_agree_to_the_bit(name, alike):
    alike = [table for table in alike if table in TABLES]
    if len(alike) < 2:
        pytest.skip("this CPU lacks the tables")
    blocks, pool = random_blocks(name, 50, 768), _native.ThreadPool(2)
    packed, x = pack_stored(name, blocks, 768, pool, alike[0]), exact((21, 768))
    results = [linear(table, x, packed, 50) for table in alike]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("name", ["Q4_1", "Q6_K"])
@pytest.mark.parametrize("table", TABLES)
def test_linear_of_many_rows_and_inputs(table, name):
    """Many rows take several ranges of inputs; so do few, where inputs are laid out for them."""
    inputs = 1792
    blocks, pool = random_blocks(name, 150, inputs), _native.ThreadPool(2)
    packed = pack_stored(name, blocks, inputs, pool, table)
    x = exact((530, inputs))
    everything = linear(table, x, packed, 150)
    for start, rows in ((0, 16), (100, 1), (300, 5), (480, 50)):
        got = linear(table, x[start : start + rows], packed, 150, threads=1 + rows % 2)
        np.testing.assert_array_equal(got, everything[start : start + rows])


@pytest.mark.parametrize("table", TABLES)
def test_totals_of_many_outputs_wait_between_ranges_of_inputs(table):
    """12 rows take the inputs in ranges, with more panels than fit the scratch memory; one row takes all at once."""
    outputs, inputs = 1500, 1024
    blocks, pool = random_blocks("Q4_0", outputs, inputs), _native.ThreadPool(2)
    packed, x = pack_stored("Q4_0", blocks, inputs, pool, table), exact((12, inputs))
    alone = [linear(table, row[None], packed, outputs) for row in x]
    np.testing.assert_array_equal(linear(table, x, packed, outputs, threads=1), np.concatenate(alone))


@pytest.mark.parametrize("table", TABLES)
def test_a_matrix_of_another_format_shares_rounded_inputs(table):
    """A stack of matrices is rounded once; the second part needs what the first did not."""
    pool, x = _native.ThreadPool(2), exact((20, 256))
    blocks = random_blocks("Q4_1", 32, 256)
    q4, plain = pack_stored("Q4_1", blocks, 256, pool, table), pack(exact((32, 256), 3), pool)
    for first, second in ((plain, q4), (q4, plain)):

        def record(program, views, first=first, second=second):
            buffer = program.add_buffer(64, False)
            program.linear(views[0], first, -1, _native.View(buffer, 0, 32))
            program.linear(views[0], second, -1, _native.View(buffer, 32, 32))
            return _native.View(buffer, 0, 64)

        got = Bench(table, 2).run([x], record, 64)
        want = np.concatenate([linear(table, x, first, 32), linear(table, x, second, 32)], axis=1)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", TABLES)
def test_any_number_of_rows_gives_the_same_bits(table, name):
    outputs, inputs = 83, 512
    blocks, pool = random_blocks(name, outputs, inputs), _native.ThreadPool(2)
    packed, x = pack_stored(name, blocks, inputs, pool, table), exact((64, inputs))
    want = np.concatenate([linear(table, row[None], packed, outputs, threads=1) for row in x])
    for count in range(1, 65):
        rows = np.random.default_rng(count).permutation(64)[:count]
        got = linear(table, x[rows], packed, outputs, threads=1 + count % 4)
        np.testing.assert_array_equal(got.view(np.int32), want[rows].view(np.int32), err_msg=f"{count} rows")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", TABLES)
def test_inputs_of_any_size(table, name):
    """Large and small magnitudes in one row, rows of zeros and of what float32 hardly holds, a ragged last group."""
    outputs, inputs = 19, 768 if name.endswith("K") else 608
    blocks, pool = random_blocks(name, outputs, inputs), _native.ThreadPool(2)
    packed, weights = pack_stored(name, blocks, inputs, pool, table), values_of(name, blocks, inputs)
    rng = np.random.default_rng(3)
    x = exact((9, inputs), 4)
    x[0] = 0.0
    x[1, :256] = 0.0
    x[2] *= np.float32(2.0**110)
    x[3] *= np.float32(2.0**-90)
    x[4] *= np.float32(2.0**-126)
    x[5, rng.choice(inputs, 5, replace=False)] *= 1024.0
    x[6] = exact((inputs,), 5) * np.ldexp(np.float32(1), rng.integers(-30, 30, inputs)).astype(np.float32)
    x[7] = np.float32(1e-40)
    x[8] = np.where(rng.random(inputs) < 0.5, np.float32(255 * 2.0**90), -np.float32(255 * 2.0**90))
    got = linear(table, x, packed, outputs)
    weights = multiplied_weights(table, packed, weights)
    size = np.abs(x.astype(np.float64)) @ np.abs(weights).T
    want = packed_inputs(table, x) @ weights.T
    assert np.all(np.abs(got - want) <= 2e-6 * size + 2.0**-94)
    assert not got[0].any()


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("table", TABLES)
def test_a_wild_input_shows_in_all_outputs_of_its_row(table, wild):
    outputs, inputs = 50, 768
    blocks, pool = random_blocks("Q4_1", outputs, inputs, powers_of_two=True), _native.ThreadPool(2)
    packed, x = pack_stored("Q4_1", blocks, inputs, pool, table), exact((11, inputs))
    calm = linear(table, x, packed, outputs)
    x[4, 300] = wild
    got = linear(table, x, packed, outputs)
    assert not np.isfinite(got[4]).any()
    np.testing.assert_array_equal(np.delete(got, 4, 0), np.delete(calm, 4, 0))


@pytest.mark.parametrize("table", INT16_TABLES)
def test_inputs_of_16_bits_follow_their_definition(table):
    """Whole numbers as weights show what inputs became."""
    if table not in TABLES:
        pytest.skip("this CPU lacks the table")
    inputs, pool = 544, _native.ThreadPool(1)
    blocks = np.zeros((inputs, inputs // 32, 34), np.uint8)  # of Q8_0: a unit matrix
    blocks[:, :, :2] = np.array([1.0], np.float16).view(np.uint8)
    blocks[np.arange(inputs), np.arange(inputs) // 32, 2 + np.arange(inputs) % 32] = 1
    unit = pack_stored("Q8_0", blocks.reshape(inputs, -1), inputs, pool, table)
    x = exact((7, inputs), 1) * np.ldexp(np.float32(1), np.random.default_rng(2).integers(-12, 12, inputs))
    for row, largest in enumerate((2 - 2**-7, 2 - 2**-6, 2 - 2**-6 - 2**-7)):
        x[row] = np.where(np.abs(x[row]) > largest, np.sign(x[row]) * np.float32(largest), x[row])
    np.testing.assert_array_equal(linear(table, x, unit, inputs), round_to_int16(x).astype(np.float32))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", TABLES)
def test_a_code_beside_the_largest_input_stays_in_16_bits(table, name):
    """Eight rows may be multiplied as sums of inputs and codes; a row alone is not."""
    outputs, inputs = 40, 512
    packed = pack_stored(name, random_blocks(name, outputs, inputs), inputs, _native.ThreadPool(1), table)
    bound = np.repeat(np.array([2, 2 - 2**-6, 1, 2 - 2**-7], np.float32), 2)[:, None]
    below = np.repeat(np.array([2**-14, 2**-20, 2**-15, 0], np.float32), 2)[:, None]
    sign = np.random.default_rng(6).choice(np.array([-1, 1], np.float32), (8, inputs))
    sign[0], sign[4] = 1, -1
    x, y = sign * bound, -sign * below
    together = linear_of_sum(table, x, y, packed, outputs)
    for row in range(8):
        alone = linear_of_sum(table, x[row : row + 1], y[row : row + 1], packed, outputs)
        np.testing.assert_array_equal(together[row], alone[0])


@pytest.mark.parametrize("table", TABLES)
def test_outputs_that_no_cache_would_keep(table):
    """Logits of many rows are written another way, and are as wide as the vocabulary: in whole cache lines or not."""
    for outputs in (33_024, 33_037):
        blocks, pool = random_blocks("Q4_0", outputs, 32), _native.ThreadPool(2)
        packed, x = pack_stored("Q4_0", blocks, 32, pool, table), exact((64, 32))
        everything = linear(table, x, packed, outputs)
        for row in (0, 7, 8, 63):
            np.testing.assert_array_equal(everything[row], linear(table, x[row : row + 1], packed, outputs)[0])
