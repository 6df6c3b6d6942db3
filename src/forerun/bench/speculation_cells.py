"""What `bench speculation` is asked to measure, and what it finds: cells. The terms are those of bench/speculation."""

from dataclasses import dataclass, field, replace

from forerun.bench.drafters import registered_drafters
from forerun.bench.pairs import Ratio, geometric_mean
from forerun.config import SpeculationConfig
from forerun.drafter_check import DrafterCheck
from forerun.errors import UsageError
from forerun.llm import EngineOptions
from forerun.sequence import SamplingParams
from forerun.speculation.setup import drafter_names, make_drafters

NEVER_SLOWER = 0.97
MIN_PAIRS = 7


@dataclass(frozen=True)
class SpeculationWish:
    """What to measure.

    drafters  names as `speculation` takes them: "off" (plain against plain: what the machine's noise looks like), a
              drafter, several joined by "+"
    pairs     of runs, in every cell
    requests  of a run at least; a batch larger than that makes it larger, and so does rounding up to whole batches
    warmups   untimed runs of each arm before, on other prompts
    config    how drafts are made and verified: everything but the drafters' names
    is_strict a drafter that cannot draft for the model is an error; else it is left out, with the reason

    Raises UsageError.
    """

    drafters: tuple[str, ...]
    batches: tuple[int, ...] = (1, 4, 16)
    temperatures: tuple[float, ...] = (0.0, 0.8)
    new_tokens: int = 64
    pairs: int = MIN_PAIRS
    requests: int = 4
    warmups: int = 1
    config: SpeculationConfig = field(default_factory=SpeculationConfig)
    is_strict: bool = True

    def __post_init__(self) -> None:
        if not self.drafters or not self.batches or not self.temperatures:
            raise UsageError("at least one drafter, one batch size and one temperature are needed")
        if min(self.batches) < 1 or self.new_tokens < 2 or min(self.pairs, self.requests) < 1 or self.warmups < 0:
            raise UsageError("batch sizes, pairs and requests must be at least 1, and answers 2 tokens long")
        for temperature in self.temperatures:
            SamplingParams(temperature=temperature)  # raises
        for name in self.drafters:
            make_drafters(self.config_of(name))  # raises
        owners = {key.rpartition(".")[0] for key in self.config.options} - {""}
        unused = sorted(owners - {part for name in self.drafters for part in drafter_names(name)})
        if unused:
            raise UsageError(f"there are options for the drafter {unused[0]!r}, which is not measured: add it")

    def config_of(self, name: str) -> SpeculationConfig:
        """The configuration of one of `drafters`, with those options that are for it."""
        owners = ("", *drafter_names(name))
        options = {key: value for key, value in self.config.options.items() if key.rpartition(".")[0] in owners}
        return replace(self.config, drafter=name, options=options if name != "off" else {})

    def options(self, options: EngineOptions) -> EngineOptions:
        """What the model must be loaded with, so that the largest batch runs together."""
        size = max(self.batches)
        outputs = size + self.config.max_draft_rows
        return replace(
            options,
            prefix_caching=False,
            max_num_seqs=max(size, options.max_num_seqs),
            max_outputs=max(options.max_outputs, outputs),
            max_rows=max(options.max_rows, outputs),
        )

    def run_size(self, batch: int) -> int:
        """Requests of a run: whole waves of `batch`."""
        return -(-max(batch, self.requests) // batch) * batch

    def promises_equality(self, temperature: float) -> bool:
        """Does verification promise the same tokens at this temperature?"""
        method = self.config.verification
        return method == "coupled" or (method != "typical" and temperature == 0.0)


@dataclass(frozen=True)
class Cell:
    """One place of the table."""

    drafter: str
    category: str
    batch: int
    temperature: float


@dataclass(frozen=True)
class ByDrafter:
    """What one of a cell's drafters did, warm-up included: speculator.DrafterStats. share  of the time in drafters"""

    drafts: int
    drafted: int
    accepted: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    errors: int
    share: float


@dataclass(frozen=True)
class CellResult:
    """A measured cell.

    is_equal              None where verification promises no equality
    new_tokens, requests  longest answer, requests of a run
    """

    cell: Cell
    speedup: Ratio
    whole: Ratio
    plain_tokens_per_s: float  # medians of decoding
    tokens_per_s: float
    tokens_per_s_pairs: tuple[tuple[float, float], ...]  # (plain, drafter)
    accepted_len: float
    drafted: int
    accepted: int
    drafted_at: tuple[int, ...]
    accepted_at: tuple[int, ...]
    draft_share: float
    by_drafter: dict[str, ByDrafter]
    is_equal: bool | None
    difference: str | None
    new_tokens: int
    requests: int

    @property
    def has_verdict(self) -> bool:
        """Enough pairs to judge its speed."""
        return len(self.speedup.pairs) >= MIN_PAIRS

    @property
    def is_slower(self) -> bool:
        """Surely slower than NEVER_SLOWER allows. Whole runs of a larger batch end with their slowest answer, which
        faster ones do not help: there, decoding counts."""
        upper = min(self.speedup.upper, self.whole.upper) if self.cell.batch == 1 else self.speedup.upper
        return upper < NEVER_SLOWER


@dataclass(frozen=True)
class SpeculationResults:
    """All cells, why drafters were left out, and whether those that run a model agree with this one."""

    cells: list[CellResult]
    skipped: dict[str, str]
    checks: dict[str, tuple[DrafterCheck, ...]] = field(default_factory=dict)

    def failures(self) -> list[CellResult]:
        """Cells that differ, or are slower where speed may be judged."""
        return [one for one in self.cells if one.is_equal is False or (one.has_verdict and one.is_slower)]

    def mean(self, drafter: str, batch: int | None = None, category: str | None = None) -> float | None:
        """Geometric mean of a drafter's speed-ups, of all its cells or of those of a batch size or category."""
        return geometric_mean(
            one.speedup.median
            for one in self.cells
            if one.cell.drafter == drafter and batch in (None, one.cell.batch) and category in (None, one.cell.category)
        )


def default_drafters() -> tuple[str, ...]:
    """Registered drafters that need no option, such as another model, and "auto"."""
    return (*registered_drafters(), "auto")
