"""CpuProgram: one forward pass on native kernels, built from a recording; its logits and what draws from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forerun import _native
from forerun.backends.base import ForwardResult, Limits
from forerun.backends.packing import Loader
from forerun.backends.recorder import BufferPlan, Recorder, Step, Value, plan_buffers
from forerun.batch import Batch, Drawn
from forerun.models.rope import rope_table
from forerun.models.spec import RopeSpec
from forerun.sampling.flatten import FlatDraws, pack_draws, unpack_drawn
from forerun.sampling.top import check_count
from forerun.sampling.walk import hash_row

Matrices = dict[tuple[str, ...], list[_native.PackedMatrix]]  # by stack, its parts


@dataclass(frozen=True)
class CpuResult:
    """Logits of one step, valid until the next.

    view  [O, V] float32, the program's own memory
    flat  the batch's draws, packed while the caches still hold what packs them, and the threads are idle anyway
    kept  captured values by name, [rows, width] float32, the program's own memory
    """

    view: npt.NDArray[np.float32]
    flat: FlatDraws
    kept: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)

    def logits(self, outputs: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.view[list(outputs)]  # a list index copies

    def top(self, outputs: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        check_count(count, self.view.shape[1])
        found = np.empty((len(outputs), count), np.int32)
        _native.top_ids(self.view, list(outputs), found)
        return found

    def captured(self, name: str, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.kept[name][list(rows)]  # a list index copies


class CpuProgram:
    """Implements DraftProgram; CpuBackend makes one for the target, and one for each pass that drafts beside it."""

    def __init__(self, table: str, pool: _native.ThreadPool, limits: Limits) -> None:
        self.native = _native.Program(table, pool, limits.max_rows, limits.max_outputs, limits.max_model_len)
        self._table, self._pool, self._limits = table, pool, limits
        self._store: _native.KvStore | None = None
        self._logits: npt.NDArray[np.float32]
        self._features: npt.NDArray[np.float32] | None = None  # what the pass reads as such
        self._kept: dict[str, npt.NDArray[np.float32]] = {}
        self._drawers: _native.Drawers
        self._matrices: Matrices = {}
        self._loader: Loader
        self.packed_bytes = 0  # of matrices, beyond what it shares with another program
        self.vector_bytes = 0
        self.kv_bytes = 0  # of a store of its own

    def build(self, recorder: Recorder, result: Value, matrices: Matrices, loader: Loader) -> None:
        """Turn a recording into the native program."""
        self._matrices, self._loader = matrices, loader
        builder = _ProgramBuilder(
            self.native, plan_buffers(recorder, result), matrices, loader, self._limits.max_model_len
        )
        for step in recorder.steps:
            builder.add(step)
        kept = {name: builder.view(value) for name, value in recorder.captured.items()}
        for view in kept.values():
            self.native.keep(view)
        self.native.finish(builder.view(result))
        self._logits = self.native.logits()
        self._kept = {name: self.native.rows(view) for name, view in kept.items()}
        if recorder.given is not None:
            self._features = self.native.rows(builder.view(recorder.given))
        self._drawers = _native.Drawers(self._table, self._pool, self._logits.shape[1])

    def use(self, store: _native.KvStore) -> None:
        """Work on a KV store from now on."""
        self._store = store

    def forward(self, batch: Batch, features: npt.NDArray[np.float32] | None = None) -> CpuResult:
        """Write the rows' KV and compute the output rows' logits.

        Raises ValueError, before anything is computed, when an index of the batch leaves its array, or `features` is
        missing, of another shape or not expected.
        """
        assert self._store is not None, "allocate_kv comes first"
        self._fill(features, batch.num_rows)
        flat = pack_draws(batch.draws, len(batch.output_rows))
        self.native.run(
            self._store,
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
        return CpuResult(self._logits[: len(batch.output_rows)], flat, self._kept)

    def _fill(self, features: npt.NDArray[np.float32] | None, num_rows: int) -> None:
        """Take over the features of a batch."""
        wanted = None if self._features is None else (num_rows, self._features.shape[1])
        given = None if features is None else features.shape
        if given != wanted:
            raise ValueError(f"the pass reads features of shape {wanted}, got {given}")
        if self._features is not None:
            self._features[:num_rows] = features

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        """Draw by walking each sequence's tree."""
        assert isinstance(result, CpuResult)
        logits, flat = result.view, result.flat
        if batch.draws is not flat.draws:  # other draws than those that came with the rows
            flat = pack_draws(batch.draws, len(logits))
        self._drawers.draw(logits, *flat.arguments)
        return unpack_drawn(flat, hash_of=lambda output: hash_row(logits[output]))

    def reload(self, weight: str, start: int, stop: int) -> None:
        """Pack rows start..stop-1 of a matrix that stands alone in its stack again, both multiples of a panel."""
        (matrix,) = self._matrices[(weight,)]
        self._loader.repack(matrix, weight, start, stop)

    @property
    def workspace_bytes(self) -> int:
        return self.native.workspace_bytes + self._drawers.bytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights beyond those that are shared."""
        return self.packed_bytes + self.vector_bytes

    @property
    def num_bytes(self) -> int:
        return self.weight_bytes + self.workspace_bytes + self.kv_bytes


class _ProgramBuilder:
    """Turns recorded steps into operations of a native program."""

    def __init__(
        self,
        program: _native.Program,
        plan: BufferPlan,
        matrices: Matrices,
        loader: Loader,
        max_positions: int,
    ) -> None:
        self._program = program
        self._matrices = matrices
        self._loader = loader
        self._max_positions = max_positions
        self._rope_tables: dict[RopeSpec, int] = {}
        numbers = [
            program.add_input(width) if index in plan.inputs else program.add_buffer(width, on)
            for index, (width, on) in enumerate(zip(plan.widths, plan.on_outputs, strict=True))
        ]
        self._buffer_of = {value: numbers[index] for value, index in plan.buffer_of.items()}

    def view(self, value: Value) -> _native.View:
        """Where a recorded value lies."""
        return _native.View(self._buffer_of[value.id], value.column, value.width)

    def add(self, step: Step) -> None:
        """Append one step."""
        program, reads = self._program, [self.view(value) for value in step.reads]
        attention = step.attention
        match step.kind:
            case "rope":
                assert step.rope is not None
                program.rope(reads[0], step.num_heads, step.rope.rotary_dim, self._rope(step.rope))
                return
            case "write_kv":
                assert attention is not None
                program.write_kv(step.layer, reads[0], reads[1], attention.num_kv_heads)
                return
            case "features":
                return  # the caller writes them
        assert step.writes is not None
        out = self.view(step.writes)
        match step.kind:
            case "embed":
                program.embed(self._matrices[step.weights][0], out)
            case "rms_norm":
                program.rms_norm(reads[0], program.add_vector(self._loader.vector(step.weights[0])), step.eps, out)
            case "linear":
                self._linear(step, reads[0], step.writes)
            case "attention":
                assert attention is not None
                program.attention(
                    step.layer, reads[0], attention.num_heads, attention.num_kv_heads, attention.scale, 0, out
                )
            case "silu":
                program.silu(reads[0], out)
            case "silu_mul":
                program.silu_mul(reads[0], reads[1], out)
            case "add":
                program.add(reads[0], reads[1], out)
            case "select_outputs":
                program.select_outputs(reads[0], out)
            case _:
                raise NotImplementedError(f"the native program has no operation {step.kind}")

    def _linear(self, step: Step, x: _native.View, out: Value) -> None:
        """One operation for each part of the stack, side by side in `out`."""
        biases = self._biases(step)
        start = 0
        for matrix in self._matrices[step.weights]:
            end = start + matrix.rows
            bias = -1 if biases is None else self._program.add_vector(biases[start:end])
            part = self.view(Value(out.id, out.column + start, matrix.rows))
            self._program.linear(x, matrix, bias, part)
            start = end

    def _biases(self, step: Step) -> npt.NDArray[np.float32] | None:
        if not step.biases:
            return None
        parts = [
            np.zeros(self._loader.size(weight), np.float32) if bias is None else self._loader.vector(bias)
            for weight, bias in zip(step.weights, step.biases, strict=True)
        ]
        return np.concatenate(parts)

    def _rope(self, spec: RopeSpec) -> int:
        if spec not in self._rope_tables:
            self._rope_tables[spec] = self._program.add_rope_table(*rope_table(spec, self._max_positions))
        return self._rope_tables[spec]
