"""Weights in the file's own bits: every format and kernel table against the same weights as bfloat16, bit for bit."""

import gguf
import numpy as np
import pytest

from forerun import _native
from forerun.backends.reference import round_to_bf16
from forerun.models.files.dequantise import dequantise
from tests.backends.native_ops import TABLES, Bench, exact, new_view, pack, plain_batch, run

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}  # where scales lie in a block


def random_blocks(name, rows, inputs, seed=0):
    """[rows, bytes] blocks of any codes, with scales of both signs, zero and float16's smallest among them."""
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * inputs // block_size, block_bytes), np.uint8)
    for start in HALVES.get(name, (0,)):
        scales = (rng.standard_normal(len(blocks)) * 0.05).astype(np.float16)
        scales[::7], scales[3::11], scales[5::13] = 0, np.float16(6e-8), np.float16(-3e-5)
        blocks[:, start : start + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def values_of(name, blocks, inputs):
    kind = gguf.GGMLQuantizationType[name]
    return dequantise(blocks.reshape(-1), kind, len(blocks) * inputs).reshape(len(blocks), inputs)


def pack_stored(name, blocks, inputs, pool):
    arena = _native.Arena(_native.PackedMatrix.bytes(len(blocks), inputs, name))
    packed = _native.PackedMatrix(arena, len(blocks), inputs, name)
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


@pytest.mark.parametrize("name", FORMATS)
def test_unpacked_weights_are_the_files_rounded_to_bf16(name):
    outputs, inputs = 37, 512
    blocks, pool = random_blocks(name, outputs, inputs), _native.ThreadPool(2)
    packed = pack_stored(name, blocks, inputs, pool)
    program = _native.Program(TABLES[0], pool, outputs, outputs, 64)
    rows = _native.View(program.add_buffer(inputs, False), 0, inputs)
    program.embed(packed, rows)
    out = _native.View(program.add_buffer(inputs, True), 0, inputs)
    program.select_outputs(rows, out)
    program.finish(out)
    run(program, _native.KvStore(TABLES[0], 64, 16, "fp32", [(1, 1)]), plain_batch(outputs))
    want = round_to_bf16(values_of(name, blocks, inputs))
    np.testing.assert_array_equal(program.logits()[:outputs], want)


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


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 256), (1, 512), (50, 768), (161, 2304)])
def test_linear_has_the_bits_of_bf16_weights(table, name, outputs, inputs):
    blocks, pool = random_blocks(name, outputs, inputs), _native.ThreadPool(2)
    packed, bf16 = pack_stored(name, blocks, inputs, pool), pack(values_of(name, blocks, inputs), pool)
    x, bias = exact((64, inputs)), exact((outputs,), 2)
    everything = linear(table, x, bf16, outputs, bias)
    for rows in (1, 2, 7, 16, 17, 31, 32, 33, 48, 64):
        got = linear(table, x[:rows], packed, outputs, bias, threads=1 + rows % 3)
        np.testing.assert_array_equal(got, everything[:rows])


@pytest.mark.parametrize("table", TABLES[:1])
def test_linear_of_many_rows_and_inputs(table):
    """530 rows take two blocks of rows and several ranges of inputs."""
    blocks, pool = random_blocks("Q4_1", 150, 1760), _native.ThreadPool(2)
    packed, bf16 = pack_stored("Q4_1", blocks, 1760, pool), pack(values_of("Q4_1", blocks, 1760), pool)
    x = exact((530, 1760))
    np.testing.assert_array_equal(linear(table, x, packed, 150), linear(table, x, bf16, 150))
