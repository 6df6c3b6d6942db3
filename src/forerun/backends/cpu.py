"""CpuBackend: native kernels behind the Backend protocol; the one place that imports the native module.

Loading runs the model code once against a Recorder, packs each stack of matrices, in the file's own bits where kernels
exist for them, and turns the recording into a native Program. A step is then one call into C++ without the GIL.

Which kernels run is decided once: the best table that this CPU supports, or the one that FORERUN_ISA (or `isa`) names.
"""

import math
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun import _native
from forerun.backends import cores
from forerun.backends.base import ForwardResult, Limits, LoadedModel, MemoryReport, Progress, SlotMove
from forerun.backends.packing import Loader
from forerun.backends.recorder import BufferPlan, Recorder, Step, Value, plan_buffers
from forerun.backends.weight_formats import check_choice
from forerun.batch import Batch, Drawn
from forerun.cache.layout import CODEC_BYTES, KvLayout
from forerun.errors import CapacityError, ModelFileError, UnsupportedModel, UsageError
from forerun.machine import available_memory
from forerun.models import decoder
from forerun.models.rope import rope_table
from forerun.models.spec import RopeSpec
from forerun.sampling.flatten import FlatDraws, pack_draws, unpack_drawn
from forerun.sampling.walk import hash_row

KERNELS_VERSION = "k4"  # raise it whenever a bit of a logit changes
ISA_VARIABLE = "FORERUN_ISA"
FAULTS = ("row_ulp",)
INT16_TABLES = ("avx512_vnni",)  # packed weights meet inputs of 16 bits there, elsewhere bfloat16
# By kernel table: rows that one pass over the weights serves at about the price of one.
ROW_TILES = {"amx_bf16": 16, "avx512_vnni": 8, "avx512_bf16": 4, "avx512": 8, "avx2": 4, "neon": 4, "portable": 1}


def choose_table(isa: str | None = None) -> str:
    """The kernel table to use: `isa`, else $FORERUN_ISA, else the best one that this CPU runs.

    Raises UsageError when the named table does not exist or the CPU lacks what it needs.
    """
    tables = _native.all_tables()
    wanted = isa or os.environ.get(ISA_VARIABLE) or None
    usable = [table for table in tables if not _native.missing_features(table)]
    if wanted is None:
        return usable[0]
    source = "isa" if isa else ISA_VARIABLE
    if wanted not in tables:
        raise UsageError(f"{source}={wanted} is no kernel table; this machine runs: {', '.join(usable)}")
    missing = _native.missing_features(wanted)
    if missing:
        raise UsageError(f"{source}={wanted} needs {', '.join(missing)}, which this CPU lacks; use {usable[0]}")
    return wanted


def cpu_info() -> dict[str, object]:
    """Facts for `forerun info`: the processor, what it offers, the tables, the one chosen, cores and threads."""
    try:
        table: str | None = choose_table()
    except UsageError:
        table = None
    tables = _native.all_tables()
    return {
        "model": cores.model_name(),
        "architecture": platform.machine(),
        "features": _native.cpu_features(),
        "tables": [name for name in tables if not _native.missing_features(name)],
        "table": table,
        "physical_cores": cores.physical_cores(),
        "allowed_cores": cores.allowed_cores(),
        "threads": cores.default_threads(),
    }


@dataclass(frozen=True)
class CpuResult:
    """Logits of one step, valid until the next.

    view  [O, V] float32, the program's own memory
    flat  the batch's draws, packed while the caches still hold what packs them, and the threads are idle anyway
    """

    view: npt.NDArray[np.float32]
    flat: FlatDraws

    def logits(self, outputs: Sequence[int]) -> npt.NDArray[np.float32]:
        return self.view[list(outputs)]  # a list index copies


class CpuBackend:
    """One model on native kernels. Implements `Backend`.

    threads  compute threads, the caller included; None: the cores that this process may use
    isa      kernel table, None: $FORERUN_ISA or the best
    weights  "file": in the file's bits where kernels exist for them, else bfloat16; "bf16"; "int8" or "int4": quantised
             while loading where the file has more bits
    fault    "row_ulp": move one logit of every output row by one ulp when a step has more than one row, so that the
             checks of losslessness can be checked

    Raises UsageError.
    """

    name = "cpu"

    def __init__(
        self,
        threads: int | None = None,
        isa: str | None = None,
        fault: str | None = None,
        weights: str = "file",
    ) -> None:
        check_choice(weights)
        if fault is not None and fault not in FAULTS:
            raise UsageError(f"unknown fault {fault!r}; known: {', '.join(FAULTS)}")
        if threads is not None and not 1 <= threads <= 1024:
            raise UsageError(f"threads must be between 1 and 1024, got {threads}")
        self._table = choose_table(isa)
        self._fault = fault
        self._weights = weights
        self._formats = weights
        self._pool = _native.ThreadPool(threads if threads is not None else cores.default_threads())
        self._arena: _native.Arena | None = None
        self._program: _native.Program | None = None
        self._store: _native.KvStore | None = None
        self._logits: npt.NDArray[np.float32]
        self._drawers: _native.Drawers
        self._vector_bytes = 0
        self._kv_layers: list[tuple[int, int]] = []
        self._codec = "none"

    @property
    def threads(self) -> int:
        """Compute threads, the caller included."""
        return self._pool.size

    @property
    def program(self) -> _native.Program:
        """The native program of the loaded model, for those who time its operations."""
        assert self._program is not None, "load comes first"
        return self._program

    @property
    def row_tile(self) -> int:
        """Rows that one pass over the weights serves."""
        return ROW_TILES[self._table]

    @property
    def numerics_id(self) -> str:
        return f"{self._table}/{KERNELS_VERSION}/w-{self._formats}/a-{self._inputs}/kv-{self._codec}"

    @property
    def _inputs(self) -> str:
        """Formats of the inputs of linear layers."""
        formats = set(self._formats.split("+"))
        if self._table not in INT16_TABLES or formats == {"bf16"}:
            return "bf16"
        return "bf16+int16" if "bf16" in formats else "int16"

    # ---- loading ----

    def load(self, model: LoadedModel, limits: Limits, progress: Progress | None = None) -> None:
        """Pack the weights and build the program. `progress` counts bytes of the file.

        Raises ModelFileError on a missing weight or a wrong shape, CapacityError when memory is too small.
        """
        shapes = model.spec.weight_shapes()
        _check_weights(model, shapes)
        recorder = Recorder(shapes)
        result = decoder.logits(model.spec, recorder)
        loader = Loader(model, self._weights, self._pool, progress)
        stacks = {stack: loader.parts(stack) for stack in recorder.matrices()}
        parts = [part for some in stacks.values() for part in some]
        sizes = [_native.PackedMatrix.bytes(part.num_rows, part.cols, part.format) for part in parts]
        needed = sum(-(-size // 64) * 64 for size in sizes)
        _reserve(needed, "the weights", "use a smaller model")
        self._arena = arena = _native.Arena(needed)
        self._formats = "+".join(sorted({part.format.lower() for part in parts}))
        matrices = {stack: [loader.matrix(part, arena) for part in some] for stack, some in stacks.items()}
        plan = plan_buffers(recorder, result)
        self._program = _native.Program(
            self._table, self._pool, limits.max_rows, limits.max_outputs, limits.max_model_len
        )
        builder = _ProgramBuilder(self._program, plan, matrices, loader, limits.max_model_len)
        for step in recorder.steps:
            builder.add(step)
        self._program.finish(builder.view(result))
        self._logits = self._program.logits()
        self._drawers = _native.Drawers(self._table, self._pool, self._logits.shape[1])
        self._vector_bytes = loader.vector_bytes
        self._kv_layers = [(layer.mixer.num_kv_heads, layer.mixer.head_dim) for layer in model.spec.layers]

    def allocate_kv(self, layout: KvLayout) -> None:
        """Allocate the KV store; the first stack is the model's.

        Raises UsageError on a block size or codec that the kernels do not have, CapacityError when memory is too small.
        """
        layers = [(s.num_kv_heads, s.head_dim) for s in layout.stacks for _ in range(s.num_layers)]
        if layers[: len(self._kv_layers)] != self._kv_layers:
            raise UnsupportedModel("the KV layout does not fit the model: its first stack must be the model's layers")
        if layout.codec not in CODEC_BYTES:
            raise UsageError(f"KV codec {layout.codec!r} is unknown; choose one of {', '.join(sorted(CODEC_BYTES))}")
        if layout.block_size < 16 or layout.block_size % 16:
            raise UsageError(f"block_size must be a multiple of 16, got {layout.block_size}")
        _reserve(layout.total_bytes, "the KV cache", "lower kv_cache_bytes or max_model_len")
        self._store = _native.KvStore(self._table, layout.num_blocks, layout.block_size, layout.codec, layers)
        self._codec = layout.codec

    # ---- a step ----

    def forward(self, batch: Batch) -> CpuResult:
        """Write the rows' KV and compute the output rows' logits.

        Raises ValueError, before anything is computed, when an index of the batch leaves its array.
        """
        flat = pack_draws(batch.draws, len(batch.output_rows))
        self.program.run(
            self._kv,
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
        logits = self._logits[: len(batch.output_rows)]
        if self._fault == "row_ulp" and batch.num_rows > 1:
            logits[:, 0] = np.nextafter(logits[:, 0], np.float32(math.inf))
        return CpuResult(logits, flat)

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        """Draw by walking each sequence's tree."""
        assert isinstance(result, CpuResult)
        logits, flat = result.view, result.flat
        if batch.draws is not flat.draws:  # other draws than those that came with the rows
            flat = pack_draws(batch.draws, len(logits))
        self._drawers.draw(logits, *flat.arguments)
        return unpack_drawn(flat, hash_of=lambda output: hash_row(logits[output]))

    # ---- KV memory ----

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), in order."""
        self._kv.copy_blocks(pairs)

    def move_kv(self, moves: Sequence[SlotMove]) -> None:
        """Copy single slots, in order."""
        self._kv.move_slots([(move.source, move.target) for move in moves])

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero blocks."""
        self._kv.clear_blocks(blocks)

    def memory(self) -> MemoryReport:
        """Bytes held."""
        return MemoryReport(
            weights=(self._arena.bytes if self._arena else 0) + self._vector_bytes,
            kv=self._store.bytes if self._store else 0,
            workspace=self._program.workspace_bytes + self._drawers.bytes if self._program else 0,
        )

    @property
    def _kv(self) -> _native.KvStore:
        assert self._store is not None, "allocate_kv comes first"
        return self._store


class _ProgramBuilder:
    """Turns recorded steps into operations of a native program."""

    def __init__(
        self,
        program: _native.Program,
        plan: BufferPlan,
        matrices: dict[tuple[str, ...], list[_native.PackedMatrix]],
        loader: Loader,
        max_positions: int,
    ) -> None:
        self._program = program
        self._matrices = matrices
        self._loader = loader
        self._max_positions = max_positions
        self._rope_tables: dict[RopeSpec, int] = {}
        numbers = [program.add_buffer(w, on) for w, on in zip(plan.widths, plan.on_outputs, strict=True)]
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


def _check_weights(model: LoadedModel, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if name not in model.weights:
            raise ModelFileError(f"weight {name} is missing; the model file is incomplete, fetch it again")
        found = model.weights.shape(name)
        if tuple(found) != shape:
            raise ModelFileError(f"weight {name} has shape {tuple(found)}, expected {shape}; fetch the model again")


def _reserve(num_bytes: int, what: str, remedy: str) -> None:
    """Refuse what does not fit into free memory, before touching it."""
    free = available_memory()
    if free is not None and num_bytes > free:
        raise CapacityError(f"{what} need {num_bytes / 1e6:.0f} MB but {free / 1e6:.0f} MB are free: {remedy}")
