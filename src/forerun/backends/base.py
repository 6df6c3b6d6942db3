"""The two protocols between the engine, the model code and the machine.

`Ops` is what a forward pass is written in, once, in `models/decoder.py`. The reference backend executes the calls; the
CPU backend records them once into a Program and replays that. So a forward pass passes values on, never looks at them.

`Backend` is what the engine calls: it owns weights, KV memory and logits.

Row invariance is part of both contracts: a row's result depends on that row's token, position and visible keys only,
bit for bit, never on the other rows, their number, or the number of threads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from forerun.batch import Batch, Drawn
from forerun.cache.layout import KvLayout
from forerun.models.spec import AttentionSpec, ModelSpec, RopeSpec

V = TypeVar("V")  # a backend's handle for a value of shape [R, width] float32


class Ops(Protocol[V]):
    """Operations on values of shape [R, width]; weights and biases are logical names (see models/spec)."""

    def embed(self, weight: str) -> V:
        """Rows of the embedding table for the batch's tokens: [R, E]."""
        ...

    def rms_norm(self, x: V, weight: str, eps: float) -> V:
        """x / sqrt(mean(x^2) + eps) * weight."""
        ...

    def linear(self, x: V, weights: Sequence[str], biases: Sequence[str | None] = ()) -> V:
        """x @ W.T + b for several matrices over one input, outputs side by side: [R, sum of outputs]."""
        ...

    def split(self, x: V, widths: Sequence[int]) -> tuple[V, ...]:
        """Views of consecutive columns."""
        ...

    def rope(self, x: V, num_heads: int, rope: RopeSpec) -> V:
        """Rotate each head of x [R, num_heads * D] by its row's position. May work in place: use only the result."""
        ...

    def write_kv(self, layer: int, k: V, v: V, spec: AttentionSpec) -> None:
        """Encode k and v [R, G * D] into the rows' slots of `layer`. Comes before `attention` reads them."""
        ...

    def attention(self, layer: int, q: V, spec: AttentionSpec) -> V:
        """Attention of q [R, H * D] over each row's visible keys: [R, H * D]."""
        ...

    def silu(self, x: V) -> V:
        """x / (1 + exp(-x))."""
        ...

    def silu_mul(self, gate: V, up: V) -> V:
        """silu(gate) * up."""
        ...

    def add(self, x: V, y: V) -> V:
        """x + y."""
        ...

    def select_outputs(self, x: V) -> V:
        """The rows in Batch.output_rows: [O, width]. What follows runs on those rows only."""
        ...

    def features(self, width: int) -> V:
        """What the caller passes beside the batch, one row of numbers for every row of it: [R, width]. At most once."""
        ...

    def capture(self, name: str, x: V) -> None:
        """Let the caller read x after the pass, see ForwardResult.captured. No other value changes by it. x may be what
        `features` or any operation has made, but not what `rope` will rotate."""
        ...


class Weights(Protocol):
    """A model file's tensors under logical names, dequantised on demand."""

    def __contains__(self, name: str) -> bool: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape."""
        ...

    def stored_format(self, name: str) -> str:
        """Format in the file, e.g. "Q4_K", "BF16"."""
        ...

    def num_bytes(self, name: str) -> int:
        """Bytes in the file."""
        ...

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start..stop (first axis) as float32, C-contiguous."""
        ...

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows start..stop of a matrix as the file has them: [stop - start, bytes of a row], C-contiguous."""
        ...


@dataclass(frozen=True)
class LoadedModel:
    """What a backend needs to load a model."""

    spec: ModelSpec
    weights: Weights


@dataclass(frozen=True)
class MemoryReport:
    """Bytes a backend holds.

    weights, workspace  of the target
    kv                  the store, with the layers of drafters in it
    drafts              what programs of drafters hold beside that, see DraftProgram.num_bytes
    """

    weights: int
    kv: int
    workspace: int
    drafts: int = 0


@dataclass(frozen=True)
class Limits:
    """Sizes fixed at load, so that nothing grows while serving."""

    max_rows: int  # rows in one batch
    max_outputs: int  # output rows in one batch
    max_model_len: int  # positions, for the rotary table


class ForwardResult(Protocol):
    """Logits of one forward pass, valid until the next."""

    def logits(self, outputs: Sequence[int]) -> npt.NDArray[np.float32]:
        """[len(outputs), vocabulary] float32 copy, by index into Batch.output_rows: the slow door for tests, quality
        measurements and verification by rejection."""
        ...

    def top(self, outputs: Sequence[int], count: int) -> npt.NDArray[np.int32]:
        """[len(outputs), count] ids of the largest logits, largest first, the lowest id among equals."""
        ...

    def captured(self, name: str, rows: Sequence[int]) -> npt.NDArray[np.float32]:
        """[len(rows), width] float32 copy of rows of a value that the pass has captured: rows of the batch, or indices
        into Batch.output_rows where it was captured behind `select_outputs`. Raises KeyError for another name."""
        ...


class Forward(Protocol):
    """A forward pass written over Ops; returns the output rows' logits [O, columns]."""

    def __call__(self, ops: Ops[V], /) -> V: ...


@dataclass(frozen=True)
class ProgramSpec:
    """A forward pass beside the target's, as a rule over the same KV store: a draft model, or part of the target.

    name     for messages
    model    whose weights it reads. The target's own LoadedModel object: the loaded weights are shared
    forward  the pass; its KV layers are numbered as in the store, see KvLayout
    limits   rows and outputs of its batches
    weights  format of the weights as a backend's users choose it; None: as the target's
    shapes   logical weights that it may read, with their shapes; None: those of the model's spec
    further  weights beside the model's, under names that the model lacks: a trained head reads both
    kv       layout of a KV store of its own, whose layers are numbered from 0; None: it works on the target's store
    """

    name: str
    model: LoadedModel
    forward: Forward
    limits: "Limits"
    weights: str | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None
    further: Weights | None = None
    kv: KvLayout | None = None

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self.shapes if self.shapes is not None else self.model.spec.weight_shapes()

    @property
    def all_weights(self) -> Weights:
        """The model's weights and the further ones."""
        return self.model.weights if self.further is None else _BothWeights(self.further, self.model.weights)


class _BothWeights:
    """Weights of `first`, and those of `second` under the names that it lacks."""

    def __init__(self, first: Weights, second: Weights) -> None:
        self._first, self._second = first, second

    def _of(self, name: str) -> Weights:
        return self._first if name in self._first else self._second

    def __contains__(self, name: str) -> bool:
        return name in self._first or name in self._second

    def shape(self, name: str) -> tuple[int, ...]:
        return self._of(name).shape(name)

    def stored_format(self, name: str) -> str:
        return self._of(name).stored_format(name)

    def num_bytes(self, name: str) -> int:
        return self._of(name).num_bytes(name)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        return self._of(name).read(name, start, stop)

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        return self._of(name).read_stored(name, start, stop)


class DraftProgram(Protocol):
    """A loaded ProgramSpec. Calls come from the engine's thread, between the target's steps."""

    def forward(self, batch: Batch, features: npt.NDArray[np.float32] | None = None) -> "ForwardResult":
        """Write the rows' KV and compute the output rows' logits, valid until its next call.

        features  [R, width] float32, for a pass that reads `Ops.features`, and only for such a one
        """
        ...

    def draw(self, result: "ForwardResult", batch: Batch) -> Drawn:
        """Draw as the target does. Columns are taken for token ids."""
        ...

    def reload(self, weight: str, start: int, stop: int) -> None:
        """Read rows start..stop-1 of a matrix again, both multiples of 16: what the model's weights hold has changed.

        The matrix must be the program's own, not shared with the target.
        """
        ...

    @property
    def num_bytes(self) -> int:
        """Memory held beyond what is shared with the target: weights, workspace, and a KV store of its own."""
        ...


@dataclass(frozen=True)
class SlotMove:
    """Copy one token's KV bytes, all layers, from a physical slot to another."""

    source: int
    target: int


class Backend(Protocol):
    """One model on one machine. Calls come from one thread."""

    name: str

    @property
    def row_tile(self) -> int:
        """Rows of a step that cost about as much as a single one; 1 where every row costs its full price."""
        ...

    @property
    def numerics_id(self) -> str:
        """Names everything that the bits of a logit depend on: kernel table, kernel version, weight and activation
        format, rotary table, KV codec."""
        ...

    def load(
        self,
        model: LoadedModel,
        limits: Limits,
        progress: "Progress | None" = None,
        captures: Sequence[int] = (),
    ) -> None:
        """Take the weights over. Raises ModelFileError on a wrong shape, CapacityError when memory is too small.

        captures  hidden states that every pass leaves behind, see models/decoder; no bit of a logit depends on it. The
                  same model may be loaded again with others: its weights are kept
        """
        ...

    def allocate_kv(self, layout: KvLayout) -> None:
        """Allocate the KV store, in place of the one that there was: programs that work on it go on with the new one,
        and nothing is in it."""
        ...

    def add_program(self, spec: ProgramSpec, progress: "Progress | None" = None) -> DraftProgram:
        """Load a further pass; `load` and `allocate_kv` come first. Raises as `load` does."""
        ...

    def pass_bytes(self, spec: ProgramSpec) -> int:
        """Bytes of the matrices that one pass multiplies with, as they would be packed; nothing need be loaded."""
        ...

    def forward(self, batch: Batch) -> ForwardResult:
        """Write the rows' KV and compute the output rows' logits."""
        ...

    def draw(self, result: ForwardResult, batch: Batch) -> Drawn:
        """Draw by walking each sequence's tree, see DrawRequest."""
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, target), in order."""
        ...

    def move_kv(self, moves: Sequence[SlotMove]) -> None:
        """Copy single slots, in order."""
        ...

    def clear_blocks(self, blocks: Sequence[int]) -> None:
        """Zero blocks, so that NaN left by a failed sequence cannot be read."""
        ...

    def memory(self) -> MemoryReport: ...


class Progress(Protocol):
    """Receives progress of long work; units are bytes, steps or runs, as `total` says."""

    def __call__(self, done: int, total: int) -> None: ...
