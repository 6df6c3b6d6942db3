"""`bench decode`: how fast prompts are read and answers written, and whether the answers are equal all the same.

Prompts are excerpts of the corpus; no answer ends early; the prefix cache is off. Greedy answers of a small model soon
repeat themselves, which n-grams foresee: a temperature shows how much of a speed-up that is. The settings are timed in
turns, so that a machine that slows down slows them all, and medians count. An untimed pass compares tokens and logits.

    prefill tokens/s   prompt tokens over the time until the last prompt of the batch has its first token
    decode tokens/s    the remaining tokens of all sequences over the remaining time
"""

import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from forerun.backends.base import Progress
from forerun.bench import corpus
from forerun.bench.lossless import Answer, Cell, Difference, Setting, compare, request_of, run_requests
from forerun.config import SpeculationConfig
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from forerun.speculation.setup import make_drafters


@dataclass(frozen=True)
class DecodeWish:
    """What to measure: every batch size with every speculation, `repeats` times; seeded above temperature 0.

    Raises UsageError.
    """

    prompt_tokens: int = 128
    new_tokens: int = 128
    batches: tuple[int, ...] = (1, 4, 16)
    speculations: tuple[str, ...] = ("off", "ngram")
    repeats: int = 3
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.new_tokens < 2 or self.repeats < 1:
            raise UsageError("at least 1 prompt token, 2 new tokens and 1 repeat are needed to measure anything")
        if not self.batches or min(self.batches) < 1 or not self.speculations:
            raise UsageError("at least one speculation setting and one batch size of at least 1 are needed")
        SamplingParams(temperature=self.temperature)  # raises

    @property
    def num_runs(self) -> int:
        """Runs in all, the untimed ones included."""
        return 1 + len(self.batches) * len(self.speculations) * (1 + self.repeats)

    def options(self, options: EngineOptions) -> EngineOptions:
        """What the model must be loaded with, so that the largest batch runs together."""
        size = max(self.batches)
        return replace(
            options,
            prefix_caching=False,
            max_num_seqs=max(size, options.max_num_seqs),
            max_outputs=max(options.max_outputs, 2 * size + 32),
            max_rows=max(options.max_rows, 2 * size + 32),
        )


@dataclass(frozen=True)
class Timing:
    """One timed run of a batch. Times are seconds."""

    prefill_s: float
    decode_s: float
    decode_steps: int
    decode_tokens: int
    tokens: int  # of all sequences, the first one of each included
    sequence_steps: int  # steps that yielded tokens, summed over the sequences
    drafted: int
    accepted: int


@dataclass(frozen=True)
class DecodeResult:
    """Medians of one setting. difference  the first one found in the untimed pass"""

    batch: int
    speculation: str
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    step_ms: float  # of decoding
    mean_accepted_len: float  # tokens per step and sequence
    acceptance: float | None  # of drafted tokens; None without drafts
    decode_tokens_per_s_runs: tuple[float, ...]
    peak_memory_bytes: int  # largest resident size of the process so far
    difference: Difference | None

    @property
    def is_equal(self) -> bool:
        return self.difference is None


def check_speculation(names: Seq[str]) -> None:
    """Raise UsageError for a speculation setting that does not exist, before a model is loaded."""
    for name in names:
        make_drafters(SpeculationConfig(name))


def bench_decode(llm: LLM, wish: DecodeWish, options: EngineOptions, progress: Progress) -> list[DecodeResult]:
    """Measure every setting. `progress` counts runs.

    options  those of `wish.options`, which the model was loaded with

    Raises UsageError when prompts or batch do not fit.
    """
    _check_fits(llm, wish, options)
    cells = _cells(llm, wish)
    settings = list(itertools.product(wish.batches, wish.speculations))
    done = itertools.count(1)
    differences = _compare(llm, cells, settings, options, lambda: progress(next(done), wish.num_runs))
    timings: dict[tuple[int, str], list[Timing]] = {setting: [] for setting in settings}
    peaks: dict[tuple[int, str], int] = {}
    for _, setting in itertools.product(range(wish.repeats), settings):
        batch, speculation = setting
        llm.reconfigure(speculation=speculation, options=options)
        timings[setting].append(_time(llm, cells[:batch]))
        peaks[setting] = peak_memory()
        progress(next(done), wish.num_runs)
    return [_result(wish, setting, timings[setting], peaks[setting], differences.get(setting)) for setting in settings]


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest


def _cells(llm: LLM, wish: DecodeWish) -> list[Cell]:
    tokens = llm.tokenizer.encode(corpus.text())
    prompts = corpus.excerpts(tokens, wish.prompt_tokens, max(wish.batches))
    params = SamplingParams(max_tokens=wish.new_tokens, ignore_eos=True, temperature=wish.temperature, seed=1)
    return [Cell(f"excerpt-{index}", prompt, params) for index, prompt in enumerate(prompts)]


def _check_fits(llm: LLM, wish: DecodeWish, options: EngineOptions) -> None:
    length, batch = wish.prompt_tokens + wish.new_tokens, max(wish.batches)
    if length > llm.max_model_len:
        raise UsageError(
            f"prompt and answer have {length} tokens but the context holds {llm.max_model_len}: ask for fewer"
        )
    needed = batch * (-(-length // options.block_size) + 1)  # the scheduler leaves each sequence a block to grow into
    if needed > llm.kv_layout.num_blocks:
        raise UsageError(
            f"{batch} sequences of {length} tokens need {needed * llm.kv_layout.bytes_per_block / 1e6:.0f} MB of KV "
            f"cache but it has {llm.kv_layout.total_bytes / 1e6:.0f} MB: raise --kv-cache-bytes or lower --batch"
        )


def _compare(
    llm: LLM, cells: Seq[Cell], settings: Seq[tuple[int, str]], options: EngineOptions, advance: Callable[[], None]
) -> dict[tuple[int, str], Difference]:
    """First difference of each setting from the largest batch under the first speculation setting, if there is one."""
    llm.reconfigure(speculation=settings[0][1], options=options)
    sequences = run_requests(llm.engine, [request_of(llm, cell) for cell in cells])
    expected = {cell.name: Answer.of(sequence) for cell, sequence in zip(cells, sequences, strict=True)}
    advance()
    differences = {}
    for batch, speculation in settings:
        row = compare(llm, Setting(speculation, batch), cells[:batch], expected, options)
        if row.differences:
            differences[batch, speculation] = row.differences[0]
        advance()
    return differences


def _time(llm: LLM, cells: Seq[Cell]) -> Timing:
    """Run a batch in the engine as it is configured."""
    engine = llm.engine
    start = time.perf_counter()
    sequences = [engine.add(replace(request_of(llm, cell), params=cell.params))[0] for cell in cells]  # no hashes
    while any(sequence.num_output == 0 for sequence in sequences):
        engine.step()
    prefilled = time.perf_counter()
    before = sum(sequence.num_output for sequence in sequences)
    steps = 0
    while engine.has_work:
        engine.step()
        steps += 1
    end = time.perf_counter()
    stats = [sequence.stats for sequence in sequences]
    tokens = sum(sequence.num_output for sequence in sequences)
    return Timing(
        prefill_s=prefilled - start,
        decode_s=end - prefilled,
        decode_steps=steps,
        decode_tokens=tokens - before,
        tokens=tokens,
        sequence_steps=sum(s.steps for s in stats),
        drafted=sum(s.drafted for s in stats),
        accepted=sum(s.accepted for s in stats),
    )


def _result(
    wish: DecodeWish, setting: tuple[int, str], timings: Seq[Timing], peak: int, difference: Difference | None
) -> DecodeResult:
    batch, speculation = setting
    speeds = [timing.decode_tokens / timing.decode_s for timing in timings]
    drafted = sum(t.drafted for t in timings)
    return DecodeResult(
        batch=batch,
        speculation=speculation,
        prefill_tokens_per_s=batch * wish.prompt_tokens / statistics.median(t.prefill_s for t in timings),
        decode_tokens_per_s=statistics.median(speeds),
        step_ms=1e3 * statistics.median(t.decode_s / max(1, t.decode_steps) for t in timings),
        mean_accepted_len=sum(t.tokens for t in timings) / sum(t.sequence_steps for t in timings),
        acceptance=sum(t.accepted for t in timings) / drafted if drafted else None,
        decode_tokens_per_s_runs=tuple(speeds),
        peak_memory_bytes=peak,
        difference=difference,
    )
