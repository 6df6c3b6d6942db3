"""`bench speculation`: every drafter against plain decoding in the same run, by kind of text, batch and temperature.

A cell is a drafter, a category of prompts, a batch size and a temperature. In it plain decoding and the drafter are
timed in pairs, in the order plain, drafter, drafter, plain, ..., on the next prompts of the category, with a fresh seed
a pair that both arms share; so the ratio of a pair compares two runs that say the same, one right after the other.

    speed-up         median over the pairs of the ratio of decode tokens/s, with bounds as bench/pairs says
    whole            the same of tokens/s of whole runs, in which prompts count too
    accepted length  tokens per step and sequence
    draft share      of the drafter's runs' time, the part spent in drafters
    equal            tokens in every pair; in one more run of both arms, logits hashes too

A cell fails when answers differ that verification promises to be equal, or when the upper bound of either ratio lies
below NEVER_SLOWER. Speed gets a verdict from MIN_PAIRS pairs on only.
"""

import itertools
import shutil
import statistics
import tempfile
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.backends.base import Progress
from forerun.bench.pairs import ratio_of
from forerun.bench.prompts import Prompt, PromptSet
from forerun.bench.speculation_arms import ArmRun, Arms, Asked, add_counts, prompt_ids
from forerun.bench.speculation_cells import ByDrafter, Cell, CellResult, SpeculationResults, SpeculationWish
from forerun.config import SpeculationConfig
from forerun.drafter_check import DrafterCheck, check_drafters
from forerun.errors import ForerunError, UsageError
from forerun.llm import LLM, EngineOptions
from forerun.models.aliases import cache_folder
from forerun.sequence import SamplingParams

MIN_ANSWER = 16  # tokens before an answer may end, so that there is something to time


@dataclass(frozen=True)
class Watch:
    """Who is told how measuring goes on.

    progress  counts runs
    measured  is called after every cell, with all results so far; the cell is the last of them
    """

    progress: Progress
    measured: Callable[[SpeculationResults], None] = lambda results: None


def cells_of(prompts: PromptSet, wish: SpeculationWish) -> list[Cell]:
    """Every cell that is wished for, in the order of the table."""
    axes = (wish.drafters, prompts.categories, wish.batches, wish.temperatures)
    return [Cell(*values) for values in itertools.product(*axes)]


def bench_speculation(
    llm: LLM,
    prompts: PromptSet,
    wish: SpeculationWish,
    options: EngineOptions,
    watch: Watch,
    cells: Seq[Cell] | None = None,
) -> SpeculationResults:
    """Measure every cell. Restarts the model's engine.

    options  those of `wish.options`, which the model was loaded with
    cells    of those that are wished for, the ones to measure; None for all

    Raises UsageError when prompts or batch do not fit.
    """
    _check_fits(llm, prompts, wish, options)
    cells = cells_of(prompts, wish) if cells is None else cells
    results: list[CellResult] = []
    skipped: dict[str, str] = {}
    checks: dict[str, tuple[DrafterCheck, ...]] = {}
    found = SpeculationResults(results, skipped, checks)
    runs = _Runs(watch.progress, 2 * (wish.warmups + wish.pairs + 1), len(cells))
    with tempfile.TemporaryDirectory(prefix="forerun-bench-") as scratch:
        for index, cell in enumerate(cells):
            runs.begin(index)
            if cell.drafter in skipped:
                continue
            config = wish.config_of(cell.drafter)
            try:
                if cell.drafter not in checks:
                    checks[cell.drafter] = _check(llm, config, _apart(options, scratch, f"check-{index}"))
                arms = Arms(llm, config, _apart(options, scratch, str(index)))
            except ForerunError as error:
                if wish.is_strict:
                    raise
                skipped[cell.drafter] = str(error)
                continue
            results.append(_measure(arms, cell, prompts.categories[cell.category], wish, runs))
            watch.measured(found)
    llm.reconfigure(speculation="off", options=options)  # the scratch folder is gone
    return found


def _check(llm: LLM, config: SpeculationConfig, options: EngineOptions) -> tuple[DrafterCheck, ...]:
    """Do drafters that run a model agree with this one? Asked of drafters that no cell uses."""
    llm.reconfigure(speculation=config, options=options)
    return tuple(check_drafters(llm))


class _Runs:
    """Counts runs for a progress bar; cells that are left out count as run."""

    def __init__(self, progress: Progress, per_cell: int, num_cells: int) -> None:
        self._progress, self._per_cell, self._total = progress, per_cell, per_cell * num_cells
        self._done = 0

    def begin(self, index: int) -> None:
        """The cell of this index comes next."""
        self._done = index * self._per_cell

    def advance(self) -> None:
        """One run is done."""
        self._done += 1
        self._progress(self._done, self._total)


def _apart(options: EngineOptions, scratch: str, name: str) -> EngineOptions:
    """Options with a copy of what drafters keep in the user's cache: a cell neither adds to that nor sees what another
    cell added."""
    kept, copy = cache_folder() / "drafters", Path(scratch) / name
    if kept.is_dir():
        shutil.copytree(kept, copy)
    else:
        copy.mkdir()
    return replace(options, drafter_files=copy)


def _check_fits(llm: LLM, prompts: PromptSet, wish: SpeculationWish, options: EngineOptions) -> None:
    longest = max(
        (_length(llm, prompt, wish.new_tokens), prompt.id) for group in prompts.categories.values() for prompt in group
    )
    if longest[0] > llm.max_model_len:
        raise UsageError(
            f"prompt {longest[1]} and its answers have {longest[0]} tokens but the context holds {llm.max_model_len}: "
            "leave its category out or raise max_model_len"
        )
    batch = max(wish.batches)
    needed = batch * (-(-longest[0] // options.block_size) + 1)  # the scheduler leaves each sequence a block to grow
    if needed > llm.kv_layout.num_blocks:
        raise UsageError(
            f"{batch} sequences of {longest[0]} tokens need {needed * llm.kv_layout.bytes_per_block / 1e6:.0f} MB of "
            f"KV cache but it has {llm.kv_layout.total_bytes / 1e6:.0f} MB: raise --kv-cache-bytes or lower --batch"
        )


def _length(llm: LLM, prompt: Prompt, new_tokens: int) -> int:
    """Most tokens of a prompt with its answers."""
    messages = [{"role": "user", "content": turn} for turn in prompt.turns]
    return sum(len(prompt_ids(llm, [message])) + new_tokens for message in messages)


# ---- one cell ----


def _measure(arms: Arms, cell: Cell, prompts: Seq[Prompt], wish: SpeculationWish, runs: _Runs) -> CellResult:
    engines = (arms.plain, arms.drafted)

    def run(engine: int, turn: int, hashed: bool = False) -> ArmRun:
        done = arms.run(engines[engine], _asked(cell, prompts, wish, turn, hashed), cell.batch)
        runs.advance()
        return done

    for turn in range(wish.pairs, wish.pairs + wish.warmups):
        for engine in (0, 1):
            run(engine, turn)
    pairs = []
    for turn in range(wish.pairs):
        order = (0, 1) if turn % 2 == 0 else (1, 0)
        done = {engine: run(engine, turn) for engine in order}
        pairs.append((done[0], done[1]))
    hashed = (run(0, 0, True), run(1, 0, True))
    difference = None
    if wish.promises_equality(cell.temperature):
        difference = _first_difference([*pairs, hashed])
    return _result(arms, cell, pairs, wish, difference)


def _asked(cell: Cell, prompts: Seq[Prompt], wish: SpeculationWish, turn: int, hashed: bool) -> list[Asked]:
    """The requests of the run number `turn`: the next prompts, each with a seed of its own."""
    size = wish.run_size(cell.batch)
    numbers = range(turn * size, (turn + 1) * size)
    return [
        Asked(
            prompts[number % len(prompts)],
            SamplingParams(
                max_tokens=wish.new_tokens,
                min_tokens=min(MIN_ANSWER, wish.new_tokens),
                temperature=cell.temperature,
                seed=1 + number if wish.promises_equality(cell.temperature) else None,
                logits_hash=hashed,
            ),
        )
        for number in numbers
    ]


def _first_difference(pairs: Seq[tuple[ArmRun, ArmRun]]) -> str | None:
    """Where the answers of two arms part for the first time; None when they never do."""
    for index, (plain, drafted) in enumerate(pairs):
        for answer, (a, b) in enumerate(zip(plain.answers, drafted.answers, strict=True)):
            if a != b:
                place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                return f"pair {index}, answer {answer}, token {place}"
        for answer, (c, d) in enumerate(zip(plain.hashes, drafted.hashes, strict=True)):
            if c != d:
                place = next(i for i, (x, y) in enumerate(zip(c, d, strict=True)) if x != y)
                return f"logits of answer {answer}, token {place}"
    return None


def _result(
    arms: Arms, cell: Cell, pairs: Seq[tuple[ArmRun, ArmRun]], wish: SpeculationWish, difference: str | None
) -> CellResult:
    drafted_runs = [drafted for _, drafted in pairs]
    drafted_at: list[int] = []
    accepted_at: list[int] = []
    for run in drafted_runs:
        add_counts(drafted_at, run.drafted_at)
        add_counts(accepted_at, run.accepted_at)
    return CellResult(
        cell=cell,
        speedup=ratio_of([drafted.tokens_per_s / plain.tokens_per_s for plain, drafted in pairs]),
        whole=ratio_of([drafted.whole_tokens_per_s / plain.whole_tokens_per_s for plain, drafted in pairs]),
        plain_tokens_per_s=statistics.median(plain.tokens_per_s for plain, _ in pairs),
        tokens_per_s=statistics.median(drafted.tokens_per_s for drafted in drafted_runs),
        tokens_per_s_pairs=tuple((plain.tokens_per_s, drafted.tokens_per_s) for plain, drafted in pairs),
        accepted_len=sum(run.tokens for run in drafted_runs) / sum(run.steps for run in drafted_runs),
        drafted=sum(run.drafted for run in drafted_runs),
        accepted=sum(run.accepted for run in drafted_runs),
        drafted_at=tuple(drafted_at),
        accepted_at=tuple(accepted_at),
        draft_share=sum(run.draft_s for run in drafted_runs) / sum(run.total_s for run in drafted_runs),
        by_drafter=_by_drafter(arms),
        is_equal=difference is None if wish.promises_equality(cell.temperature) else None,
        difference=difference,
        new_tokens=wish.new_tokens,
        requests=wish.run_size(cell.batch),
    )


def _by_drafter(arms: Arms) -> dict[str, ByDrafter]:
    found = arms.by_drafter()
    seconds = sum(stats.seconds for stats in found.values()) or 1.0
    return {
        name: ByDrafter(
            stats.drafts,
            stats.drafted,
            stats.accepted,
            tuple(stats.drafted_at),
            tuple(stats.accepted_at),
            stats.errors,
            stats.seconds / seconds,
        )
        for name, stats in found.items()
    }
