"""The numpy backend: the oracle that every kernel and every promise is tested against.

Slow and obvious on purpose. Weights are float32, every operation is float32, and `models/decoder` is executed eagerly.

Row invariance. BLAS picks its path, and with it the order of a sum, by the shape of its operands. So no product here
has the batch's row count in its shape: a linear layer is one W @ x per row, attention runs row by row over that row's
own keys, and the rest is elementwise or reduces along one row.
"""

import hashlib
import math
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun.backends.base import (
    Forward,
    ForwardResult,
    Limits,
    LoadedModel,
    MemoryReport,
    ProgramSpec,
    Progress,
    SlotMove,
    Weights,
)
from forerun.backends.recorder import Recorder
from forerun.backends.reference_kv import KvStore, visible_slots
from forerun.batch import Batch, Drawn
from forerun.cache.layout import KvLayout
from forerun.errors import CapacityError, ModelFileError
from forerun.models.decoder import check_captures
from forerun.models.decoder import logits as decoder_logits
from forerun.models.rope import rope_table
from forerun.models.spec import AttentionSpec, RopeSpec
from forerun.sampling.top import top_ids
from forerun.sampling.walk import draw_batch

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]

NUMERICS_VERSION = 1  # raise it whenever a bit of a logit changes


class NumpyOps:
    """Ops executed at once, for one batch; a value is an array [R, width] float32."""

    def __init__(
        self, weights: dict[str, Float32], tables: dict[RopeSpec, tuple[Float32, Float32]], kv: KvStore
    ) -> None:
        self._weights = weights
        self._tables = tables
        self._kv = kv
        self._batch: Batch
        self._features: Float32 | None = None
        self._slots_of_row: list[Int32]
        self.kept: dict[str, Float32] = {}  # captured in this pass

    def use(self, kv: KvStore) -> None:
        """Work on a KV store from now on."""
        self._kv = kv

    def begin(self, batch: Batch, features: Float32 | None = None) -> None:
        """Work on `batch` from now on."""
        self._batch = batch
        self._features = features
        self.kept = {}
        block_size = self._kv.layout.block_size
        self._slots_of_row = [visible_slots(batch, row, block_size) for row in range(batch.num_rows)]

    def embed(self, weight: str) -> Float32:
        return self._weights[weight][self._batch.tokens]

    def rms_norm(self, x: Float32, weight: str, eps: float) -> Float32:
        mean: Float32 = np.mean(x * x, axis=-1, keepdims=True)
        scaled: Float32 = x / np.sqrt(mean + np.float32(eps)) * self._weights[weight]
        return scaled

    def linear(self, x: Float32, weights: Sequence[str], biases: Sequence[str | None] = ()) -> Float32:
        parts = []
        for name, bias in zip(weights, biases or (None,) * len(weights), strict=True):
            matrix = self._weights[name]
            part = np.empty((len(x), len(matrix)), np.float32)
            for row in range(len(x)):  # one product a row: see the module docstring
                part[row] = matrix @ np.ascontiguousarray(x[row])
            parts.append(part if bias is None else part + self._weights[bias])
        return np.concatenate(parts, axis=1)

    def split(self, x: Float32, widths: Sequence[int]) -> tuple[Float32, ...]:
        return tuple(np.split(x, np.cumsum(widths)[:-1], axis=1))

    def rope(self, x: Float32, num_heads: int, rope: RopeSpec) -> Float32:
        cos_table, sin_table = self._tables[rope]
        cos, sin = (table[self._batch.positions][:, None, :] for table in (cos_table, sin_table))
        heads = x.reshape(len(x), num_heads, -1)
        half = rope.rotary_dim // 2
        first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        turned = np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
        return turned.reshape(len(x), -1)

    def write_kv(self, layer: int, k: Float32, v: Float32, spec: AttentionSpec) -> None:
        self._kv.write(layer, self._batch.slots, k, v)

    def attention(self, layer: int, q: Float32, spec: AttentionSpec) -> Float32:
        mixed = np.empty_like(q)
        groups = (spec.num_kv_heads, spec.num_heads // spec.num_kv_heads, spec.head_dim)
        for row, slots in enumerate(self._slots_of_row):
            keys = np.ascontiguousarray(self._kv.keys[layer][slots].transpose(1, 2, 0))  # [G, D, n]
            values = np.ascontiguousarray(self._kv.values[layer][slots].transpose(1, 0, 2))  # [G, n, D]
            scores = (q[row].reshape(groups) @ keys) * np.float32(spec.scale)  # [G, H / G, n]
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed[row] = ((weights @ values) / weights.sum(axis=-1, keepdims=True)).reshape(-1)
        return mixed

    def silu(self, x: Float32) -> Float32:
        return self.silu_mul(x, np.ones(1, np.float32))

    def silu_mul(self, gate: Float32, up: Float32) -> Float32:
        one = np.ones(1, np.float32)
        return gate / (one + np.exp(-gate)) * up

    def add(self, x: Float32, y: Float32) -> Float32:
        return x + y

    def select_outputs(self, x: Float32) -> Float32:
        return x[self._batch.output_rows]

    def features(self, width: int) -> Float32:
        if self._features is None or self._features.shape != (self._batch.num_rows, width):
            given = None if self._features is None else self._features.shape
            raise ValueError(f"the pass reads features of shape {(self._batch.num_rows, width)}, got {given}")
        return self._features

    def capture(self, name: str, x: Float32) -> None:
        self.kept[name] = x


@dataclass(frozen=True)
class ReferenceResult:
    """Logits of one step. all_logits  [O, V] float32; kept  captured values by name, [rows, width] float32"""

    all_logits: Float32
    kept: Mapping[str, Float32]

    def logits(self, outputs: Sequence[int]) -> Float32:
        return self.all_logits[list(outputs)]  # a list index copies

    def top(self, outputs: Sequence[int], count: int) -> Int32:
        return top_ids(self.all_logits, outputs, count)

    def captured(self, name: str, rows: Sequence[int]) -> Float32:
        return self.kept[name][list(rows)]  # a list index copies


class ReferenceProgram:
    """One forward pass in numpy over a KV store. Implements DraftProgram."""

    def __init__(
        self,
        weights: dict[str, Float32],
        tables: dict[RopeSpec, tuple[Float32, Float32]],
        forward: Forward,
        kv: KvStore,
        source: Weights,
        num_bytes: int = 0,
    ) -> None:
        self._weights, self._source = weights, source
        self.num_bytes = num_bytes  # beyond what is shared with the target
        self._ops = NumpyOps(weights, tables, kv)
        self._forward = forward

    def forward(self, batch: Batch, features: Float32 | None = None) -> ReferenceResult:
        """Write the rows' KV and compute the output rows' logits. Raises ValueError for features of a wrong shape."""
        self._ops.begin(batch, features)
        # A NaN must stay its sequence's problem; exp(-gate) may overflow to inf, and gate / inf is the right zero.
        with np.errstate(invalid="ignore", over="ignore"):
            return ReferenceResult(self._forward(self._ops), self._ops.kept)

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        """Draw by walking each sequence's tree."""
        return draw_batch(lambda output: result.logits((output,))[0], batch)

    def reload(self, weight: str, start: int, stop: int) -> None:
        """Read rows start..stop-1 of a matrix again."""
        self._weights[weight][start:stop] = self._source.read(weight, start, stop)

    def use(self, kv: KvStore) -> None:
        """Work on a KV store from now on."""
        self._ops.use(kv)


class ReferenceBackend:
    """One model in numpy. Implements `Backend`."""

    name = "reference"

    def __init__(self) -> None:
        self._model: LoadedModel | None = None
        self._limits: Limits
        self._captures: tuple[int, ...] = ()
        self._weights: dict[str, Float32] = {}
        self._tables: dict[RopeSpec, tuple[Float32, Float32]] = {}
        self._kv: KvStore | None = None
        self._program: ReferenceProgram | None = None
        self._beside: weakref.WeakSet[ReferenceProgram] = weakref.WeakSet()  # programs on the target's store
        self._added: weakref.WeakSet[ReferenceProgram] = weakref.WeakSet()  # these, and those with a store of their own

    @property
    def row_tile(self) -> int:
        """Every row is computed by itself."""
        return 1

    @property
    def numerics_id(self) -> str:
        codec = self._kv.layout.codecs[0] if self._kv is not None else "none"
        # A rotation is a function of the spec and the position, so the spec stands for the table whatever its length.
        rope = hashlib.blake2b(repr(sorted(self._tables, key=repr)).encode(), digest_size=4).hexdigest()
        return f"reference{NUMERICS_VERSION}-numpy{np.__version__}-w:fp32-a:fp32-rope:{rope}-kv:{codec}"

    def load(
        self,
        model: LoadedModel,
        limits: Limits,
        progress: Progress | None = None,
        captures: Sequence[int] = (),
    ) -> None:
        """Dequantise every weight to float32. Raises ModelFileError, CapacityError."""
        check_captures(model.spec, captures)
        if model is not self._model:
            self._weights = _read_weights(model.weights, model.spec.weight_shapes(), progress)
        self._tables = _RopeTables({layer.mixer.rope for layer in model.spec.layers}, limits.max_model_len)
        self._model, self._limits, self._captures = model, limits, tuple(captures)
        if self._kv is not None:
            self._use(self._kv)

    def add_program(self, spec: ProgramSpec, progress: Progress | None = None) -> ReferenceProgram:
        """Load a further pass; weights are float32 whatever the spec says. Raises as `load` does."""
        known = self._weights if spec.model is self._model else {}
        wanted = {name: shape for name, shape in spec.weight_shapes.items() if name not in known}
        own = _read_weights(spec.all_weights, wanted, progress)
        kv = self._store() if spec.kv is None else KvStore(spec.kv)
        tables = _RopeTables((), spec.limits.max_model_len)
        num_bytes = sum(weight.nbytes for weight in own.values()) + (0 if spec.kv is None else kv.num_bytes)
        program = ReferenceProgram({**known, **own}, tables, spec.forward, kv, spec.all_weights, num_bytes)
        self._added.add(program)
        if spec.kv is None:
            self._beside.add(program)
        return program

    def pass_bytes(self, spec: ProgramSpec) -> int:
        """Bytes of the float32 matrices that one pass multiplies with."""
        shapes = dict(spec.weight_shapes)
        recorder = Recorder(shapes)
        spec.forward(recorder)
        return sum(4 * math.prod(shapes[name]) for stack in recorder.products() for name in stack)

    def allocate_kv(self, layout: KvLayout) -> None:
        """Allocate the KV store; the first stack is the model's. Raises CapacityError, UsageError."""
        try:
            self._kv = KvStore(layout)
        except MemoryError as error:
            raise CapacityError(
                f"no memory left for {layout.total_bytes} bytes of KV; ask for a smaller cache"
            ) from error
        self._use(self._kv)
        for program in self._beside:
            program.use(self._kv)

    def _use(self, kv: KvStore) -> None:
        assert self._model is not None, "load comes first"
        spec, captures = self._model.spec, self._captures
        self._program = ReferenceProgram(
            self._weights,
            self._tables,
            lambda ops: decoder_logits(spec, ops, captures=captures),
            kv,
            self._model.weights,
        )

    def forward(self, batch: Batch) -> ReferenceResult:
        """Write the rows' KV and compute the output rows' logits."""
        assert self._program is not None, "allocate_kv comes before forward"
        assert batch.num_rows <= self._limits.max_rows
        assert len(batch.output_rows) <= self._limits.max_outputs
        return self._program.forward(batch)

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        """Draw by walking each sequence's tree."""
        assert self._program is not None
        return self._program.draw(result, batch)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), in order."""
        kv = self._store()
        for source, target in pairs:
            kv.copy(kv.block(source), kv.block(target))

    def move_kv(self, moves: Sequence[SlotMove]) -> None:
        """Copy single slots, in order."""
        kv = self._store()
        for move in moves:
            kv.copy(move.source, move.target)

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero blocks."""
        kv = self._store()
        for block in blocks:
            kv.clear(kv.block(block))

    def memory(self) -> MemoryReport:
        """Bytes held; the store keeps float32 whatever the codecs."""
        kv = 0 if self._kv is None else self._kv.num_bytes
        tables = sum(cos.nbytes + sin.nbytes for cos, sin in self._tables.values())
        weights, drafts = sum(w.nbytes for w in self._weights.values()), sum(p.num_bytes for p in self._added)
        return MemoryReport(weights, kv, tables, drafts)

    def _store(self) -> KvStore:
        assert self._kv is not None, "allocate_kv comes first"
        return self._kv


def _read_weights(
    source: Weights, shapes: Mapping[str, tuple[int, ...]], progress: Progress | None
) -> dict[str, Float32]:
    """Every weight of `shapes` as float32."""
    weights: dict[str, Float32] = {}
    done, total = 0, sum(source.num_bytes(name) for name in shapes if name in source)
    for name, shape in shapes.items():
        if name not in source:
            raise ModelFileError(f"weight {name} is missing; the model file is incomplete, fetch it again")
        try:
            array = source.read(name)
        except MemoryError as error:
            raise CapacityError(f"no memory left for weight {name} {shape}; use a smaller model") from error
        if array.shape != shape:
            raise ModelFileError(f"weight {name} has shape {array.shape}, expected {shape}; fetch the model again")
        weights[name] = array
        done += source.num_bytes(name)
        if progress is not None:
            progress(done, total)
    return weights


class _RopeTables(dict[RopeSpec, tuple[Float32, Float32]]):
    """Rotary tables of `ropes`, and of others when a pass asks for them."""

    def __init__(self, ropes: Iterable[RopeSpec], max_positions: int) -> None:
        super().__init__({rope: rope_table(rope, max_positions) for rope in ropes})
        self._max_positions = max_positions

    def __missing__(self, rope: RopeSpec) -> tuple[Float32, Float32]:
        self[rope] = rope_table(rope, self._max_positions)
        return self[rope]
