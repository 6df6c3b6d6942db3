"""Plots of a sitting of `bench kernels`, as PNG and SVG: kernels as fractions of their limits, and the step cost curve.

matplotlib is an optional dependency, imported when something is drawn. Figures are made without pyplot, so nothing
global changes and no display is needed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]  # of bench/sitting

BOUND_COLOURS = {"bandwidth": "#2f6f9f", "compute": "#c4622d"}
LINE_COLOURS = ("#2f6f9f", "#c4622d", "#5b8c3e")
MIN_SHARE = 0.005  # of a step's time; what takes less is left out
GRID = {"color": "#dddddd", "linewidth": 0.8}


def write_plots(document: Document, folder: Path) -> list[Path]:
    """Write kernels.png, kernels.svg, steps.png and steps.svg; returns their paths. Raises ImportError."""
    return save({"kernels": kernel_figure(document), "steps": step_figure(document)}, folder)


def save(figures: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write figures by name, each as .png and .svg; returns their paths."""
    paths = []
    for name, figure in figures.items():
        for suffix in ("png", "svg"):
            paths.append(folder / f"{name}.{suffix}")
            # Without a date the same figures give the same file.
            figure.savefig(paths[-1], dpi=150, metadata={"Date": None} if suffix == "svg" else None)
    return paths


def kernel_figure(document: Document) -> Any:
    """Bars of the fraction of the limit that binds, for some numbers of rows at the shortest context."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    shortest = min(kernel["context"] for kernel in document["kernels"])
    kernels = [kernel for kernel in document["kernels"] if kernel["context"] == shortest]
    all_rows = sorted({kernel["rows"] for kernel in kernels})
    chosen = sorted({all_rows[0], all_rows[len(all_rows) // 2], all_rows[-1]})
    shown = {rows: [k for k in kernels if k["rows"] == rows and k["share"] >= MIN_SHARE] for rows in chosen}
    height = 1.2 + 0.3 * max(len(group) for group in shown.values())
    figure = Figure(figsize=(4.6 * len(chosen), height), layout="constrained")
    for axes, (rows, group) in zip(figure.subplots(1, len(chosen), squeeze=False)[0], shown.items(), strict=True):
        places = range(len(group), 0, -1)
        colours = [BOUND_COLOURS[kernel["bound"]] for kernel in group]
        axes.barh(places, [kernel["fraction"] for kernel in group], color=colours, height=0.7)
        for place, kernel in zip(places, group, strict=True):
            axes.text(kernel["fraction"] + 0.01, place, f"{kernel['fraction']:.0%}", va="center", fontsize=7)
        axes.set_yticks(places, [_label(kernel) for kernel in group], fontsize=7)
        axes.axvline(1.0, color="#444444", linewidth=1)
        axes.set_xlim(0, max(1.1, *(kernel["fraction"] + 0.15 for kernel in group)))
        axes.set_title(f"{rows} row{'s' if rows > 1 else ''}", fontsize=9)
        axes.set_xlabel("fraction of the limit", fontsize=8)
        tidy(axes, "x")
    handles = [Patch(color=colour, label=f"bound by {bound}") for bound, colour in BOUND_COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.suptitle(_title(document), fontsize=9)
    return figure


def step_figure(document: Document) -> Any:
    """Time of a step of n rows over that of one row: chains solid, sequences of one row dashed, a colour a context."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    contexts = sorted({cost["context"] for cost in document["steps"] if cost["kind"] == "chain"})
    for context, colour in zip(contexts, LINE_COLOURS, strict=False):
        for kind, style in (("chain", "-"), ("sequences", "--")):
            costs = [cost for cost in document["steps"] if (cost["kind"], cost["context"]) == (kind, context)]
            name = "one sequence" if kind == "chain" else "n sequences"
            axes.plot(
                [cost["rows"] for cost in costs],
                [cost["ratio"] for cost in costs],
                style,
                color=colour,
                marker="o",
                markersize=3,
                label=f"{name}, {context} tokens of context",
            )
    axes.axhline(1.0, color="#444444", linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted({cost["rows"] for cost in document["steps"] if cost["kind"] == "chain"}))
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(bottom=0)
    axes.set_xlabel("n, rows of the step", fontsize=8)
    axes.set_ylabel("t(n rows) / t(1 row)", fontsize=8)
    axes.set_title(_title(document), fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    tidy(axes, "both")
    return figure


def _label(kernel: Mapping[str, Any]) -> str:
    shape = f"{kernel['inputs']} to {kernel['outputs']}" if kernel["outputs"] else str(kernel["inputs"])
    return f"{kernel['kind']} {shape}"


def _title(document: Document) -> str:
    return f"{document['model']['name']}, {document['numerics_id']}, {document['threads']} threads"


def tidy(axes: Any, direction: str) -> None:
    """Small labels, a faint grid in a direction (x, y or both), no box."""
    axes.tick_params(labelsize=7)
    axes.grid(axis=direction, **GRID)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
