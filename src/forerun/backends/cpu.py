"""CpuBackend: native kernels behind the Backend protocol; the one place that imports the native module.

Loading runs the model code once against a Recorder, packs each stack of matrices, in the file's own bits where kernels
exist for them, and turns the recording into a native Program. A step is then one call into C++ without the GIL.

Which kernels run is decided once: the best table that this CPU supports, or the one that FORERUN_ISA (or `isa`) names.
"""

import math
import os
import platform
import weakref
from collections.abc import Sequence

import numpy as np

from forerun import _native
from forerun.backends import cores
from forerun.backends.base import (
    ForwardResult,
    Limits,
    LoadedModel,
    MemoryReport,
    ProgramSpec,
    Progress,
    SlotMove,
    Weights,
)
from forerun.backends.cpu_program import CpuProgram, CpuResult, Matrices
from forerun.backends.packing import Loader
from forerun.backends.recorder import Recorder
from forerun.backends.weight_formats import check_choice
from forerun.batch import Batch, Drawn
from forerun.cache.layout import CODEC_BYTES, KvLayout
from forerun.errors import CapacityError, ModelFileError, UnsupportedModel, UsageError
from forerun.machine import available_memory
from forerun.models import decoder

KERNELS_VERSION = "k7"  # raise it whenever a bit of a logit changes
ISA_VARIABLE = "FORERUN_ISA"
FAULTS = ("row_ulp",)
# Packed weights meet inputs of 16 bits there, elsewhere bfloat16.
INT16_TABLES = ("avx512_vnni_bf16", "avx512_vnni", "avx2")
# By kernel table: rows that one pass over the weights serves at about the price of one.
ROW_TILES = {
    "amx_bf16": 16,
    "avx512_vnni_bf16": 8,
    "avx512_vnni": 8,
    "avx512_bf16": 4,
    "avx512": 8,
    "avx2": 4,
    "neon": 4,
    "portable": 1,
}


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
        self._program: CpuProgram | None = None
        self._programs: weakref.WeakSet[CpuProgram] = weakref.WeakSet()  # beside the target's, while drafters hold them
        self._store: _native.KvStore | None = None
        self._target: LoadedModel | None = None
        self._matrices: Matrices = {}  # the target's
        self._packed_bytes = 0  # of those
        self._kv_layers: list[tuple[int, int]] = []
        self._codec = "none"

    @property
    def threads(self) -> int:
        """Compute threads, the caller included."""
        return self._pool.size

    @property
    def program(self) -> _native.Program:
        """The native program of the loaded model, for those who time its operations."""
        return self._loaded.native

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

    def load(
        self,
        model: LoadedModel,
        limits: Limits,
        progress: Progress | None = None,
        captures: Sequence[int] = (),
    ) -> None:
        """Pack the weights and build the program. `progress` counts bytes of the file.

        The weights of the model that is loaded already are kept: only a program with other captures is built. Raises
        ModelFileError on a missing weight or a wrong shape, CapacityError when memory is too small.
        """
        decoder.check_captures(model.spec, captures)
        spec = ProgramSpec("target", model, lambda ops: decoder.logits(model.spec, ops, captures=captures), limits)
        is_loaded = model is self._target and self._program is not None
        matrices, packed_bytes = (self._matrices, self._packed_bytes) if is_loaded else ({}, 0)
        program, self._formats = self._make_program(spec, matrices, progress)
        self._packed_bytes = program.packed_bytes = packed_bytes + program.packed_bytes
        self._program, self._matrices, self._target = program, matrices, model
        if is_loaded and self._store is not None:
            program.use(self._store)
        self._kv_layers = [(layer.mixer.num_kv_heads, layer.mixer.head_dim) for layer in model.spec.layers]

    def add_program(self, spec: ProgramSpec, progress: Progress | None = None) -> CpuProgram:
        """Load a further pass. Raises as `load` and `allocate_kv` do."""
        is_shared = spec.model is self._target and spec.weights in (None, self._weights)
        program, _ = self._make_program(spec, dict(self._matrices) if is_shared else {}, progress)
        if spec.kv is None:
            program.use(self._kv)
        else:
            store = self._make_store(spec.kv, f"{spec.name}.sequences")
            program.use(store)
            program.kv_bytes = store.bytes
        self._programs.add(program)
        return program

    def pass_bytes(self, spec: ProgramSpec) -> int:
        """Bytes of the packed matrices that one pass multiplies with."""
        shapes = dict(spec.weight_shapes)
        recorder = Recorder(shapes)
        spec.forward(recorder)
        loader = Loader(spec.model.weights, shapes, spec.weights or self._weights, self._pool, self._table)
        parts = [part for stack in recorder.products() for part in loader.parts(stack)]
        return sum(_native.PackedMatrix.bytes(part.num_rows, part.cols, part.format) for part in parts)

    def _make_program(self, spec: ProgramSpec, matrices: Matrices, progress: Progress | None) -> tuple[CpuProgram, str]:
        """A program, with the names of its weight formats. Stacks that `matrices` lacks are packed and added to it."""
        every = dict(spec.weight_shapes)  # taken once: a model's spec makes it anew each time
        recorder = Recorder(every)
        result = spec.forward(recorder)
        shapes = {name: every[name] for name in recorder.weights()}
        _check_weights(spec.all_weights, shapes)
        loader = Loader(spec.all_weights, shapes, spec.weights or self._weights, self._pool, self._table, progress)
        stacks = {stack: loader.parts(stack) for stack in recorder.matrices()}
        new = {stack: parts for stack, parts in stacks.items() if stack not in matrices}
        parts = [part for some in new.values() for part in some]
        sizes = [_native.PackedMatrix.bytes(part.num_rows, part.cols, part.format) for part in parts]
        needed = sum(-(-size // 64) * 64 for size in sizes)
        program = CpuProgram(self._table, self._pool, spec.limits)
        if needed:
            _reserve(needed, "the weights", "use a smaller model")
            arena = _native.Arena(needed)
            program.packed_bytes = arena.bytes
            matrices |= {stack: [loader.matrix(part, arena) for part in parts] for stack, parts in new.items()}
        program.build(recorder, result, matrices, loader)
        program.vector_bytes = loader.vector_bytes
        return program, "+".join(sorted({part.format.lower() for parts in stacks.values() for part in parts}))

    def allocate_kv(self, layout: KvLayout) -> None:
        """Allocate the KV store; the first stack is the model's.

        Raises UsageError on a block size or codec that the kernels do not have, CapacityError when memory is too small.
        """
        shapes = [(num_heads, head_dim) for num_heads, head_dim, _ in _kv_layers(layout)]
        if shapes[: len(self._kv_layers)] != self._kv_layers:
            raise UnsupportedModel("the KV layout does not fit the model: its first stack must be the model's layers")
        self._store = self._make_store(layout, "kv_cache_bytes or max_model_len")
        if self._program is not None:
            self._program.use(self._store)
        for program in self._programs:
            if not program.kv_bytes:
                program.use(self._store)
        self._codec = layout.codecs[0]

    def _make_store(self, layout: KvLayout, remedy: str) -> _native.KvStore:
        """A KV store. remedy  the options to lower when memory is too small"""
        for codec in layout.codecs:
            if codec not in CODEC_BYTES:
                raise UsageError(f"KV codec {codec!r} is unknown; choose one of {', '.join(sorted(CODEC_BYTES))}")
        if layout.block_size < 16 or layout.block_size % 16:
            raise UsageError(f"block_size must be a multiple of 16, got {layout.block_size}")
        _reserve(layout.total_bytes, "the KV cache", f"lower {remedy}")
        return _native.KvStore(self._table, layout.num_blocks, layout.block_size, _kv_layers(layout))

    # ---- a step ----

    def forward(self, batch: Batch) -> CpuResult:
        """Write the rows' KV and compute the output rows' logits.

        Raises ValueError, before anything is computed, when an index of the batch leaves its array.
        """
        result = self._loaded.forward(batch)
        if self._fault == "row_ulp" and batch.num_rows > 1:
            result.view[:, 0] = np.nextafter(result.view[:, 0], np.float32(math.inf))
        return result

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        """Draw by walking each sequence's tree."""
        return self._loaded.draw(result, batch)

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
            weights=self._program.weight_bytes if self._program else 0,
            kv=self._store.bytes if self._store else 0,
            workspace=self._program.workspace_bytes if self._program else 0,
            drafts=sum(program.num_bytes for program in self._programs),
        )

    @property
    def _loaded(self) -> CpuProgram:
        assert self._program is not None, "load comes first"
        return self._program

    @property
    def _kv(self) -> _native.KvStore:
        assert self._store is not None, "allocate_kv comes first"
        return self._store


def _kv_layers(layout: KvLayout) -> list[tuple[int, int, str]]:
    """Heads, their size and the format of each layer."""
    return [
        (stack.num_kv_heads, stack.head_dim, stack.codec) for stack in layout.stacks for _ in range(stack.num_layers)
    ]


def _check_weights(weights: Weights, shapes: dict[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if name not in weights:
            raise ModelFileError(f"weight {name} is missing; the model file is incomplete, fetch it again")
        found = weights.shape(name)
        if tuple(found) != shape:
            raise ModelFileError(f"weight {name} has shape {tuple(found)}, expected {shape}; fetch the model again")


def _reserve(num_bytes: int, what: str, remedy: str) -> None:
    """Refuse what does not fit into free memory, before touching it."""
    free = available_memory()
    if free is not None and num_bytes > free:
        raise CapacityError(f"{what} need {num_bytes / 1e6:.0f} MB but {free / 1e6:.0f} MB are free: {remedy}")
