"""EngineCollector: what the engine counts by itself, read when Prometheus asks, so that it costs a step nothing.

The scrape runs beside the engine's thread: every value is read once, and maps and lists that may grow are copied first,
which Python does in one piece.
"""

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forerun import __version__
from forerun.llm import LLM
from forerun.server.async_engine import AsyncEngine
from forerun.speculation.allocation.allocator import Allocator
from forerun.speculation.drafter import RememberingDrafter
from forerun.speculation.speculator import DrafterStats

Labelled = Mapping[tuple[str, ...], float]


class EngineCollector(Collector):
    """Of one LLM and the thread that runs it."""

    def __init__(self, llm: LLM, engine: AsyncEngine, model_name: str) -> None:
        self._llm = llm
        self._engine = engine
        # These never change: no scrape needs to ask the backend, which belongs to the engine's thread.
        self._info = {
            "version": __version__,
            "model": model_name,
            "numerics_id": llm.numerics_id,
            "kv_format": llm.kv_layout.stacks[0].codec,
            "kv_formats": ",".join(f"{name}:{codec}" for name, codec in llm.kv_layout.formats.items()),
            "speculation": llm.engine.speculator.drafter_name,
            "verification": str(llm.engine.verification["name"]),
            "lossy": str(llm.engine.verification["is_lossy"]).lower(),
        }
        memory = llm.backend.memory()
        self._memory: Labelled = {(use,): num_bytes for use, num_bytes in asdict(memory).items()}

    def collect(self) -> Iterator[Metric]:
        yield _gauge("forerun_info", "What runs here; always 1.", {tuple(self._info.values()): 1.0}, tuple(self._info))
        yield _gauge("forerun_memory_bytes", "Memory held, by use.", self._memory, ("use",))
        yield from self._steps()
        yield from self._queues()
        yield from self._speculation()

    def _steps(self) -> Iterator[Metric]:
        stats, health = self._llm.engine.stats, self._engine.health
        yield _counter("forerun_steps", "Engine steps.", stats.steps)
        yield _counter("forerun_forward_seconds", "Time in the model's forward pass and draws.", stats.forward_s)
        yield _counter("forerun_failed_steps", "Steps that failed and were retried by sequence.", stats.failed_steps)
        yield _counter("forerun_engine_failures", "Failures outside of what the engine retries.", health.failures)
        yield _gauge("forerun_engine_up", "1 while the engine's thread runs.", float(health.alive))

    def _queues(self) -> Iterator[Metric]:
        scheduler = self._llm.engine.scheduler
        pool = scheduler.pool
        yield _gauge("forerun_running", "Generations that run.", len(scheduler.running))
        yield _gauge("forerun_waiting", "Generations that wait for blocks or for their turn.", len(scheduler.waiting))
        yield _counter(
            "forerun_preemptions", "Running generations that gave up their blocks.", scheduler.num_preemptions
        )
        cached, owned = pool.num_cached, pool.num_owned
        blocks: Labelled = {
            ("owned",): owned,
            ("cached",): cached,
            ("blank",): max(0, pool.num_blocks - owned - cached),
        }
        yield _gauge("forerun_kv_blocks", "KV blocks: in use, kept for prefix hits, or blank.", blocks, ("state",))
        yield _gauge("forerun_kv_block_tokens", "Tokens that a KV block holds.", scheduler.block_size)

    def _speculation(self) -> Iterator[Metric]:
        speculator = self._llm.engine.speculator
        stats = speculator.stats
        by_drafter = dict(stats.by_drafter)
        yield from _drafters(by_drafter)
        held: Labelled = {
            (drafter.name,): drafter.num_bytes
            for drafter in (*speculator.guides, *speculator.drafters)
            if isinstance(drafter, RememberingDrafter)
        }
        yield _gauge("forerun_drafter_bytes", "Memory of what a drafter remembers.", held, ("drafter",))
        yield _counter("forerun_bonus_tokens", "Tokens beside accepted drafts in steps with a draft.", stats.bonus)
        yield _counter(
            "forerun_verify_seconds", "Time in forward passes and draws of steps with a draft.", stats.verify_s
        )
        yield _counter("forerun_dropped_draft_tokens", "Drafts that were impossible.", stats.dropped_nodes)
        yield _counter(
            "forerun_allocator_decisions",
            "What was decided for a generation in a step, by reason.",
            {(reason,): count for reason, count in dict(stats.decisions).items()},
            ("reason",),
        )
        budget = speculator.budget
        if isinstance(budget, Allocator):
            yield _counter(
                "forerun_guard_trips", "Times that speculation was slower and rested.", budget.guard.num_trips
            )
            yield _gauge("forerun_guard_off", "1 while speculation rests.", float(budget.guard.is_off))


def _drafters(by_drafter: Mapping[str, DrafterStats]) -> Iterator[Metric]:
    def each(field: str) -> Labelled:
        return {(name,): getattr(stats, field) for name, stats in by_drafter.items()}

    def by_position(field: str) -> Labelled:
        return {
            (name, str(position)): count
            for name, stats in by_drafter.items()
            for position, count in enumerate(list(getattr(stats, field)), start=1)
        }

    one, two = ("drafter",), ("drafter", "position")
    yield _counter("forerun_drafts", "Drafts with tokens of the drafter.", each("drafts"), one)
    yield _counter("forerun_drafted_tokens", "Draft tokens verified.", each("drafted"), one)
    yield _counter("forerun_accepted_tokens", "Draft tokens accepted.", each("accepted"), one)
    yield _counter("forerun_drafter_errors", "Failures of a drafter.", each("errors"), one)
    yield _counter("forerun_drafter_seconds", "Time in a drafter.", each("seconds"), one)
    yield _counter(
        "forerun_drafted_tokens_at", "Draft tokens verified, by place in the draft.", by_position("drafted_at"), two
    )
    yield _counter(
        "forerun_accepted_tokens_at", "Draft tokens accepted, by place in the draft.", by_position("accepted_at"), two
    )


def _counter(name: str, text: str, value: float | Labelled, labels: Seq[str] = ()) -> Metric:
    return _filled(CounterMetricFamily(name, text, labels=labels), value)


def _gauge(name: str, text: str, value: float | Labelled, labels: Seq[str] = ()) -> Metric:
    return _filled(GaugeMetricFamily(name, text, labels=labels), value)


def _filled(family: CounterMetricFamily | GaugeMetricFamily, value: float | Labelled) -> Metric:
    values: Iterable[tuple[tuple[str, ...], float]] = value.items() if isinstance(value, Mapping) else [((), value)]
    for names, number in values:
        family.add_metric(names, number)
    return family
