"""A stopped `bench speculation` goes on: what it left is read back whole, and only where it is about the same."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.speculation_cells import SpeculationResults, SpeculationWish
from forerun.bench.speculation_kept import is_measured, kept_results, merged
from forerun.bench.speculation_report import document
from forerun.config import SpeculationConfig
from forerun.drafter_check import DrafterCheck
from forerun.errors import UsageError
from tests.bench.test_speculation_report import ABOUT, result

WISH = SpeculationWish(("ngram",), new_tokens=64, requests=4)
RESULTS = SpeculationResults(
    [result("ngram", "chat", 1, 0.8), result("auto", "copy", 4, 2.0, is_equal=False)],
    {},
    {"auto": (DrafterCheck("draft-model", 0.5, None, None),)},
)


def write(path: Path, **about: Any) -> Path:
    path.write_text(json.dumps(document(RESULTS, WISH, "few", {**ABOUT, **about})))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    kept = kept_results(write(tmp_path / "a.json"), WISH, "few", ABOUT)
    again = document(kept, WISH, "few", ABOUT)
    assert [one.cell for one in kept.cells] == [one.cell for one in RESULTS.cells]
    assert kept.cells[0].by_drafter == RESULTS.cells[0].by_drafter
    assert kept.checks == RESULTS.checks
    assert [cell["equal"] for cell in again["cells"]] == [True, False]
    assert kept_results(tmp_path / "b.json", WISH, "few", ABOUT).cells == []


@pytest.mark.parametrize(
    ("about", "prompts", "method", "word"),
    [
        ({"model": "other"}, "few", "coupled", "model"),
        ({"machine": {"cpu": "b", "threads": 2}}, "few", "coupled", "machine"),
        ({"numerics_id": "fake/2"}, "few", "coupled", "numerics_id"),
        ({"versions": {"forerun": "9"}}, "few", "coupled", "version"),
        ({}, "many", "coupled", "prompts"),
        ({}, "few", "rejection", "verification"),
    ],
)
def test_results_about_something_else_are_refused(
    tmp_path: Path, about: dict[str, Any], prompts: str, method: str, word: str
) -> None:
    path = write(tmp_path / "a.json")
    wish = replace(WISH, config=SpeculationConfig(verification=method))
    with pytest.raises(UsageError, match=f"another {word}: give --out another folder"):
        kept_results(path, wish, prompts, {**ABOUT, **about})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "forerun-speculation-2", "model": 1}'])
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="holds no results"):
        kept_results(path, WISH, "few", ABOUT)


def test_a_new_cell_replaces_the_old_one() -> None:
    new = SpeculationResults([result("ngram", "chat", 1, 1.5), result("ngram", "code", 1, 1.0)], {"eagle": "no head"})
    both = merged(RESULTS, new)
    assert [(one.cell.category, one.speedup.median) for one in both.cells] == [("chat", 1.5), ("copy", 2), ("code", 1)]
    assert (both.skipped, both.checks) == ({"eagle": "no head"}, RESULTS.checks)


def test_a_cell_of_other_settings_is_measured_again() -> None:
    one = RESULTS.cells[0]
    assert is_measured(one.cell, WISH, RESULTS.cells)
    for change in ({"new_tokens": 32}, {"requests": 8}, {"pairs": 9}):
        assert not is_measured(one.cell, replace(WISH, **change), RESULTS.cells)
    assert not is_measured(replace(one.cell, batch=16), WISH, RESULTS.cells)
