"""Recorder: the `Ops` that writes a forward pass down instead of executing it, and the plan of its buffers.

The CPU backend runs `models/decoder` once per model against a Recorder; the native Program replays the recording every
step. A recorded value is a range of columns of a buffer; buffers whose values are no longer read are used again, so
that the workspace is a handful of buffers whatever the number of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from forerun.models.spec import AttentionSpec, RopeSpec


@dataclass(frozen=True)
class Value:
    """Columns column .. column+width-1 of value `id`."""

    id: int
    column: int
    width: int


@dataclass(frozen=True)
class Step:
    """One recorded operation.

    kind     name of the operation in Ops; "features" makes a value that the caller fills
    reads    values it reads; "rope" also writes its only one in place
    writes   the value it makes, None for "rope" and "write_kv"
    weights  logical names: a norm's weight, or the matrices of a linear layer, stacked
    biases   per matrix, None without
    """

    kind: str
    reads: tuple[Value, ...] = ()
    writes: Value | None = None
    weights: tuple[str, ...] = ()
    biases: tuple[str | None, ...] = ()
    layer: int = 0
    num_heads: int = 0
    eps: float = 0.0
    rope: RopeSpec | None = None
    attention: AttentionSpec | None = None


@dataclass(frozen=True)
class BufferPlan:
    """Which buffer holds which value.

    widths      [buffers] columns
    on_outputs  [buffers] True: holds output rows, False: holds all rows
    buffer_of   value id -> buffer
    inputs      buffers that the caller fills
    """

    widths: tuple[int, ...]
    on_outputs: tuple[bool, ...]
    buffer_of: dict[int, int]
    inputs: frozenset[int] = frozenset()


@dataclass
class Recorder:
    """Implements Ops[Value] by appending to `steps`.

    shapes  logical weight -> shape, as ModelSpec.weight_shapes gives
    """

    shapes: dict[str, tuple[int, ...]]
    steps: list[Step] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)  # per value id
    on_outputs: list[bool] = field(default_factory=list)  # per value id
    captured: dict[str, Value] = field(default_factory=dict)
    given: Value | None = None  # the features

    def embed(self, weight: str) -> Value:
        out = self._new(self.shapes[weight][1], on_outputs=False)
        self.steps.append(Step("embed", writes=out, weights=(weight,)))
        return out

    def rms_norm(self, x: Value, weight: str, eps: float) -> Value:
        return self._make("rms_norm", (x,), x.width, weights=(weight,), eps=eps)

    def linear(self, x: Value, weights: Sequence[str], biases: Sequence[str | None] = ()) -> Value:
        outputs = sum(self.shapes[name][0] for name in weights)
        given = tuple(biases) if any(biases) else ()
        return self._make("linear", (x,), outputs, weights=tuple(weights), biases=given)

    def split(self, x: Value, widths: Sequence[int]) -> tuple[Value, ...]:
        starts = [x.column + sum(widths[:index]) for index in range(len(widths))]
        return tuple(Value(x.id, start, width) for start, width in zip(starts, widths, strict=True))

    def rope(self, x: Value, num_heads: int, rope: RopeSpec) -> Value:
        if any(value.id == x.id for value in self.captured.values()):
            raise ValueError("a captured value must not be rotated, which happens in place")
        self.steps.append(Step("rope", (x,), num_heads=num_heads, rope=rope))
        return x

    def write_kv(self, layer: int, k: Value, v: Value, spec: AttentionSpec) -> None:
        self.steps.append(Step("write_kv", (k, v), layer=layer, attention=spec))

    def attention(self, layer: int, q: Value, spec: AttentionSpec) -> Value:
        return self._make("attention", (q,), q.width, layer=layer, attention=spec)

    def silu(self, x: Value) -> Value:
        return self._make("silu", (x,), x.width)

    def silu_mul(self, gate: Value, up: Value) -> Value:
        return self._make("silu_mul", (gate, up), gate.width)

    def add(self, x: Value, y: Value) -> Value:
        return self._make("add", (x, y), x.width)

    def select_outputs(self, x: Value) -> Value:
        out = self._new(x.width, on_outputs=True)
        self.steps.append(Step("select_outputs", (x,), out))
        return out

    def features(self, width: int) -> Value:
        if self.given is not None:
            raise ValueError("a pass reads its features once")
        self.given = self._new(width, on_outputs=False)
        self.steps.append(Step("features", writes=self.given))
        return self.given

    def capture(self, name: str, x: Value) -> None:
        if name in self.captured:
            raise ValueError(f"{name} is captured twice")
        self.captured[name] = x

    def matrices(self) -> list[tuple[str, ...]]:
        """The stacks of matrices that the recording multiplies with or embeds from, each once, in order of use."""
        return list(dict.fromkeys(step.weights for step in self.steps if step.kind in ("embed", "linear")))

    def products(self) -> list[tuple[str, ...]]:
        """The stacks of matrices of the linear layers, one entry a layer."""
        return [step.weights for step in self.steps if step.kind == "linear"]

    def weights(self) -> list[str]:
        """Every weight and bias that the recording reads, each once."""
        names = (name for step in self.steps for name in (*step.weights, *step.biases) if name is not None)
        return list(dict.fromkeys(names))

    def _make(
        self,
        kind: str,
        reads: tuple[Value, ...],
        width: int,
        *,
        weights: tuple[str, ...] = (),
        biases: tuple[str | None, ...] = (),
        layer: int = 0,
        eps: float = 0.0,
        attention: AttentionSpec | None = None,
    ) -> Value:  # size: eight parameters, the fields of Step
        out = self._new(width, self.on_outputs[reads[0].id])
        self.steps.append(
            Step(kind, reads, out, weights, biases, layer=layer, eps=eps, attention=attention),
        )
        return out

    def _new(self, width: int, on_outputs: bool) -> Value:
        self.widths.append(width)
        self.on_outputs.append(on_outputs)
        return Value(len(self.widths) - 1, 0, width)


def plan_buffers(recorder: Recorder, result: Value) -> BufferPlan:
    """Give every value a buffer, using buffers again once their value has been read for the last time.

    A value never shares a buffer with one that is read by the step that makes it; `result`, captured values and the
    features share theirs with nobody. A new value takes the free buffer that needs the least widening.
    """
    last_read = {value.id: index for index, step in enumerate(recorder.steps) for value in step.reads}
    widths: list[int] = []
    on_outputs: list[bool] = []
    buffer_of: dict[int, int] = {}
    free: list[int] = []
    alone = {result.id, *(value.id for value in recorder.captured.values())}
    alone |= {recorder.given.id} if recorder.given is not None else set()
    for index, step in enumerate(recorder.steps):
        made = step.writes
        if made is not None:
            rows = recorder.on_outputs[made.id]
            fitting = [b for b in free if on_outputs[b] == rows] if made.id not in alone else []
            if fitting:
                best = min(fitting, key=lambda b: (max(0, made.width - widths[b]), widths[b]))
                free.remove(best)
                widths[best] = max(widths[best], made.width)
            else:
                best = len(widths)
                widths.append(made.width)
                on_outputs.append(rows)
            buffer_of[made.id] = best
        free += {buffer_of[value.id] for value in step.reads if last_read[value.id] == index and value.id not in alone}
    inputs = frozenset() if recorder.given is None else frozenset((buffer_of[recorder.given.id],))
    return BufferPlan(tuple(widths), tuple(on_outputs), buffer_of, inputs)
