"""`bench speculation` on a tiny model: pairs and seeds, equality, gates, what cells may know of each other."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.bench.pairs import ratio_of
from forerun.bench.prompts import Prompt, PromptSet
from forerun.bench.speculation import Watch, bench_speculation, cells_of
from forerun.bench.speculation_arms import Arms, Asked
from forerun.bench.speculation_cells import Cell, CellResult, SpeculationResults, SpeculationWish, default_drafters
from forerun.config import SpeculationConfig
from forerun.engine import Engine
from forerun.errors import UnsupportedModel, UsageError
from forerun.llm import LLM, EngineOptions
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation import drafter as registry
from forerun.speculation.drafter import DraftHost, register
from forerun.speculation.drafters.ngram import NgramDrafter

PROMPTS = PromptSet(
    "few",
    {
        "copy": tuple(Prompt(f"copy-{i}", "copy", (f"say {i} {i} {i} again",)) for i in range(5)),
        "talk": (Prompt("talk-0", "talk", ("hello", "and then?")), Prompt("talk-1", "talk", ("tell me",))),
    },
)
WISH = SpeculationWish(("ngram",), batches=(1, 3), temperatures=(0.0, 0.8), new_tokens=12, pairs=2, requests=2)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    monkeypatch.setattr(registry, "_FACTORIES", dict(registry._FACTORIES))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path))
    return tmp_path / "drafters"


def load(path: Path, wish: SpeculationWish = WISH, **options: object) -> tuple[LLM, EngineOptions]:
    chosen = wish.options(EngineOptions(**options))  # type: ignore[arg-type]
    return LLM(str(path), speculation="off", threads=1, options=chosen), chosen


def run(path: Path, wish: SpeculationWish = WISH, **options: object) -> SpeculationResults:
    llm, chosen = load(path, wish, **options)
    return bench_speculation(llm, PROMPTS, wish, chosen, Watch(lambda done, total: None))


def test_every_cell_is_measured_and_equal(tiny_model: Path) -> None:
    llm, options = load(tiny_model)
    progress: list[tuple[int, int]] = []
    results = bench_speculation(llm, PROMPTS, WISH, options, Watch(lambda *counts: progress.append(counts)))
    cells = [(one.cell.category, one.cell.batch, one.cell.temperature) for one in results.cells]
    assert cells == [(name, batch, t) for name in ("copy", "talk") for batch in (1, 3) for t in (0.0, 0.8)]
    assert progress == [(done, 8 * 8) for done in range(1, 65)]  # warm-up, two pairs and hashes, of two arms each
    assert all(one.is_equal for one in results.cells)
    assert results.failures() == []
    for one in results.cells:
        assert len(one.speedup.pairs) == len(one.tokens_per_s_pairs) == 2
        assert one.speedup.pairs[0] == pytest.approx(one.tokens_per_s_pairs[0][1] / one.tokens_per_s_pairs[0][0])
        assert 0 < one.draft_share < 1
    greedy = results.cells[0]
    assert greedy.accepted_len > 1  # the tiny model repeats itself
    assert greedy.drafted == sum(one.drafted_at[0] for one in [greedy]) + sum(greedy.drafted_at[1:])
    assert greedy.by_drafter["ngram"].accepted >= greedy.accepted > 0
    assert greedy.by_drafter["ngram"].share == 1.0
    assert llm.engine.speculator.drafters == ()


def test_pairs_alternate_and_share_prompts_and_seeds(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str, int | None]] = []
    add = Engine.add

    def spy(self: Engine, request: Request) -> list:
        asked.append((self.speculator.drafter_name, request.id, request.params.seed))
        return add(self, request)

    monkeypatch.setattr(Engine, "add", spy)
    wish = replace(WISH, batches=(1,), temperatures=(0.8,), pairs=3, requests=1)
    llm, options = load(tiny_model, wish)
    bench_speculation(llm, PROMPTS.only(["copy"]), wish, options, Watch(lambda done, total: None))
    assert [name for name, _, _ in asked] == [
        *("off", "ngram"),  # warm-up
        *("off", "ngram", "ngram", "off", "off", "ngram"),
        *("off", "ngram"),  # hashes
    ]
    runs = [(prompt, seed) for _, prompt, seed in asked]
    assert runs[0] == runs[1] == ("copy-3", 4)  # no prompt of the pairs
    assert runs[2:8] == [(f"copy-{i}", i + 1) for i in (0, 0, 1, 1, 2, 2)]


def test_the_plain_arm_has_no_drafters_and_drafts_nothing(tiny_model: Path) -> None:
    llm, options = load(tiny_model)
    arms = Arms(llm, SpeculationConfig("ngram"), options)
    asked = [Asked(prompt, SamplingParams(max_tokens=12)) for prompt in PROMPTS.categories["copy"]]
    plain, drafted = arms.run(arms.plain, asked, 2), arms.run(arms.drafted, asked, 2)
    assert (plain.drafted, plain.draft_s, plain.steps) == (0, 0.0, plain.tokens)
    assert drafted.drafted > 0 < drafted.draft_s < drafted.total_s
    assert plain.answers == drafted.answers
    assert len(plain.answers) == 5
    assert plain.total_s > plain.decode_s > 0
    assert arms.plain.scheduler.pool.num_owned == arms.drafted.scheduler.pool.num_owned == 0


def test_later_turns_contain_the_answers_before(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, options = load(tiny_model)
    arms = Arms(llm, SpeculationConfig("off"), options)
    lengths = []
    add = Engine.add
    monkeypatch.setattr(Engine, "add", lambda self, r: lengths.append(len(r.prompt)) or add(self, r))
    asked = [Asked(prompt, SamplingParams(max_tokens=4)) for prompt in PROMPTS.categories["talk"]]
    done = arms.run(arms.plain, asked, 2)
    assert len(done.answers) == len(lengths) == 3
    assert lengths[2] > lengths[0] + 4


def test_an_engine_that_depends_on_the_batch_fails(tiny_model: Path) -> None:
    results = run(tiny_model, replace(WISH, temperatures=(0.0,), pairs=1), fault="row_ulp")
    alone = results.cells[0]  # in a batch both arms have several rows, which is where the fault is
    assert (alone.cell.batch, alone.is_equal) == (1, False)
    assert "logits of answer 0, token" in str(alone.difference)
    assert alone in results.failures()


class SlowDrafter(NgramDrafter):
    """A drafter that wastes time where no budget can save it."""

    name = "slow"

    def begin(self, sequence: Sequence) -> None:
        super().begin(sequence)
        sum(range(2_000_000))


def test_a_slow_drafter_fails(tiny_model: Path, registered: None) -> None:
    register("slow", SlowDrafter)
    wish = replace(WISH, drafters=("slow",), batches=(1,), temperatures=(0.0,), pairs=7, requests=1)
    results = run(tiny_model, wish)
    assert all(one.is_equal and one.is_slower and one.whole.upper < 0.9 for one in results.cells)
    assert all(one.draft_share > 0.3 for one in results.cells)
    assert results.failures() == results.cells


class Stubborn(NgramDrafter):
    """A drafter that fits no model."""

    name = "stubborn"

    def kv_stacks(self, host: DraftHost) -> list:
        raise UnsupportedModel("it fits no model")

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        raise AssertionError


def test_a_drafter_that_does_not_fit_is_left_out_or_refused(tiny_model: Path, registered: None) -> None:
    register("stubborn", Stubborn)
    wish = replace(WISH, drafters=("stubborn", "ngram"), batches=(1,), temperatures=(0.0,), pairs=1, is_strict=False)
    results = run(tiny_model, wish)
    assert results.skipped == {"stubborn": "it fits no model"}
    assert {one.cell.drafter for one in results.cells} == {"ngram"}
    with pytest.raises(UnsupportedModel):
        run(tiny_model, replace(wish, is_strict=True))


class Diary(NgramDrafter):
    """A drafter that keeps a file."""

    name = "diary"
    read: list[str] = []  # noqa: RUF012  # what every instance found

    def kv_stacks(self, host: DraftHost) -> list:
        return []

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        path = host.cache_folder / "diary"
        Diary.read.append(path.read_text() if path.exists() else "nothing")
        path.write_text("the answers of a cell")


def test_cells_know_the_users_files_but_not_each_others(tiny_model: Path, registered: None, cache: Path) -> None:
    register("diary", Diary)
    wish = replace(WISH, drafters=("diary",), temperatures=(0.0,), pairs=1)
    run(tiny_model, wish)
    assert set(Diary.read) == {"nothing"}
    cache.mkdir()
    (cache / "diary").write_text("the user's")
    Diary.read.clear()
    run(tiny_model, wish)
    assert set(Diary.read) == {"the user's"}
    assert (cache / "diary").read_text() == "the user's"


def test_default_drafters_need_no_option(registered: None) -> None:
    def needs_a_model(model: str) -> NgramDrafter:
        raise AssertionError

    register("other", needs_a_model)
    register("slow", SlowDrafter)
    assert "other" not in default_drafters()
    assert {"ngram", "slow", "auto"} <= set(default_drafters())


class TestWish:
    @pytest.mark.parametrize(
        "change",
        [
            {"drafters": ()},
            {"drafters": ("magic",)},
            {"batches": (0,)},
            {"batches": ()},
            {"temperatures": ()},
            {"temperatures": (-1.0,)},
            {"new_tokens": 1},
            {"pairs": 0},
            {"requests": 0},
            {"config": SpeculationConfig(options={"ngram.magic": 1})},
            {"config": SpeculationConfig(options={"other.size": 1})},
        ],
    )
    def test_nothing_to_measure_is_refused(self, change: dict) -> None:
        with pytest.raises((UsageError, ValueError)):
            replace(WISH, **change)

    def test_options_go_to_their_drafters(self) -> None:
        wish = replace(WISH, drafters=("off", "ngram"), config=SpeculationConfig(options={"ngram.max_n": 5}))
        assert wish.config_of("ngram") == SpeculationConfig("ngram", options={"ngram.max_n": 5})
        assert wish.config_of("off") == SpeculationConfig("off")

    def test_runs_are_whole_waves(self) -> None:
        assert [replace(WISH, requests=4).run_size(batch) for batch in (1, 3, 4, 16)] == [4, 6, 4, 16]

    def test_what_verification_promises(self) -> None:
        def promises(method: str, lossy: bool = False) -> list[bool]:
            wish = replace(WISH, config=SpeculationConfig(verification=method, lossy=lossy))
            return [wish.promises_equality(temperature) for temperature in (0.0, 0.8)]

        assert promises("coupled") == [True, True]
        assert promises("rejection") == promises("block") == [True, False]
        assert promises("typical", lossy=True) == [False, False]


@pytest.mark.parametrize(("batch", "words"), [((1,), "prompt talk-0 and its answers"), ((200,), "lower --batch")])
def test_what_does_not_fit_is_refused(tiny_model: Path, batch: tuple[int, ...], words: str) -> None:
    wish = replace(WISH, batches=batch, new_tokens=600 if batch == (1,) else 12)
    with pytest.raises(UsageError, match=words):
        run(tiny_model, wish)


def test_cells_are_shown_as_they_come_and_only_those_asked_for_are_measured(tiny_model: Path) -> None:
    llm, options = load(tiny_model)
    wanted = cells_of(PROMPTS, WISH)[2:5]
    seen: list[tuple[int, Cell]] = []

    def measured(results: SpeculationResults) -> None:
        seen.append((len(results.cells), results.cells[-1].cell))

    results = bench_speculation(llm, PROMPTS, WISH, options, Watch(lambda done, total: None, measured), wanted)
    assert seen == list(enumerate(wanted, start=1))
    assert [one.cell for one in results.cells] == wanted


def result(
    upper: float, whole_upper: float = 1.1, *, is_equal: bool | None = True, batch: int = 1, pairs: int = 7
) -> CellResult:
    ratio = ratio_of([1.0] * pairs)
    speedup, whole = replace(ratio, upper=upper), replace(ratio, upper=whole_upper)
    cell = Cell("ngram", "copy", batch, 0.0)
    counts: tuple[int, ...] = ()
    return CellResult(cell, speedup, whole, 1, 1, (), 1, 0, 0, counts, counts, 0, {}, is_equal, None, 12, 2)


def test_gates() -> None:
    fast, slow, slow_whole = result(0.97), result(0.969), result(1.2, 0.9)
    unequal, unpromised = result(1.2, is_equal=False), result(1.2, is_equal=None)
    waiting_for_one = result(1.2, 0.9, batch=4)
    results = SpeculationResults([fast, slow, slow_whole, unequal, unpromised, waiting_for_one], {})
    assert results.failures() == [slow, slow_whole, unequal]
    few = [result(0.9, pairs=6), result(0.9, is_equal=False, pairs=6)]
    assert SpeculationResults(few, {}).failures() == few[1:]
    assert results.mean("ngram", batch=1, category="copy") == pytest.approx(1.0)
    assert results.mean("ngram", batch=8) is None
