"""Plots: all four files, the same again for the same figures, nothing global touched."""

import sys
from pathlib import Path

import pytest

from forerun.bench.plot import kernel_figure, step_figure, write_plots
from tests.bench.sittings import document

pytest.importorskip("matplotlib", reason="plots are an extra: pip install 'forerun[plots]'")


def test_files(tmp_path: Path) -> None:
    paths = write_plots(document(), tmp_path)
    assert [path.name for path in paths] == ["kernels.png", "kernels.svg", "steps.png", "steps.svg"]
    assert (tmp_path / "kernels.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "steps.svg").read_text(encoding="utf-8")
    assert "matplotlib.pyplot" not in sys.modules


def test_bars_are_fractions() -> None:
    axes = kernel_figure(document()).axes
    assert [one.get_title() for one in axes] == ["1 row", "16 rows", "64 rows"]
    assert [patch.get_width() for patch in axes[0].patches] == [0.8, 0.8]
    assert [patch.get_width() for patch in axes[2].patches] == [0.9, 0.9]


def test_curves_are_ratios() -> None:
    axes = step_figure(document()).axes[0]
    lines = {line.get_label(): list(line.get_ydata()) for line in axes.get_lines()}
    assert lines["one sequence, 128 tokens of context"] == [1.0, 1.01, 1.02, 1.05, 1.10, 1.36, 2.0]
    assert "n sequences, 8192 tokens of context" in lines
