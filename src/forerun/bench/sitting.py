"""One sitting of `bench kernels`: limits, kernels and whole steps of one model, measured together, as one document.

The document is JSON values only, so that targets and plots can be made from it later; its parts are the dataclasses of
the modules that measure them.
"""

import itertools
import math
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from forerun.backends.base import Progress
from forerun.backends.measure import program_ops
from forerun.bench.kernels import StepShape, kernels_of, settings, time_settings
from forerun.bench.limits import Limits, LimitsMeter
from forerun.bench.loading import measure_load
from forerun.bench.rig import MAX_CHAIN, PREFILL, Rig
from forerun.bench.steps import (
    StepCost,
    check_equality,
    measure_draws,
    measure_engine,
    measure_steps,
    num_step_groups,
)
from forerun.llm import LLM, EngineOptions

FORMAT = "forerun-kernels-1"
TURNS, QUICK_TURNS = 7, 2  # timed steps of a kernel's setting

T = TypeVar("T")


@dataclass(frozen=True)
class ModelFacts:
    """What a model weighs. "per token" is what decoding one token reads: an untied embedding table is not.

    parameters  all of them               file_bits, packed_bits  per weight of its matrices
    """

    name: str
    parameters: int
    vocab_size: int
    file_bytes: int
    file_bytes_per_token: int
    packed_bytes_per_token: int
    file_bits: float
    packed_bits: float


def options_for(options: EngineOptions) -> EngineOptions:
    """The settings a model must be loaded with."""
    return EngineOptions(
        backend=options.backend,
        isa=options.isa,
        weights=options.weights,
        kv_format=options.kv_format,
        prefix_caching=False,
        max_rows=PREFILL,
        max_outputs=MAX_CHAIN + options.max_num_seqs,
    )


def measure(load: Callable[[], LLM], options: EngineOptions, quick: bool, progress: Progress) -> dict[str, Any]:
    """Load a model, measure everything and return the document. `progress` counts measurements.

    load     with `options`, which are those of `options_for`

    Raises what loading raises, UsageError when the model or the KV cache is too small to be measured.
    """
    llm, load_cost = measure_load(load)
    rig = Rig(llm)
    turns = QUICK_TURNS if quick else TURNS
    total = len(settings(rig, quick)) * (turns + 1) + num_step_groups(rig, quick) + 6
    counter = itertools.count(1)

    def advance() -> None:
        progress(next(counter), total)

    def timed(part: Callable[[], T]) -> T:
        found = part()
        advance()
        return found

    equality = timed(lambda: check_equality(rig, quick))
    meter = LimitsMeter(rig.backend.threads, quick)
    timed(meter.measure_round)  # before, between and after the rest
    times = time_settings(rig, llm.model.spec, turns, quick, advance)
    timed(meter.measure_round)
    steps = measure_steps(rig, quick, advance)
    timed(meter.measure_round)
    draws = timed(lambda: measure_draws(rig, quick))
    engine = timed(lambda: measure_engine(llm, rig, options, quick))
    limits, ops = meter.limits(), program_ops(rig.backend)
    facts = model_facts(llm, sum(op.weight_bytes for op in ops if op.kind != "embed"))
    kernels = kernels_of(ops, times, limits, llm.numerics_id)
    return {
        "format": FORMAT,
        "quick": quick,
        "numerics_id": llm.numerics_id,
        "threads": rig.backend.threads,
        "model": asdict(facts),
        "limits": asdict(limits),
        "load": asdict(load_cost),
        "kernels": [asdict(kernel) | {"bound": kernel.bound, "fraction": kernel.fraction} for kernel in kernels],
        "steps": [asdict(cost) for cost in steps],
        "decode": _decode(steps, facts, limits),
        "prefill": _prefill(steps, rig, llm, limits),
        "draws": [asdict(cost) for cost in draws],
        "engine": [asdict(cost) | {"tokens_per_s": cost.tokens_per_s} for cost in engine],
        "equality": asdict(equality),
    }


def model_facts(llm: LLM, packed_bytes: int) -> ModelFacts:
    """What the loaded model weighs. packed_bytes  of the matrices that a step reads"""
    model, files = llm.model, llm.files
    shapes = model.spec.weight_shapes()
    read = [name for name in shapes if name != "embed" or model.spec.tied_embeddings]
    matrices = [name for name in read if len(shapes[name]) == 2]
    weights = sum(math.prod(shapes[name]) for name in matrices)
    return ModelFacts(
        name=files.name,
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        vocab_size=model.spec.vocab_size,
        file_bytes=files.size_bytes,
        file_bytes_per_token=sum(model.weights.num_bytes(name) for name in read),
        packed_bytes_per_token=packed_bytes,
        file_bits=8 * sum(model.weights.num_bytes(name) for name in matrices) / weights,
        packed_bits=8 * packed_bytes / weights,
    )


def _decode(steps: Seq[StepCost], facts: ModelFacts, limits: Limits) -> dict[str, float]:
    """A step of one row at the shortest context against reading the file's bytes of a token."""
    chains = [cost for cost in steps if cost.kind == "chain" and cost.rows == 1]
    seconds = min(chains, key=lambda cost: cost.context).seconds
    limit_s = facts.file_bytes_per_token / limits.bandwidth(facts.file_bytes_per_token)
    return {"seconds": seconds, "limit_s": limit_s, "fraction": limit_s / seconds}


def _prefill(steps: Seq[StepCost], rig: Rig, llm: LLM, limits: Limits) -> dict[str, Any]:
    """The prompt's operations against the peak of its numerics."""
    cost = next(cost for cost in steps if cost.kind == "prefill")
    shape = StepShape.of(rig.chain(0, cost.rows, last_only=True), llm.model.spec, rig.bytes_per_token)
    operations = sum(shape.work(op).operations for op in program_ops(rig.backend))
    peak = limits.peak(llm.numerics_id)
    return {
        "tokens": cost.rows,
        "tokens_per_s": cost.rows / cost.seconds,
        "operations": operations,
        "peak_format": peak.format,
        "fraction": operations / cost.seconds / peak.all_threads,
    }
