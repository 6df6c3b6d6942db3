"""What `bench speculation` found, as one JSON document, and as Markdown tables for the documentation."""

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import Any

from forerun.bench.pairs import Ratio
from forerun.bench.prompts import COPY
from forerun.bench.speculation import MIN_ANSWER
from forerun.bench.speculation_cells import (
    MIN_PAIRS,
    NEVER_SLOWER,
    CellResult,
    SpeculationResults,
    SpeculationWish,
)

FORMAT = "forerun-speculation-2"
Document = Mapping[str, Any]


def document(
    results: SpeculationResults, wish: SpeculationWish, prompts: str, about: Mapping[str, Any]
) -> dict[str, Any]:
    """Everything as JSON values; times are seconds, ratios decode tokens/s over those of plain decoding.

    prompts  name of the prompt set
    about    model, machine, versions, numerics_id
    """
    failed = results.failures()
    return {
        "format": FORMAT,
        "command": "bench speculation",
        **about,
        "prompts": prompts,
        "settings": asdict(wish)
        | {
            "min_answer_tokens": MIN_ANSWER,
            "never_slower": NEVER_SLOWER,
            "min_pairs": MIN_PAIRS,
            "prefix_cache": False,
            "bounds": "95 %: Student t of the logarithms of the pairs' ratios; the ratio itself is their median",
        },
        "has_verdict": all(one.has_verdict for one in results.cells),
        "passed": not failed,
        "summary": [_summary(results, name) for name in dict.fromkeys(one.cell.drafter for one in results.cells)],
        "skipped": results.skipped,
        "checks": {name: [asdict(one) for one in found] for name, found in results.checks.items() if found},
        "cells": [_cell(one, one in failed) for one in results.cells],
    }


def _summary(results: SpeculationResults, drafter: str) -> dict[str, Any]:
    cells = [one for one in results.cells if one.cell.drafter == drafter]
    failed = results.failures()
    uppers = [one.speedup.upper for one in cells if math.isfinite(one.speedup.upper)]
    return {
        "drafter": drafter,
        "cells": len(cells),
        "failed": sum(one in failed for one in cells),
        "unequal": sum(one.is_equal is False for one in cells),
        "mean": results.mean(drafter),
        "mean_batch_1": results.mean(drafter, batch=1),
        "mean_copy": results.mean(drafter, category=COPY),
        "mean_copy_batch_1": results.mean(drafter, batch=1, category=COPY),
        "lowest": min(one.speedup.median for one in cells),
        "lowest_upper": min(uppers, default=None),
        "accepted_len": sum(one.accepted_len for one in cells) / len(cells),
        "draft_share": sum(one.draft_share for one in cells) / len(cells),
    }


def _cell(result: CellResult, is_failed: bool) -> dict[str, Any]:
    by_drafter = {
        name: asdict(one) | {"acceptance_at": _acceptance(one.drafted_at, one.accepted_at)}
        for name, one in result.by_drafter.items()
    }
    return {
        **asdict(result.cell),
        "speedup": _ratio(result.speedup),
        "whole": _ratio(result.whole),
        "plain_tokens_per_s": result.plain_tokens_per_s,
        "tokens_per_s": result.tokens_per_s,
        "tokens_per_s_pairs": result.tokens_per_s_pairs,
        "accepted_len": result.accepted_len,
        "drafted": result.drafted,
        "accepted": result.accepted,
        "acceptance_at": _acceptance(result.drafted_at, result.accepted_at),
        "drafted_at": result.drafted_at,
        "accepted_at": result.accepted_at,
        "draft_share": result.draft_share,
        "by_drafter": by_drafter,
        "equal": result.is_equal,
        "difference": result.difference,
        "new_tokens": result.new_tokens,
        "requests": result.requests,
        "slower": result.is_slower,
        "failed": is_failed,
    }


def _ratio(ratio: Ratio) -> dict[str, Any]:
    return {"median": ratio.median, "lower": ratio.lower, "upper": _finite(ratio.upper), "pairs": ratio.pairs}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _acceptance(drafted_at: Seq[int], accepted_at: Seq[int]) -> list[float]:
    """Of the drafts that reached a depth, the part accepted there."""
    return [accepted / drafted if drafted else 0.0 for drafted, accepted in zip(drafted_at, accepted_at, strict=False)]


# ---- Markdown ----


def markdown(found: Document) -> str:
    """Two tables: each drafter over all cells, and every drafter with every category."""
    machine, cells = found["machine"], found["cells"]
    lines = [
        f"{found['model']} on {machine['cpu']}, {machine['threads']} threads, `{found['numerics_id']}`; prompts "
        f"{found['prompts']}, answers of at most {_range(cell['new_tokens'] for cell in cells)} tokens, "
        f"{_range(len(cell['speedup']['pairs']) for cell in cells)} pairs a cell"
        f"{'' if found['has_verdict'] else ' (too few for a verdict)'}, "
        f"verification {found['settings']['config']['verification']}.",
        "",
        *_table(_SUMMARY_COLUMNS, [_summary_row(one) for one in found["summary"]]),
        "",
        *_table(_category_columns(found), _category_rows(found)),
        "",
    ]
    lines += [f"Not measured: {name}, because {reason}" for name, reason in found["skipped"].items()]
    return "\n".join(lines).rstrip() + "\n"


def _range(values: Iterable[int]) -> str:
    """One number, or the smallest to the largest."""
    found = sorted(set(values))
    return " to ".join(str(value) for value in dict.fromkeys((found[0], found[-1]))) if found else "no"


_SUMMARY_COLUMNS = (
    "drafter",
    "mean speed-up",
    "at batch 1",
    "copy, batch 1",
    "lowest cell",
    "draft share",
    "failed cells",
    "equal",
)


def _summary_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        f"`{one['drafter']}`",
        times(one["mean"]),
        times(one["mean_batch_1"]),
        times(one["mean_copy_batch_1"]),
        times(one["lowest"]),
        f"{one['draft_share']:.1%}",
        f"{one['failed']} of {one['cells']}",
        "yes" if not one["unequal"] else f"NO ({one['unequal']} cells)",
    )


def settings_of(found: Document) -> list[tuple[int, float]]:
    """The (batch, temperature) pairs of the table, ascending."""
    return sorted({(cell["batch"], cell["temperature"]) for cell in found["cells"]})


def _category_columns(found: Document) -> list[str]:
    speeds = [f"batch {batch}, T {temperature:g}" for batch, temperature in settings_of(found)]
    return ["drafter", "category", "accepted length", *speeds, "equal"]


def _category_rows(found: Document) -> list[list[str]]:
    groups: dict[tuple[str, str], dict[tuple[int, float], Mapping[str, Any]]] = {}
    for cell in found["cells"]:
        cells = groups.setdefault((cell["drafter"], cell["category"]), {})
        cells[cell["batch"], cell["temperature"]] = cell
    rows = []
    for (drafter, category), cells in groups.items():
        speeds = [
            bounded(cells[setting]["speedup"], cells[setting]["failed"]) if setting in cells else ""
            for setting in settings_of(found)
        ]
        first = next(iter(cells.values()))
        rows.append(
            [
                f"`{drafter}`",
                category,
                f"{first['accepted_len']:.2f}",
                *speeds,
                equality([c["equal"] for c in cells.values()]),
            ]
        )
    return rows


def equality(found: Seq[bool | None]) -> str:
    """Several cells' equality in a word."""
    if False in found:
        return "NO"
    return "not promised" if None in found else "yes"


def times(value: float | None) -> str:
    """A factor; nothing where there is none."""
    return "" if value is None else f"{value:.2f}x"


def bounded(ratio: Mapping[str, Any], is_failed: bool = False) -> str:
    """A ratio with its bounds; a failed one is marked."""
    bounds = f" ({ratio['lower']:.2f}-{ratio['upper']:.2f})" if ratio["upper"] is not None else ""
    return f"{times(ratio['median'])}{bounds}{' FAILED' if is_failed else ''}"


def _table(columns: Seq[str], rows: Seq[Seq[str]]) -> list[str]:
    head = ["| " + " | ".join(columns) + " |", "|" + "|".join("---" for _ in columns) + "|"]
    return head + ["| " + " | ".join(row) + " |" for row in rows]
