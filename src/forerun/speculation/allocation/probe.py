"""Probes: before anything was served, a few forward passes show what a step with more rows costs on this machine."""

import time
from collections.abc import Callable

import numpy as np

from forerun.backends.base import Backend
from forerun.batch import Batch
from forerun.cache.layout import KvLayout

BUDGET_S = 0.3
CONTEXT = 16  # tokens before the probed rows


def probe_rows(row_tile: int, max_rows: int) -> list[int]:
    """Numbers of rows worth measuring, the most telling first: one, and both sides of the first tiles' ends."""
    tile = max(4, row_tile)
    return [n for n in dict.fromkeys((1, tile, 2 * tile, 32, tile + 1, tile // 2, 2)) if n <= max_rows]


def probe_steps(
    backend: Backend,
    layout: KvLayout,
    max_rows: int,
    budget_s: float = BUDGET_S,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[int, float]:
    """Rows -> seconds of a forward pass with that many rows of one sequence, all with logits; takes about `budget_s`.

    Uses the first blocks of the KV store and blanks them afterwards: no sequence may own them. What is expected not to
    fit the time is left out; one row is always measured, and nothing where the store is too small for that.
    """
    max_rows = min(max_rows, layout.num_blocks * layout.block_size - CONTEXT)
    if max_rows < 1:
        return {}
    start = clock()

    def measure(rows: int, first: int = CONTEXT) -> float:
        batch = _chain(first, rows, layout.block_size)
        before = clock()
        backend.forward(batch)
        return clock() - before

    measure(min(CONTEXT, max_rows), 0)  # writes the context, and meets cold caches
    found = {1: measure(1)}
    for _ in range(3):  # the smallest of three: what disturbs a step makes it longer
        for rows in probe_rows(backend.row_tile, max_rows):
            expected = found.get(rows) or max(found.values()) * max(1.0, rows / max(found))
            if clock() - start + expected > budget_s:
                continue
            seconds = measure(rows)
            found[rows] = min(seconds, found.get(rows, seconds))
    backend.clear_blocks(list(range(-(-(CONTEXT + max(found)) // layout.block_size))))
    return found


def _chain(first: int, rows: int, block_size: int) -> Batch:
    """`rows` rows of one sequence in the first blocks, from position `first` on, with logits."""
    positions = np.arange(first, first + rows, dtype=np.int32)
    num_blocks = -(-(first + rows) // block_size)
    return Batch(
        tokens=np.zeros(rows, np.int32),
        positions=positions,
        slots=positions,
        query_start=np.array([0, rows], np.int32),
        context_len=np.array([first], np.int32),
        block_table=np.arange(num_blocks, dtype=np.int32)[None],
        tree_root=np.array([-1], np.int32),
        ancestors=np.zeros(rows, np.uint64),
        output_rows=np.arange(rows, dtype=np.int32),
        draws=(),
    )
