"""The document and the tables of `bench speculation`: complete, finite, and plots of what they say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from forerun.bench.pairs import Ratio
from forerun.bench.speculation_cells import ByDrafter, Cell, CellResult, SpeculationResults, SpeculationWish
from forerun.bench.speculation_report import document, markdown

ABOUT = {"model": "tiny", "numerics_id": "fake/1", "machine": {"cpu": "a CPU", "threads": 2}, "versions": {}}


def result(
    drafter: str, category: str, batch: int, factor: float, *, is_equal: bool = True, pairs: int = 7
) -> CellResult:
    ratio = Ratio(factor, 0.9 * factor, 1.1 * factor, (factor,) * pairs)
    by = {drafter: ByDrafter(3, 9, 5, (3, 3, 3), (3, 2, 0), 0, 1.0)}
    return CellResult(
        cell=Cell(drafter, category, batch, 0.0),
        speedup=ratio,
        whole=ratio,
        plain_tokens_per_s=100.0,
        tokens_per_s=100 * factor,
        tokens_per_s_pairs=((100.0, 100 * factor),) * 2,
        accepted_len=2.5,
        drafted=9,
        accepted=5,
        drafted_at=(3, 3, 3),
        accepted_at=(3, 2, 0),
        draft_share=0.01,
        by_drafter=by,
        is_equal=is_equal,
        difference=None if is_equal else "pair 0, answer 1, token 2",
        new_tokens=64 // batch,
        requests=4,
    )


def found(*, pairs: int = 7, **changes: bool) -> dict[str, Any]:
    cells = [
        result("ngram", "chat", 1, 0.8, pairs=pairs),
        result("ngram", "copy", 1, 3.2, pairs=pairs),
        result("auto", "copy", 1, 2.0, pairs=pairs, **changes),
    ]
    wish = SpeculationWish(("ngram", "auto"), pairs=pairs)
    return document(SpeculationResults(cells, {"suffix": "it is too old"}), wish, "few", ABOUT)


def test_document() -> None:
    made = found()
    json.dumps(made, allow_nan=False)
    assert (made["passed"], made["has_verdict"]) == (False, True)
    assert [(cell["failed"], cell["slower"]) for cell in made["cells"]] == [
        (True, True),
        (False, False),
        (False, False),
    ]
    assert made["cells"][0]["acceptance_at"] == [1.0, pytest.approx(2 / 3), 0.0]
    assert made["cells"][0]["by_drafter"]["ngram"]["acceptance_at"] == [1.0, pytest.approx(2 / 3), 0.0]
    ngram, auto = made["summary"]
    assert ngram["mean"] == pytest.approx(1.6)
    assert (ngram["mean_copy"], ngram["lowest"], ngram["failed"]) == (pytest.approx(3.2), 0.8, 1)
    assert auto["mean_batch_1"] == pytest.approx(2.0)
    assert made["settings"]["never_slower"] == 0.97
    assert made["settings"]["config"]["verification"] == "coupled"


def test_few_pairs_give_no_verdict_but_equality_counts() -> None:
    made = found(pairs=3)
    assert (made["passed"], made["has_verdict"]) == (True, False)
    assert made["cells"][0]["slower"]
    assert not found(pairs=3, is_equal=False)["passed"]


def test_bounds_that_are_not_finite_are_null() -> None:
    one = result("ngram", "chat", 1, 1.0)
    single = Ratio(1.0, 0.0, math.inf, (1.0,))
    cell = CellResult(**{**vars(one), "speedup": single, "whole": single})
    made = document(SpeculationResults([cell], {}), SpeculationWish(("ngram",), pairs=1), "few", ABOUT)
    assert json.loads(json.dumps(made, allow_nan=False))["cells"][0]["speedup"]["upper"] is None
    assert "1.00x |" in markdown(made)


def test_markdown() -> None:
    text = markdown(found(is_equal=False))
    lines = text.splitlines()
    assert lines[0].startswith("tiny on a CPU, 2 threads, `fake/1`; prompts few")
    assert "| `ngram` | 1.60x | 1.60x | 3.20x | 0.80x | 1.0% | 1 of 2 | yes |" in lines
    assert "| `ngram` | chat | 2.50 | 0.80x (0.72-0.88) FAILED | yes |" in lines
    assert "| `auto` | copy | 2.50 | 2.00x (1.80-2.20) FAILED | NO |" in lines
    assert lines[-1] == "Not measured: suffix, because it is too old"
    assert "too few for a verdict" in markdown(found(pairs=3))


def test_plots(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots are an extra: pip install 'forerun[plots]'")
    from forerun.bench.speculation_plot import acceptance_figure, speedup_figure, write_speculation_plots

    made = found()
    names = [path.name for path in write_speculation_plots(made, tmp_path)]
    assert names == ["speedup.png", "speedup.svg", "acceptance.png", "acceptance.svg"]
    assert (tmp_path / "speedup.png").read_bytes().startswith(b"\x89PNG")
    bars = [patch.get_width() for patch in speedup_figure(made).axes[0].patches]
    assert bars == [0.8, 3.2, 2.0]
    lines = {line.get_label(): list(line.get_ydata()) for line in acceptance_figure(made).axes[0].get_lines()}
    assert lines["auto"] == [1.0, pytest.approx(2 / 3), 0.0]


def test_cells_of_different_settings_stand_in_one_table() -> None:
    cells = [result("ngram", "chat", 1, 1.0), result("auto", "chat", 4, 1.0, pairs=9), result("ngram", "chat", 4, 1.1)]
    text = markdown(document(SpeculationResults(cells, {}), SpeculationWish(("auto",)), "few", ABOUT))
    lines = text.splitlines()
    assert "answers of at most 16 to 64 tokens, 7 to 9 pairs a cell" in lines[0]
    assert "| `ngram` | chat | 2.50 | 1.00x (0.90-1.10) | 1.10x (0.99-1.21) | yes |" in lines
    assert "| `auto` | chat | 2.50 |  | 1.00x (0.90-1.10) | yes |" in lines
