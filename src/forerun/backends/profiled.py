"""ProfiledCpuBackend: a CpuBackend that tells a Profile how long every operation and every draw took.

Operations are told apart by kind, shape and weight format; layers are not. Those that run together count as one, named
by its parts: "add+norm+round".
"""

import time
from collections.abc import Sequence

import numpy as np

from forerun import _native
from forerun.backends.base import ForwardResult, Limits, LoadedModel, Progress
from forerun.backends.cpu import CpuBackend
from forerun.backends.cpu_program import CpuResult
from forerun.batch import Batch, Drawn
from forerun.profile import Profile

NAMES = {"rms_norm": "norm", "silu_mul": "silu", "select_outputs": "select"}  # others are named as they are recorded


class ProfiledCpuBackend(CpuBackend):
    """Computes what CpuBackend computes, in the same way, with the clock read around every operation."""

    def __init__(
        self,
        profile: Profile,
        threads: int | None = None,
        isa: str | None = None,
        fault: str | None = None,
        weights: str = "file",
    ) -> None:
        super().__init__(threads, isa, fault, weights)
        self._profile = profile
        self._names: Sequence[str] = ()

    def load(
        self,
        model: LoadedModel,
        limits: Limits,
        progress: Progress | None = None,
        captures: Sequence[int] = (),
    ) -> None:
        super().load(model, limits, progress, captures)
        self._names = [_name(shape) for shape in _native.op_shapes(self.program)]

    def forward(self, batch: Batch) -> CpuResult:
        _native.time_ops(self.program, True)  # again, in case somebody else who timed them has stopped
        result = super().forward(batch)
        self._profile.record_ops(self._names, _native.op_spans(self.program))
        return result

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        begin = time.perf_counter_ns()
        drawn = super().draw(result, batch)
        span = [[begin, time.perf_counter_ns()]]
        self._profile.record_ops(["draw"], np.array([span, span]))  # all of it on the caller's thread
        return drawn


def _name(shape: _native.OpShape) -> str:
    """Kind, and for a matrix alone its shape and the bits of a packed weight."""
    if shape.kind != "linear":
        return "+".join(NAMES.get(kind, kind) for kind in shape.kind.split("+"))
    bits = 8 * shape.weight_bytes / (shape.inputs * shape.outputs)
    return f"linear {shape.inputs} x {shape.outputs}, {bits:.1f} bits"
