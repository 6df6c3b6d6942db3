"""Whole steps: what more rows cost, how near decoding and prefill are to the limits, what drawing and the engine add.

step cost   t(n rows) / t(1 row), for a chain of one sequence and for n sequences; settings in turns, and the median
            of the ratios within a turn, so that a machine that slows down slows both
engine      a step of Engine.step minus the operations of the program: Python, scheduling, drawing
equality    a row's logits have the same bits alone, in a chain, among other sequences and behind other chunks
"""

import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.backends.measure import op_seconds, timed_ops
from forerun.batch import Batch
from forerun.bench import corpus
from forerun.bench.rig import MAX_CHAIN, PREFILL, Rig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import Request, SamplingParams

ROWS = (1, 2, 4, 8, 16, 32, 64)
QUICK_ROWS = (1, 4, 16, 64)
TURN_S = 0.5  # settings are repeated for about so long in all
MIN_TURNS, MAX_TURNS = 5, 30


@dataclass(frozen=True)
class StepCost:
    """One step. kind  "chain" (one sequence), "sequences" (of one row) or "prefill" (the last row's logits only)

    ratio  to the step of one row of the same kind and context, the median over the turns
    """

    kind: str
    context: int
    rows: int
    seconds: float
    ratio: float


@dataclass(frozen=True)
class DrawCost:
    """Drawing one token from each of `rows` rows of logits. over_greedy  extra time as a share of a greedy step"""

    method: str
    rows: int
    vocab_size: int
    seconds: float
    over_greedy: float


@dataclass(frozen=True)
class EngineCost:
    """Median decoding step of the engine with `batch` sequences; outside_s of it is spent outside the operations."""

    batch: int
    step_s: float
    outside_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.step_s


@dataclass(frozen=True)
class Equality:
    """Rows whose logits were compared bit for bit. difference  the first one found, None when all are equal"""

    rows: int
    difference: str | None


DRAWS: dict[str, tuple[float, int, float]] = {  # method -> temperature, top_k, top_p
    "greedy": (0.0, 0, 1.0),
    "temperature 0.8": (0.8, 0, 1.0),
    "temperature 0.8, top-k 40, top-p 0.95": (0.8, 40, 0.95),
}


# ---- step cost ----


def measure_steps(rig: Rig, quick: bool, progress: Callable[[], None]) -> list[StepCost]:
    """Chains and sequences at every context, and prefill. `progress` is called after every group of settings."""
    rows = QUICK_ROWS if quick else ROWS
    found = []
    for context in rig.contexts(quick):
        start = rig.start(context, MAX_CHAIN)
        found += _costs("chain", context, {n: rig.chain(start, n) for n in rows}, rig, quick)
        progress()
        rig.fill_lanes(context)
        lanes = {n: rig.lanes(context, n) for n in rows if n <= rig.max_lanes(context)}
        found += _costs("sequences", context, lanes, rig, quick)
        progress()
    prefill = min(PREFILL, rig.max_len)
    found += _costs("prefill", 0, {prefill: rig.chain(0, prefill, last_only=True)}, rig, quick)
    progress()
    return found


def num_step_groups(rig: Rig, quick: bool) -> int:
    """How often `measure_steps` calls `progress`."""
    return 2 * len(rig.contexts(quick)) + 1


def _costs(kind: str, context: int, batches: dict[int, Batch], rig: Rig, quick: bool) -> list[StepCost]:
    """One group of settings in turns; the first number of rows is what the others are compared with."""
    if not batches:
        return []
    first = sum(_seconds(rig, batch) for batch in batches.values())  # also warms up
    turns = MIN_TURNS if quick else min(MAX_TURNS, max(MIN_TURNS, round(TURN_S * len(batches) / first)))
    times: dict[int, list[float]] = {rows: [] for rows in batches}
    for _ in range(turns):
        for rows, batch in batches.items():
            times[rows].append(_seconds(rig, batch))
    base = times[next(iter(batches))]
    return [
        StepCost(
            kind,
            context,
            rows,
            statistics.median(samples),
            statistics.median(sample / one for sample, one in zip(samples, base, strict=True)),
        )
        for rows, samples in times.items()
    ]


def _seconds(rig: Rig, batch: Batch) -> float:
    start = time.perf_counter()
    rig.backend.forward(batch)
    return time.perf_counter() - start


# ---- drawing ----


def measure_draws(rig: Rig, quick: bool) -> list[DrawCost]:
    """Every method of DRAWS on the model's own logits, for one row and for 16, the methods in turns."""
    found = []
    for rows in (1, 16):
        batch = rig.chain(rig.start(rig.contexts(True)[0], MAX_CHAIN), rows)
        asked = {method: rig.drawing(batch, *values) for method, values in DRAWS.items()}
        times: dict[str, list[float]] = {method: [] for method in asked}
        forwards = []
        for _ in range(MIN_TURNS if quick else 2 * MIN_TURNS):
            start = time.perf_counter()
            result = rig.backend.forward(batch)
            forwards.append(time.perf_counter() - start)
            rig.backend.draw(result, asked["greedy"])  # brings the logits into the caches, for all methods alike
            for method, drawing in asked.items():
                start = time.perf_counter()
                rig.backend.draw(result, drawing)
                times[method].append(time.perf_counter() - start)
        medians = {method: statistics.median(samples) for method, samples in times.items()}
        greedy_step = statistics.median(forwards) + medians["greedy"]
        vocab_size = result.view.shape[1]
        found += [
            DrawCost(method, rows, vocab_size, seconds, (seconds - medians["greedy"]) / greedy_step)
            for method, seconds in medians.items()
        ]
    return found


# ---- the engine ----


def measure_engine(llm: LLM, rig: Rig, options: EngineOptions, quick: bool) -> list[EngineCost]:
    """Plain decoding with 1, 16 and 32 sequences. Restarts the engine and overwrites the KV cache.

    options  those the model was loaded with
    """
    found = []
    for batch in (1, 16) if quick else (1, 16, 32):
        llm.reconfigure(speculation="off", options=options)
        engine, new_tokens = llm.engine, 8 if quick else 40
        prompts = corpus.excerpts(llm.tokenizer.encode(corpus.text()), 16, batch)
        params = SamplingParams(max_tokens=new_tokens, ignore_eos=True)
        for index, prompt in enumerate(prompts):
            engine.add(Request(str(index), prompt, params, eos_ids=llm.tokenizer.eos_ids))
        steps: list[tuple[float, float]] = []
        with timed_ops(rig.backend):
            while engine.has_work:
                start = time.perf_counter()
                advanced = engine.step()
                seconds = time.perf_counter() - start
                if len(advanced) == batch:  # the others are prefill, or the last sequences' last steps
                    steps.append((seconds, seconds - sum(op_seconds(rig.backend))))
        decoding = steps[1:]  # the first one still holds prompts
        found.append(
            EngineCost(
                batch,
                statistics.median(seconds for seconds, _ in decoding),
                statistics.median(outside for _, outside in decoding),
            )
        )
    return found


# ---- equality ----


def check_equality(rig: Rig, quick: bool) -> Equality:
    """Compare the logits of rows in a batch with those of the same rows alone, bit for bit."""
    start = rig.start(rig.contexts(True)[0], MAX_CHAIN)
    rows = 16 if quick else MAX_CHAIN
    together = rig.hashes(rig.chain(start, rows))
    alone = [rig.hashes(rig.chain(start + row, 1))[0] for row in range(rows)]
    problem = _first_difference("row of a chain alone and in it", alone, together)
    context = rig.contexts(True)[0]
    rig.fill_lanes(context)
    lanes = min(rows, rig.max_lanes(context))
    if lanes:
        one = rig.hashes(rig.lanes(context, 1))
        problem = problem or _first_difference(
            "sequence alone and among others", one * lanes, rig.hashes(rig.lanes(context, lanes))
        )
    chunk = min(PREFILL, rig.max_len) - 1
    whole = rig.hashes(rig.chain(0, chunk + 1, last_only=True))
    rig.backend.forward(rig.chain(0, chunk, last_only=True))
    problem = problem or _first_difference(
        "last prompt token alone and in its chunk", rig.hashes(rig.chain(chunk, 1)), whole
    )
    return Equality(rows + lanes + 1, problem)


def _first_difference(what: str, expected: Seq[bytes], found: Seq[bytes]) -> str | None:
    for index, (a, b) in enumerate(zip(expected, found, strict=True)):
        if a != b:
            return f"{what}: logits of row {index} differ"
    return None
