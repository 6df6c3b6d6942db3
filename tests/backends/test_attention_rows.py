"""Attention alone, bit for bit: a row is the same in sets of any size, in any task, on any number of threads."""

import numpy as np
import pytest

from forerun import _native
from tests.backends.native_ops import TABLES, Float32, exact, pack, run
from tests.steps import Rows, make_batch

CONTEXT = 550  # so that the rows behind it begin a chunk, end it, and begin a span's second chunk
ROWS = 64
LAST = CONTEXT + ROWS
BLOCKS = list(range(LAST // 16 + 1))[::-1]


class Attention:
    """Attention of LAST positions of one sequence, whose keys and values are in the store.

    heads  (H, G, D)
    """

    def __init__(self, table: str, codec: str, heads: tuple[int, int, int], threads: int) -> None:
        num_heads, kv_heads, head_dim = heads
        pool = _native.ThreadPool(threads)
        self.program = _native.Program(table, pool, LAST, LAST, 4096)
        widths = (num_heads * head_dim, kv_heads * head_dim, kv_heads * head_dim)
        views = [_native.View(self.program.add_buffer(width, False), 0, width) for width in widths]
        for seed, (view, width) in enumerate(zip(views, widths, strict=True)):
            self.program.embed(pack(exact((LAST, width), seed), pool), view)
        self.program.write_kv(0, views[1], views[2], kv_heads)
        self.program.attention(0, views[0], num_heads, kv_heads, head_dim**-0.5, 0, views[0])
        out = _native.View(self.program.add_buffer(widths[0], True), 0, widths[0])
        self.program.select_outputs(views[0], out)
        self.program.finish(out)
        self.store = _native.KvStore(table, len(BLOCKS), 16, [(kv_heads, head_dim, codec)])
        self.rows(0, LAST)

    def rows(self, first: int, count: int) -> Float32:
        """[count, H * D] of positions first .. first + count - 1, computed together."""
        batch = make_batch([Rows(list(range(first, first + count)), first, BLOCKS)], 16)
        run(self.program, self.store, batch)
        return self.program.logits()[:count].copy()


def same(left: Float32, right: Float32, message: str) -> None:
    np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32), err_msg=message)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("codec", ["bf16", "fp32"])
@pytest.mark.parametrize("heads", [(9, 3, 64), (6, 1, 128), (7, 1, 40)], ids=str)
def test_any_number_of_rows_gives_the_same_bits(table, codec, heads):
    attention = Attention(table, codec, heads, threads=2)
    alone = np.concatenate([attention.rows(CONTEXT + i, 1) for i in range(ROWS)])
    assert np.isfinite(alone).all()
    for count in range(2, ROWS + 1):
        first = (ROWS - count) // 2
        same(attention.rows(CONTEXT + first, count), alone[first : first + count], f"{count} rows")


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("threads", [1, 3, 4])
def test_any_number_of_threads_gives_the_same_bits(table, threads):
    heads = (9, 3, 64)
    two, other = Attention(table, "bf16", heads, 2), Attention(table, "bf16", heads, threads)
    for count in (1, 4, 16, 33, 64):
        same(other.rows(CONTEXT, count), two.rows(CONTEXT, count), f"{count} rows")


@pytest.mark.parametrize("table", TABLES)
def test_rows_of_other_sequences_change_nothing(table):
    attention = Attention(table, "bf16", (9, 3, 64), threads=2)
    alone = attention.rows(CONTEXT, 5)
    both = make_batch([Rows(list(range(40)), 0, BLOCKS), Rows(list(range(CONTEXT, CONTEXT + 5)), CONTEXT, BLOCKS)], 16)
    run(attention.program, attention.store, both)
    same(attention.program.logits()[40:45].copy(), alone, "behind a prompt of 40 tokens")
