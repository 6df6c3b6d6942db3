"""Plots of `bench speculation`, as PNG and SVG: speed-ups by category, and acceptance by depth. See bench/plot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.bench.plot import save, tidy
from forerun.bench.speculation_report import Document, settings_of

MAX_DEPTH = 15  # of the acceptance plot


def write_speculation_plots(found: Document, folder: Path) -> list[Path]:
    """Write speedup and acceptance, each as .png and .svg; returns their paths. Raises ImportError."""
    return save({"speedup": speedup_figure(found), "acceptance": acceptance_figure(found)}, folder)


def speedup_figure(found: Document) -> Any:
    """A panel for each batch and temperature: bars of the speed-up by category, a colour a drafter, with bounds."""
    from matplotlib.figure import Figure

    settings, drafters = settings_of(found), _drafters(found)
    categories = list(dict.fromkeys(cell["category"] for cell in found["cells"]))
    height = 0.8 + 0.16 * len(categories) * (len(drafters) + 1)
    figure = Figure(figsize=(3.4 * len(settings) + 1, max(2.4, height)), layout="constrained")
    panels = figure.subplots(1, len(settings), squeeze=False, sharey=True)[0]
    width = 0.8 / len(drafters)
    for axes, (batch, temperature) in zip(panels, settings, strict=True):
        for index, drafter in enumerate(drafters):
            cells = [
                cell
                for cell in found["cells"]
                if (cell["drafter"], cell["batch"], cell["temperature"]) == (drafter, batch, temperature)
            ]
            places = [-categories.index(cell["category"]) - (index + 0.5) * width + 0.4 for cell in cells]
            medians = [cell["speedup"]["median"] for cell in cells]
            axes.barh(places, medians, height=width, label=drafter, xerr=_errors(cells), error_kw={"elinewidth": 0.7})
        axes.axvline(1.0, color="#444444", linewidth=1)
        axes.set_yticks([-i for i in range(len(categories))], categories, fontsize=7)
        axes.set_title(f"batch {batch}, temperature {temperature:g}", fontsize=8)
        axes.set_xlabel("speed-up over plain decoding", fontsize=7)
        tidy(axes, "x")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=7, frameon=False
    )
    figure.suptitle(f"{found['model']}, {found['machine']['threads']} threads\n{found['numerics_id']}", fontsize=8)
    return figure


def acceptance_figure(found: Document) -> Any:
    """Of the drafts that reached a depth, the part accepted there, over all cells of a drafter; a line a drafter."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for drafter in _drafters(found):
        cells = [cell for cell in found["cells"] if cell["drafter"] == drafter]
        shares = []
        for depth in range(MAX_DEPTH):
            drafted = sum(cell["drafted_at"][depth] for cell in cells if depth < len(cell["drafted_at"]))
            accepted = sum(cell["accepted_at"][depth] for cell in cells if depth < len(cell["accepted_at"]))
            if not drafted:
                break
            shares.append(accepted / drafted)
        axes.plot(range(1, len(shares) + 1), shares, marker="o", markersize=3, label=drafter)
    axes.set_ylim(0, 1)
    axes.set_xlim(0.5, MAX_DEPTH + 0.5)
    axes.set_xlabel("depth of the draft", fontsize=8)
    axes.set_ylabel("drafts accepted to this depth", fontsize=8)
    axes.legend(fontsize=7, frameon=False)
    tidy(axes, "both")
    return figure


def _drafters(found: Document) -> list[str]:
    return list(dict.fromkeys(cell["drafter"] for cell in found["cells"]))


def _errors(cells: list[Mapping[str, Any]]) -> list[list[float]] | None:
    """Distances from the median to the bounds; the median may lie outside of them, then that distance is 0."""
    ratios = [cell["speedup"] for cell in cells]
    if not ratios or any(ratio["upper"] is None for ratio in ratios):
        return None
    below = [max(0.0, ratio["median"] - ratio["lower"]) for ratio in ratios]
    return [below, [max(0.0, ratio["upper"] - ratio["median"]) for ratio in ratios]]
