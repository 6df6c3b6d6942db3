"""Single native operations as numpy functions, for tests: a program that embeds its inputs and hands out one result.

Inputs travel as embedding tables, which are bfloat16: use values that `exact` made representable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun import _native
from forerun.backends.cpu import INT16_TABLES
from forerun.backends.reference_kv import round_to_bf16
from forerun.batch import Batch
from tests.steps import Rows, make_batch

Float32 = npt.NDArray[np.float32]

INT16_INPUTS = 256  # of a row that share a scale

TABLES = [table for table in _native.all_tables() if not _native.missing_features(table)]


def exact(shape: Sequence[int], seed: int = 0, scale: float = 1.0) -> Float32:
    """Random normal values that bfloat16 holds exactly."""
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(scale)
    return round_to_bf16(values)


def round_to_int16(x: Float32) -> npt.NDArray[np.float64]:
    """x [R, K] as 16-bit numbers times a power of two that INT16_INPUTS of a row share.

    Groups without a magnitude above 2^-100 become zero, groups with an infinity or a NaN become NaN.
    """
    rounded = np.empty(x.shape, np.float64)
    for start in range(0, x.shape[1], INT16_INPUTS):
        group = x[:, start : start + INT16_INPUTS].astype(np.float64)
        largest = np.max(np.abs(group), axis=1, keepdims=True)
        finite = np.isfinite(largest)
        mantissa, exponent = np.frexp(np.where(finite, largest, 1.0))
        exponent += (mantissa >= 1 - 2**-7) - 15  # room for a code beside the largest number
        whole = np.rint(np.ldexp(np.where(finite, group, 0.0), -exponent))
        values = np.where(largest < 2.0**-100, 0.0, np.ldexp(whole, exponent))
        rounded[:, start : start + INT16_INPUTS] = np.where(finite, values, np.nan)
    return rounded


def packed_inputs(table: str, x: Float32) -> npt.NDArray[np.float64]:
    """What linear layers over packed weights multiply where x is exact in bfloat16."""
    return round_to_int16(x) if table in INT16_TABLES else x.astype(np.float64)


def pack(matrix: Float32, pool: _native.ThreadPool) -> _native.PackedMatrix:
    """A packed copy of `matrix` [N, K] in an arena of its own."""
    arena = _native.Arena(_native.PackedMatrix.bytes(*matrix.shape))
    packed = _native.PackedMatrix(arena, *matrix.shape)
    packed.pack_rows(0, np.ascontiguousarray(matrix, np.float32), pool)
    return packed


def plain_batch(num_rows: int) -> Batch:
    """Rows 0.. of one sequence that owns enough blocks."""
    return make_batch([Rows(list(range(num_rows)), 0, list(range(-(-num_rows // 16))))], 16)


@dataclass
class Bench:
    """Runs one operation: inputs are embedded, `record` appends the operation and says where its result is."""

    table: str
    threads: int = 2
    codec: str = "fp32"

    def run(
        self,
        inputs: Sequence[Float32],
        record: Callable[[_native.Program, list[_native.View]], _native.View],
        width: int,
        batch: Batch | None = None,
        heads: tuple[int, int] = (1, 1),
        blocks: tuple[int, int] = (64, 16),
    ) -> Float32:
        """[O, width] result. heads: (G, D) of the one KV layer; blocks: (number, size)."""
        batch = batch or plain_batch(len(inputs[0]))
        pool = _native.ThreadPool(self.threads)
        rows, outputs = batch.num_rows, len(batch.output_rows)
        program = _native.Program(self.table, pool, rows, outputs, 4096)
        views = []
        for values in inputs:
            buffer = program.add_buffer(values.shape[1], False)
            views.append(_native.View(buffer, 0, values.shape[1]))
            program.embed(pack(values, pool), views[-1])
        result = record(program, views)
        out = _native.View(program.add_buffer(width, True), 0, width)
        program.select_outputs(result, out)
        program.finish(out)
        self.store = _native.KvStore(self.table, *blocks, [(*heads, self.codec)])
        run(program, self.store, batch)
        return program.logits()[:outputs].copy()


def run(program: _native.Program, store: _native.KvStore, batch: Batch) -> None:
    """Run a program on a batch."""
    program.run(
        store,
        batch.tokens,
        batch.positions,
        batch.slots,
        batch.query_start,
        batch.context_len,
        batch.block_table,
        batch.tree_root,
        batch.ancestors,
        batch.output_rows,
    )


def new_view(program: _native.Program, width: int) -> _native.View:
    """A fresh buffer of all rows."""
    return _native.View(program.add_buffer(width, False), 0, width)
