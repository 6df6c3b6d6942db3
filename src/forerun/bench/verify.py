"""`verify`: is this model, on this machine, lossless? The plan of settings, what it will take, and the run.

    cells     prompts that begin alike up to a block border and one token beside it, and others, x samplings
    settings  drafters x batch sizes x prefill chunks x cache x KV pool x threads
    every cell under every setting is compared with plain decoding: bench/lossless

The quick plan takes every drafter with every batch size while the other axes rotate, so that every pair of values
meets, and is cut to a time. The full plan is the cross product, and the rotation once more on one thread.
"""

import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

from forerun.backends.base import Progress
from forerun.bench import corpus
from forerun.bench.drafters import DRAFTERS
from forerun.bench.lossless import (
    Answer,
    Cell,
    Difference,
    Row,
    Setting,
    answer_one_plainly,
    compare,
    plain_engine,
    request_of,
)
from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams

BATCHES = (1, 3, 8)
CHUNKS = (0, 3, 7, 16)
QUICK_S = 36.0  # of the 40 s that a quick run may take; the rest is for starting Python

SAMPLINGS: dict[str, SamplingParams] = {
    "greedy": SamplingParams(),
    "seeded": SamplingParams(temperature=0.8, seed=1),
    "penalties": SamplingParams(
        temperature=0.8,
        top_p=0.95,
        top_k=50,
        repetition_penalty=1.2,
        frequency_penalty=0.3,
        presence_penalty=0.2,
        seed=2,
    ),
    "greedy-penalties": SamplingParams(repetition_penalty=1.3, frequency_penalty=0.4),
    "min-p-bias": SamplingParams(temperature=0.9, min_p=0.05, logit_bias={3: 2.5, 7: -4.0}, seed=3),
    "min-tokens": SamplingParams(temperature=0.8, min_tokens=6, seed=4),  # of which the end would be likely before
}
END_BIAS = 5.0
TURNS = (*list(SAMPLINGS)[:4], "greedy", *list(SAMPLINGS)[4:])  # of prompts that repeat themselves: one greedy

Load = Callable[[int], LLM]  # a model on so many threads


@dataclass
class Verdict:
    """What a run found. skipped  settings that a quick run had no time for"""

    numerics_id: str = ""
    rows: list[Row] = field(default_factory=list)
    skipped: list[Setting] = field(default_factory=list)
    step_s: float = 0.0  # of plain decoding
    seconds: float = 0.0

    @property
    def first_difference(self) -> Difference | None:
        return next((difference for row in self.rows for difference in row.differences), None)

    @property
    def is_equal(self) -> bool:
        return bool(self.rows) and self.first_difference is None


# ---- the plan ----


def rotating_settings(threads: int, drafters: Seq[str] = DRAFTERS) -> list[Setting]:
    """Every drafter with every batch size, while chunk, cache and pool rotate: the values of any two axes meet, save
    that a drafter meets three of the four chunks.

    In three passes, each with every drafter and every batch size, so that a plan cut short has still met them all.
    """
    passes = itertools.product(range(len(BATCHES)), range(len(drafters)))
    indices = [(d, (d + shift) % len(BATCHES)) for shift, d in passes]
    return [
        Setting(
            drafter=drafters[d],
            batch=BATCHES[b],
            chunk=CHUNKS[(d + b) % len(CHUNKS)],
            cache=(d // 2 + b) % 2 == 0,
            tight=BATCHES[b] > 1 and (d // 3 + b) % 2 == 0,
            threads=threads,
        )
        for d, b in indices
    ]


def all_settings(threads: int, drafters: Seq[str] = DRAFTERS) -> list[Setting]:
    """The cross product; a batch of one is never preempted, so for it the pool does not matter."""
    product = itertools.product(drafters, BATCHES, CHUNKS, (False, True), (False, True))
    return [Setting(*values, threads=threads) for values in product if values[1] > 1 or not values[4]]


def make_cells(llm: LLM, count: int, new_tokens: int) -> list[Cell]:
    """`count` prompts of the corpus, at most 16, the samplings in turn; any few of them are already varied.

    Those that begin alike share 15, 16, 17, 31, 32 or 33 tokens with the first, which warms the cache. Most end shortly
    before a block of 16 is full, so that sequences soon need another one, and some are preempted where blocks are few.
    """
    tokens = llm.tokenizer.encode(corpus.text())
    texts = corpus.excerpts(tokens, 29, 8)
    shared, repeated = tuple(tokens[:48]), (*texts[3][:8], *texts[5][:2])
    prompts = {"shared-48": (*shared, *texts[1][:12]), "shared-17": (*shared[:17], *texts[2][:12])}
    prompts |= {"repeats": (*repeated * 2, *repeated[:8]), "shared-32": (*shared[:32], *texts[3][:13])}
    prompts |= {"one-token": (tokens[5],)}
    prompts |= {f"shared-{n}": (*shared[:n], *texts[i][: 13 - n % 2]) for i, n in enumerate((15, 33, 16, 31), start=4)}
    prompts |= {f"text-{i}": text for i, text in enumerate(texts[1:], start=1)}
    return [
        Cell(f"{name}/{sampling}", prompt, _params(SAMPLINGS[sampling], new_tokens, llm.tokenizer.eos_ids))
        for (name, prompt), sampling in zip(list(prompts.items())[:count], itertools.cycle(TURNS), strict=False)
    ]


def _params(params: SamplingParams, new_tokens: int, ends: Seq[int]) -> SamplingParams:
    if params.min_tokens:
        params = replace(params, logit_bias=dict.fromkeys(ends, END_BIAS))
    return replace(params, max_tokens=new_tokens, min_tokens=min(params.min_tokens, new_tokens))


# ---- what it will take ----

ACCEPTED = {"oracle": 8.0, "branches": 3.0, "ngram": 1.2}  # tokens per step that a plan reckons with
ROW_COST = 0.015  # of a step with one row, for every further row


def estimate_s(settings: Seq[Setting], cells: Seq[Cell], step_s: float) -> float:
    """Rough seconds of comparing all cells under the settings, given the time of a plain decoding step."""
    return sum(_estimate_steps(setting, cells) for setting in settings) * step_s


def _estimate_steps(setting: Setting, cells: Seq[Cell]) -> float:
    """Plain steps that take as long as a setting."""
    decoding = sum(cell.params.max_tokens or 0 for cell in cells) / ACCEPTED.get(setting.drafter, 1.0)
    prompts = sum(len(cell.prompt) for cell in cells)
    chunks = sum(-(-len(cell.prompt) // setting.chunk) if setting.chunk else 1 for cell in cells)
    drafted = min(48, 15 * setting.batch) if setting.drafter != "off" else 0
    steps = (decoding + chunks) / min(setting.batch, len(cells))
    return steps * (1 + ROW_COST * (setting.batch + drafted)) + ROW_COST * prompts


def measure_step(llm: LLM, cell: Cell, options: EngineOptions) -> float:
    """Median seconds of a plain decoding step."""
    engine = plain_engine(llm, options)
    engine.add(request_of(llm, replace(cell, params=SamplingParams(max_tokens=12, ignore_eos=True))))
    times = []
    while engine.has_work:
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# ---- the run ----


@dataclass(frozen=True)
class Plan:
    """What will run: `settings` on all threads, then `on_one_thread` after a second load."""

    cells: list[Cell]
    settings: list[Setting]
    on_one_thread: list[Setting]
    estimate_s: float  # loads not counted

    @property
    def num_answers(self) -> int:
        """Comparisons in all, and the plain answers they need."""
        return len(self.cells) * (1 + len(self.settings) + len(self.on_one_thread))


SIZES = ((12, 32), (12, 24), (10, 20), (8, 16), (6, 12), (4, 8))  # (prompts, new tokens), the first for a full run
ONE_THREAD_SHARE = 0.25  # of a quick run's time, when there is time for a second load


def full_plan(llm: LLM, threads: int, step_s: float, drafters: Seq[str]) -> Plan:
    """Every setting. threads  of the model as it is loaded; one thread needs no comparison with one thread"""
    on_one = rotating_settings(1, drafters) if threads > 1 else []
    return _plan(make_cells(llm, *SIZES[0]), all_settings(threads, drafters), on_one, step_s)


def quick_plan(llm: LLM, threads: int, one_thread: bool, step_s: float, left_s: float, drafters: Seq[str]) -> Plan:
    """The rotating settings, over as many and as long answers as `left_s` seconds allow."""
    on_one = rotating_settings(1, drafters)[: len(drafters)] if one_thread else []
    settings = rotating_settings(threads, drafters)
    plans = (_plan(make_cells(llm, *size), settings, on_one, step_s) for size in SIZES)
    plan = next((plan for plan in plans if plan.estimate_s < left_s), None)
    return plan or replace(_plan(make_cells(llm, *SIZES[-1]), settings, on_one, step_s), estimate_s=max(0.0, left_s))


def _plan(cells: list[Cell], settings: list[Setting], on_one: list[Setting], step_s: float) -> Plan:
    seconds = estimate_s([Setting(), *settings], cells, step_s)
    seconds += estimate_s(on_one, cells, step_s * 2)  # a step is bound by memory before long
    return Plan(cells, settings, on_one, seconds)


def verify(
    load: Load,
    options: EngineOptions,
    threads: int,
    *,
    quick: bool = False,
    stop_at_first: bool = False,
    announce: Callable[[Plan], Progress] = lambda plan: lambda done, total: None,
    speculation: SpeculationConfig | None = None,
) -> Verdict:
    """Compare every cell under every setting of the plan with plain decoding.

    load      loads the model with `options` and so many threads; called once, and once more for one thread
    quick     the quick plan, cut to QUICK_S
    announce  is told the plan before it runs, and returns what will be told the progress in answers
    speculation  a drafter of the caller's, which the plan takes like its own; under the rule "coupled"
    """
    start = time.perf_counter()
    llm = load(threads)
    load_s = time.perf_counter() - start
    drafters = DRAFTERS
    if speculation is not None:
        llm.reconfigure(speculation=speculation, options=options)  # refuses at once what cannot draft for this model
        drafters = (speculation.drafter, *(name for name in DRAFTERS if name != speculation.drafter))
    step_s = measure_step(llm, make_cells(llm, 1, 1)[0], options)
    deadline = start + QUICK_S if quick else math.inf
    if quick:
        one_thread = threads > 1 and load_s < QUICK_S / 4
        left_s = deadline - time.perf_counter() - (load_s if one_thread else 0.0)
        plan = quick_plan(llm, threads, one_thread, step_s, left_s, drafters)
        reserved_s = load_s + left_s * ONE_THREAD_SHARE if one_thread else 0.0
    else:
        plan, reserved_s = full_plan(llm, threads, step_s, drafters), 0.0
    verdict = Verdict(llm.numerics_id, step_s=step_s)
    run = _Run(plan, options, verdict, announce(plan), stop_at_first, speculation)
    run.answer(llm)
    run.compare(llm, plan.settings, deadline - reserved_s)
    if plan.on_one_thread and not run.is_over:
        del llm  # its memory is needed
        gc.collect()
        run.compare(load(1), plan.on_one_thread, deadline)
    verdict.seconds = time.perf_counter() - start
    return verdict


class _Run:
    """A plan in progress: its answers so far."""

    def __init__(
        self,
        plan: Plan,
        options: EngineOptions,
        verdict: Verdict,
        progress: Progress,
        stop_at_first: bool,
        speculation: SpeculationConfig | None,
    ) -> None:
        self._plan, self._options, self._verdict = plan, options, verdict
        self._progress, self._stop_at_first = progress, stop_at_first
        # A fixed budget, as everywhere here: one that learns what pays might hardly draft.
        self._own = None if speculation is None else replace(speculation, budget="fixed")
        self._plain: dict[str, Answer] = {}
        self._done = 0

    @property
    def is_over(self) -> bool:
        """A difference was found and no further one is wanted."""
        return self._stop_at_first and self._verdict.first_difference is not None

    def answer(self, llm: LLM) -> None:
        """Decode every cell plainly."""
        for cell in self._plan.cells:
            self._plain[cell.name] = answer_one_plainly(llm, cell, self._options)
            self._advance(1)

    def compare(self, llm: LLM, settings: Seq[Setting], deadline: float) -> None:
        """Compare under each setting that is expected to end before `deadline`, on perf_counter's clock."""
        spent_s = all_estimated_s = 0.0  # of settings compared so far: corrects the estimate of the next one
        for setting in settings:
            if self.is_over:
                return
            estimated_s = estimate_s([setting], self._plan.cells, self._verdict.step_s)
            correction = spent_s / all_estimated_s if all_estimated_s else 1.0
            start = time.perf_counter()
            if start + estimated_s * correction > deadline:
                self._verdict.skipped.append(setting)
                continue
            own = self._own if self._own is not None and setting.drafter == self._own.drafter else None
            self._verdict.rows.append(compare(llm, setting, self._plan.cells, self._plain, self._options, own))
            spent_s += time.perf_counter() - start
            all_estimated_s += estimated_s
            self._advance(len(self._plan.cells))

    def _advance(self, cells: int) -> None:
        self._done += cells
        self._progress(self._done, self._plan.num_answers)
