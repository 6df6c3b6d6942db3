"""Every operation of a model's program against the limit that binds it.

Operations are timed where they run: inside whole steps of the loaded model, so that every matrix comes from memory as
it does in service. What runs together is one operation here, named by its parts. Those of one kind and shape are added
up over the layers, and the median over the steps counts.

    memory_s = bytes / bandwidth   compute_s = operations / peak   fraction = max(memory_s, compute_s) / seconds

    bytes      weights once; keys and values once a sequence; every row's inputs and outputs as float32
    bandwidth  of all threads, for weights and keys at the size of all that the step reads, for the rest at its own size
    peak       of all threads, of the instructions that the program's numerics allow
"""

import statistics
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.backends.measure import Op, op_seconds, timed_ops
from forerun.batch import Batch
from forerun.bench.limits import Limits
from forerun.bench.rig import MAX_CHAIN, PREFILL, Rig
from forerun.models.spec import ModelSpec

ROWS = (1, 2, 4, 8, 16, 32, 64, PREFILL)
ATTENTION_ROWS = (1, 16, PREFILL)
QUICK_ROWS = (1, 4, 16, 64)


@dataclass(frozen=True)
class Kernel:
    """One kind and shape of operation at one number of rows, over all layers.

    rows        of the step; on_outputs operations run on fewer when only the last row's logits are wanted
    count       operations of this shape in a step
    seconds     of one of them, on average
    num_bytes, operations  of one of them
    memory_s, compute_s    the two limits of its time
    share       of the step's time that all of them take
    """

    kind: str
    inputs: int
    outputs: int
    rows: int
    context: int
    count: int
    seconds: float
    num_bytes: float
    operations: float
    memory_s: float
    compute_s: float
    share: float

    @property
    def bound(self) -> str:
        """The limit that is nearer: "bandwidth" or "compute"."""
        return "compute" if self.compute_s > self.memory_s else "bandwidth"

    @property
    def fraction(self) -> float:
        """Of that limit, 1 at the limit."""
        return max(self.memory_s, self.compute_s) / self.seconds


@dataclass(frozen=True)
class Work:
    """What one operation must do. streams  its bytes come from memory in every step"""

    num_bytes: float
    operations: float
    streams: bool


def settings(rig: Rig, quick: bool) -> list[tuple[int, int]]:
    """(context, rows) of every step that is timed: all numbers of rows at the shortest, attention's at the others."""
    contexts = rig.contexts(quick)
    rows = QUICK_ROWS if quick else ROWS
    wanted = [(contexts[0], count) for count in rows] + [(c, count) for c in contexts[1:] for count in ATTENTION_ROWS]
    return [(context, count) for context, count in wanted if rig.start(context, count) >= 0]


@dataclass(frozen=True)
class OpTimes:
    """Median seconds of each operation of a step, by index into `program_ops`. context  as the setting names it"""

    context: int
    step: "StepShape"
    seconds: tuple[float, ...]


def time_settings(rig: Rig, spec: ModelSpec, turns: int, quick: bool, advance: Callable[[], None]) -> list[OpTimes]:
    """Time every operation at every setting, the settings in turns. `advance` is called after each step.

    turns  timed steps of a setting, after one that is not timed
    """
    batches = {setting: _batch(rig, *setting) for setting in settings(rig, quick)}
    times: dict[tuple[int, int], list[list[float]]] = {setting: [] for setting in batches}
    with timed_ops(rig.backend):
        for turn in range(turns + 1):
            for setting, batch in batches.items():
                rig.backend.forward(batch)
                if turn > 0:
                    times[setting].append(op_seconds(rig.backend))
                advance()
    return [
        OpTimes(
            context,
            StepShape.of(batch, spec, rig.bytes_per_token),
            tuple(statistics.median(samples) for samples in zip(*times[context, rows], strict=True)),
        )
        for (context, rows), batch in batches.items()
    ]


def kernels_of(ops: Seq[Op], times: Seq[OpTimes], limits: Limits, numerics_id: str) -> list[Kernel]:
    """All operations at the shortest context, and attention at the others."""
    shortest = min(one.context for one in times)
    kernels = [kernel for one in times for kernel in summarise(ops, one, limits, numerics_id)]
    return [kernel for kernel in kernels if kernel.context == shortest or kernel.kind == "attention"]


def _batch(rig: Rig, context: int, rows: int) -> Batch:
    return rig.chain(rig.start(context, rows), rows, last_only=rows > MAX_CHAIN)


@dataclass(frozen=True)
class StepShape:
    """What a step of one sequence asks of every operation. kv_bytes_per_token  of all layers"""

    rows: int
    outputs: int
    context: int  # computed before the step
    head_dim: int
    kv_bytes_per_token: float
    num_layers: int

    @classmethod
    def of(cls, batch: Batch, spec: ModelSpec, kv_bytes_per_token: int) -> "StepShape":
        """Of a batch with one sequence."""
        rows, outputs = batch.num_rows, len(batch.output_rows)
        head_dim = spec.layers[0].mixer.head_dim
        return cls(rows, outputs, int(batch.context_len[0]), head_dim, kv_bytes_per_token, spec.num_layers)

    def work(self, op: Op) -> Work:
        """What `op` must do in the step."""
        rows = self.outputs if op.on_outputs else self.rows
        values = 4.0 * rows * (op.inputs + (op.outputs or op.inputs))
        if op.kind == "attention":
            pairs = rows * self.context + rows * (rows + 1) / 2  # (query, key) of a head
            kv = (self.context + rows) * self.kv_bytes_per_token / self.num_layers
            return Work(kv + values, 4.0 * op.num_heads * self.head_dim * pairs, streams=True)
        if op.kind == "embed":
            return Work(6.0 * rows * op.outputs, 0, streams=False)  # bfloat16 in, float32 out
        if op.weight_bytes:
            return Work(op.weight_bytes + values, 2.0 * rows * op.inputs * op.outputs, streams=True)
        return Work(values, 0, streams=False)


def summarise(ops: Seq[Op], times: OpTimes, limits: Limits, numerics_id: str) -> list[Kernel]:
    """Operations of one kind and shape as one Kernel each, in order of first use."""
    works = [times.step.work(op) for op in ops]
    working_set = sum(work.num_bytes for work in works if work.streams)
    peak = limits.peak(numerics_id).all_threads
    groups: dict[tuple[str, int, int, int], list[int]] = {}
    for index, op in enumerate(ops):
        groups.setdefault((op.kind, op.inputs, op.outputs, op.num_heads), []).append(index)
    kernels = []
    for (kind, inputs, outputs, _), members in groups.items():
        work = works[members[0]]
        group_s = sum(times.seconds[index] for index in members)
        kernels.append(
            Kernel(
                kind=kind,
                inputs=inputs,
                outputs=outputs,
                rows=times.step.rows,
                context=times.context,
                count=len(members),
                seconds=group_s / len(members),
                num_bytes=work.num_bytes,
                operations=work.operations,
                memory_s=work.num_bytes / limits.bandwidth(working_set if work.streams else work.num_bytes),
                compute_s=work.operations / peak,
                share=group_s / sum(times.seconds),
            )
        )
    return kernels
