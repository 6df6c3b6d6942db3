"""Plots of `bench serve`, as PNG and SVG: throughput and latencies over the load. See bench/plot."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forerun.bench.plot import LINE_COLOURS, save, tidy


def write_serving_plots(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write serving.png and serving.svg; none without runs. Raises ImportError."""
    return save({"serving": load_figure(found)}, folder) if found["runs"] else []


def load_figure(found: Mapping[str, Any]) -> Any:
    """Three panels over the load: tokens a second, time to first token, time between tokens. Closed loops solid, open
    loops dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    panels_of = (
        ("output tokens/s", "tokens_per_s", ("",)),
        ("TTFT, ms", "ttft_s", ("p50", "p95")),
        ("inter-token, ms", "inter_token_s", ("p50", "p95", "p99")),
    )
    for axes, (title, figure_name, names) in zip(panels, panels_of, strict=True):
        for kind, style in (("closed", "-"), ("open", "--")):
            runs = [run for run in found["runs"] if run["kind"] == kind]
            for name, colour in zip(names, LINE_COLOURS, strict=False):
                if runs:
                    label = f"{name} {'clients' if kind == 'closed' else 'requests/s'}".strip()
                    places = [run["load"] for run in runs]
                    axes.plot(
                        places,
                        [_value(run[figure_name], name) for run in runs],
                        style,
                        color=colour,
                        marker="o",
                        label=label,
                    )
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=8)
        axes.set_xlabel("clients, or requests a second", fontsize=7)
        axes.legend(fontsize=6, frameon=False)
        tidy(axes, "both")
    figure.suptitle(f"{found['model']} at {found['server']}", fontsize=8)
    return figure


def _value(figure: Any, name: str) -> float | None:
    """The figure itself, or of several percentiles one, in milliseconds."""
    if not name:
        return float(figure)
    return None if figure[name] is None else 1e3 * float(figure[name])
