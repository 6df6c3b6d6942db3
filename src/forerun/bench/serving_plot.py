"""Plots of `bench serve`, as PNG and SVG: throughput and latencies over the load. See bench/plot."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from forerun.bench.plot import LINE_COLOURS, save, tidy

Run = Mapping[str, Any]


def write_serving_plots(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write serving.png and serving.svg; none without runs. Raises ImportError."""
    return save({"serving": load_figure(found)}, folder) if found["runs"] else []


def load_figure(found: Mapping[str, Any]) -> Any:
    """Three panels over the load: tokens a second, time to first token, time between tokens. Closed loops solid, open
    loops dashed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    panels = figure.subplots(1, 3)
    lines = (
        (panels[0], "output tokens/s", [("", _throughput)]),
        (panels[1], "TTFT, ms", [(name, _percentile("ttft_s", name)) for name in ("p50", "p95")]),
        (panels[2], "inter-token, ms", [(name, _percentile("inter_token_s", name)) for name in ("p50", "p95", "p99")]),
    )
    for axes, title, series in lines:
        for kind, style in (("closed", "-"), ("open", "--")):
            runs = [run for run in found["runs"] if run["kind"] == kind]
            for (name, value), colour in zip(series, LINE_COLOURS, strict=False):
                if runs:
                    label = f"{name} {'clients' if kind == 'closed' else 'requests/s'}".strip()
                    places = [run["load"] for run in runs]
                    axes.plot(places, [value(run) for run in runs], style, color=colour, marker="o", label=label)
        axes.set_ylim(bottom=0)
        axes.set_title(title, fontsize=8)
        axes.set_xlabel("clients, or requests a second", fontsize=7)
        axes.legend(fontsize=6, frameon=False)
        tidy(axes, "both")
    figure.suptitle(f"{found['model']} at {found['server']}", fontsize=8)
    return figure


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1e3 * seconds


def _throughput(run: Run) -> float | None:
    found: float | None = run["tokens_per_s"]
    return found


def _percentile(times: str, name: str) -> Callable[[Run], float | None]:
    return lambda run: _ms(run[times][name])
