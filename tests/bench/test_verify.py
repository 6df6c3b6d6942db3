"""The plan of `forerun verify`: what meets what, how it is scaled, and that it keeps its time."""

import itertools
from pathlib import Path

import pytest

from forerun.bench import verify as checks
from forerun.bench.drafters import DRAFTERS
from forerun.bench.lossless import Setting
from forerun.bench.verify import BATCHES, CHUNKS, Plan, all_settings, estimate_s, make_cells, rotating_settings, verify
from forerun.config import SpeculationConfig
from forerun.errors import ForerunError
from forerun.llm import LLM, EngineOptions

AXES = {"drafter": DRAFTERS, "batch": BATCHES, "chunk": CHUNKS, "cache": (False, True), "tight": (False, True)}


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), speculation="off", threads=1)


def test_rotating_settings_meet_in_pairs() -> None:
    settings = rotating_settings(2)
    assert len(set(settings)) == len(settings) == len(DRAFTERS) * len(BATCHES)
    for a, b in itertools.combinations(AXES, 2):
        met = {(getattr(setting, a), getattr(setting, b)) for setting in settings}
        missing = set(itertools.product(AXES[a], AXES[b])) - met - {(1, True)}  # a batch of one is never preempted
        assert not missing or ((a, b) == ("drafter", "chunk") and len(missing) == len(DRAFTERS)), (a, b, missing)


def test_every_pass_has_every_drafter_and_batch() -> None:
    settings = rotating_settings(1)
    for start in range(0, len(settings), len(DRAFTERS)):
        one_pass = settings[start : start + len(DRAFTERS)]
        assert {setting.drafter for setting in one_pass} == set(DRAFTERS)
        assert {setting.batch for setting in one_pass} == set(BATCHES)


def test_the_full_plan_is_the_cross_product() -> None:
    settings = all_settings(2)
    assert set(rotating_settings(2)) <= set(settings)
    assert len(set(settings)) == len(settings) == len(DRAFTERS) * len(CHUNKS) * 2 * (1 + 2 * (len(BATCHES) - 1))


@pytest.mark.parametrize(("count", "new_tokens"), [(12, 32), (4, 8), (1, 1)])
def test_cells(llm: LLM, count: int, new_tokens: int) -> None:
    cells = make_cells(llm, count, new_tokens)
    assert len({cell.name for cell in cells}) == count
    assert {cell.params.max_tokens for cell in cells} == {new_tokens}
    assert len({cell.params.temperature for cell in cells}) >= min(2, count)


def test_cells_cover_what_shapes_logits(llm: LLM) -> None:
    params = [cell.params for cell in make_cells(llm, 12, 32)]
    assert any(one.min_p > 0 for one in params)
    assert any(one.repetition_penalty != 1 for one in params)
    assert any(one.min_tokens and one.logit_bias.keys() >= set(llm.tokenizer.eos_ids) for one in params)


def test_prompts_share_what_their_names_say(llm: LLM) -> None:
    cells = make_cells(llm, 16, 8)
    first = cells[0].prompt
    shared = {}
    for cell in cells[1:]:
        if cell.name.startswith("shared-"):
            wanted = int(cell.name.split("/")[0].removeprefix("shared-"))
            same = next(i for i, (a, b) in enumerate(zip(cell.prompt, first, strict=False)) if a != b)
            shared[wanted] = same
    assert shared == {n: n for n in (15, 16, 17, 31, 32, 33)}


def test_estimates_grow_with_the_work(llm: LLM) -> None:
    few, many = make_cells(llm, 4, 8), make_cells(llm, 12, 32)
    plain, chunked = Setting(), Setting(chunk=3)
    assert 0 < estimate_s([plain], few, 0.01) < estimate_s([plain], many, 0.01) < estimate_s([chunked], many, 0.01)
    assert estimate_s([plain, chunked], few, 0.02) == pytest.approx(
        2 * (estimate_s([plain], few, 0.01) + estimate_s([chunked], few, 0.01))
    )


class TestRuns:
    def load(self, path: Path, fault: str | None = None) -> checks.Load:
        options = EngineOptions(fault=fault)
        return lambda threads: LLM(str(path), speculation="off", threads=threads, options=options)

    def test_quick(self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "QUICK_S", 300.0)  # the machine may be busy
        plans: list[Plan] = []
        progress: list[tuple[int, int]] = []

        def announce(plan: Plan):
            plans.append(plan)
            return lambda done, total: progress.append((done, total))

        verdict = verify(self.load(tiny_model), EngineOptions(), 2, quick=True, announce=announce)
        assert verdict.is_equal
        assert verdict.skipped == []
        assert {row.setting.threads for row in verdict.rows} == {1, 2}
        assert len(verdict.rows) == len(rotating_settings(2)) + len(DRAFTERS)
        assert len(plans) == 1
        assert progress[-1] == (plans[0].num_answers, plans[0].num_answers)
        assert [done for done, _ in progress] == sorted(done for done, _ in progress)

    def test_a_drafter_of_the_caller(self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "QUICK_S", 300.0)  # the machine may be busy
        options = {"draft-model.model": str(tiny_model), "draft-model.weights": "file"}
        own = SpeculationConfig("ngram+draft-model", max_depth=5, options=options)
        verdict = verify(self.load(tiny_model), EngineOptions(), 1, quick=True, speculation=own)
        assert verdict.is_equal
        rows = [row for row in verdict.rows if row.setting.drafter == own.drafter]
        assert {row.setting.batch for row in rows} == set(BATCHES)
        assert all(row.accepted > 0 for row in rows)
        assert {row.setting.drafter for row in verdict.rows} == {own.drafter, *DRAFTERS}

    def test_what_cannot_draft_is_refused_before_anything_runs(self, tiny_model: Path) -> None:
        own = SpeculationConfig("draft-model", options={"draft-model.model": str(tiny_model.parent / "none.gguf")})
        with pytest.raises(ForerunError, match=r"none\.gguf"):
            verify(self.load(tiny_model), EngineOptions(), 1, announce=pytest.fail, speculation=own)  # type: ignore[arg-type]

    def test_a_slow_machine_skips_and_says_so(self, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(checks, "QUICK_S", 0.0)
        verdict = verify(self.load(tiny_model), EngineOptions(), 1, quick=True)
        assert verdict.rows == []
        assert len(verdict.skipped) == len(rotating_settings(1))
        assert not verdict.is_equal  # nothing compared is nothing proved

    def test_an_injected_error_is_found_at_once(self, tiny_model: Path) -> None:
        options = EngineOptions(fault="row_ulp")
        verdict = verify(self.load(tiny_model, "row_ulp"), options, 1, quick=True, stop_at_first=True)
        assert verdict.first_difference is not None
        assert verdict.first_difference.kind == "logits"
        assert [row.is_equal for row in verdict.rows].count(False) == 1
        assert len(verdict.rows) < 4
