"""Loader: reads a model's weights in chunks of rows and packs them for the native kernels, reporting its progress."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from forerun import _native
from forerun.backends.base import Progress, Weights
from forerun.backends.quantisation import quantise
from forerun.backends.weight_formats import BLOCK_INPUTS, PANEL, Part, packed_format, parts_of

CHUNK_BYTES = 32 << 20  # float32 bytes of a matrix that are read at once


class Loader:
    """The weights of one program.

    shapes  logical weights that are read
    choice  one of weight_formats.CHOICES
    table   kernel table that multiplies them
    """

    def __init__(
        self,
        weights: Weights,
        shapes: Mapping[str, tuple[int, ...]],
        choice: str,
        pool: _native.ThreadPool,
        table: str,
        progress: Progress | None = None,
    ) -> None:
        self._weights = weights
        self._choice = choice
        self._pool = pool
        self._table = table
        self._progress = progress
        self._shapes = dict(shapes)
        self._done = 0.0
        self._total = sum(weights.num_bytes(name) for name in self._shapes)
        self.vector_bytes = 0

    def parts(self, stack: tuple[str, ...]) -> tuple[Part, ...]:
        """How a stack of matrices is packed."""
        return parts_of(stack, self._shapes, self._format)

    def matrix(self, part: Part, arena: _native.Arena) -> _native.PackedMatrix:
        """Pack the matrices of a part."""
        packed = _native.PackedMatrix(arena, part.num_rows, part.cols, part.format, self._table)
        start = 0
        for name, rows in zip(part.names, part.rows, strict=True):
            step = max(PANEL, CHUNK_BYTES // (4 * part.cols) // PANEL * PANEL)
            for first in range(0, rows, step):
                last = min(rows, first + step)
                self._pack(packed, start + first, name, first, last)
                self._advance(self._weights.num_bytes(name) * (last - first) / rows)
            start += rows
        return packed

    def repack(self, packed: _native.PackedMatrix, name: str, start: int, stop: int) -> None:
        """Read rows start..stop-1 of a matrix that was packed alone again; both are multiples of PANEL."""
        assert start % PANEL == 0 == stop % PANEL, "rows would share a panel with others"
        self._pack(packed, start, name, start, stop)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """A norm's weight or a bias."""
        values = self._weights.read(name)
        self.vector_bytes += values.nbytes
        self._advance(self._weights.num_bytes(name))
        return values

    def size(self, name: str) -> int:
        """Rows of a weight."""
        return self._shapes[name][0]

    def _format(self, name: str) -> str:
        return packed_format(self._weights.stored_format(name), self._shapes[name][1], self._choice)

    def _pack(self, packed: _native.PackedMatrix, at: int, name: str, first: int, last: int) -> None:
        kind = self._format(name)
        if kind not in BLOCK_INPUTS:
            packed.pack_rows(at, self._weights.read(name, first, last), self._pool)
        elif kind == self._weights.stored_format(name):
            packed.pack_blocks(at, self._weights.read_stored(name, first, last), self._pool)
        else:
            packed.pack_blocks(at, quantise(self._weights.read(name, first, last), kind), self._pool)

    def _advance(self, num_bytes: float) -> None:
        self._done += num_bytes
        if self._progress is not None:
            self._progress(min(round(self._done), self._total), self._total)
