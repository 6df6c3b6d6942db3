"""What benches ask of the native module: the limits of the machine, and the time of each operation of a program.

Beside backends/cpu, because only backends know the native module. Nothing here runs while a model serves.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from forerun import _native
from forerun.backends.cpu import CpuBackend


class MachineMeter:
    """Reads a buffer and multiplies numbers as fast as this machine can, on one thread or on `threads`.

    buffer_bytes  of the buffer, filled at once, on huge pages where they can be had; at least a page a thread
    """

    def __init__(self, threads: int, buffer_bytes: int) -> None:
        self._one = _native.ThreadPool(1)
        self._all = _native.ThreadPool(threads)
        self._buffer = _native.ReadBuffer(buffer_bytes, self._all)

    read_loops = staticmethod(_native.read_loops)  # names of the ways to read
    multiply_loops = staticmethod(_native.multiply_loops)  # number formats, by instruction

    def read_rate(self, num_bytes: int, passes: int, loop: int, one_thread: bool) -> float:
        """Bytes per second of reading the first `num_bytes` of the buffer `passes` times."""
        return self._buffer.rate(num_bytes, passes, loop, self._pool(one_thread))

    def multiply_rate(self, loop: int, seconds: float, one_thread: bool) -> float:
        """Operations per second over at least `seconds`; a multiply-add is two operations."""
        return _native.multiply_rate(loop, seconds, self._pool(one_thread))

    def _pool(self, one_thread: bool) -> _native.ThreadPool:
        return self._one if one_thread else self._all


@dataclass(frozen=True)
class Op:
    """One operation of a program, or several that run together.

    kind             of the operation, or of its parts: "add+rms_norm+round"
    inputs, outputs  columns that it reads and writes for a row, 0 outputs: in place or into the KV store
    weight_bytes     packed, of its matrix or embedding table; 0 where an embedding runs together with others
    on_outputs       it runs on the output rows only
    """

    kind: str
    layer: int
    inputs: int
    outputs: int
    num_heads: int
    num_kv_heads: int
    weight_bytes: int
    on_outputs: bool


def program_ops(backend: CpuBackend) -> list[Op]:
    """The loaded model's operations, in the order in which they run."""
    return [
        Op(
            shape.kind,
            shape.layer,
            shape.inputs,
            shape.outputs,
            shape.num_heads,
            shape.num_kv_heads,
            shape.weight_bytes,
            shape.on_outputs,
        )
        for shape in _native.op_shapes(backend.program)
    ]


@contextmanager
def timed_ops(backend: CpuBackend) -> Iterator[None]:
    """Time every operation of the steps inside; `op_seconds` then tells those of the last step."""
    _native.time_ops(backend.program, True)
    try:
        yield
    finally:
        _native.time_ops(backend.program, False)


def op_seconds(backend: CpuBackend) -> list[float]:
    """Seconds of each operation in the last step, by index into `program_ops`. Only within `timed_ops`."""
    return [1e-9 * nanoseconds for nanoseconds in _native.op_ns(backend.program)]
