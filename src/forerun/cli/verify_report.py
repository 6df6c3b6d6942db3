"""What `forerun verify` says about its verdict: a table and a sentence, or one JSON document."""

from collections import defaultdict
from collections.abc import Sequence as Seq
from dataclasses import asdict
from typing import Any

from rich.table import Table

from forerun.bench.lossless import Row
from forerun.bench.verify import Verdict

MAX_TABLE_ROWS = 40  # more settings than these are shown in groups


def table(verdict: Verdict) -> Table:
    """A row for each setting or group of settings."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("threads", "drafter", "batch", "chunk", "cache", "pool"):
        table.add_column(column)
    for column in ("cells", "tokens", "hashes", "accepted", "cached", "preempted"):
        table.add_column(column, justify="right")
    table.add_column("equal")
    for rows in groups(verdict.rows):
        table.add_row(*_labels(rows), *_counts(rows), "yes" if all(row.is_equal for row in rows) else "NO")
    return table


def groups(rows: Seq[Row]) -> list[list[Row]]:
    """Rows of the table: a setting each, or all that have threads, drafter and batch in common when there are many."""
    if len(rows) <= MAX_TABLE_ROWS:
        return [[row] for row in rows]
    by_key: defaultdict[tuple[int, str, int], list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row.setting.threads, row.setting.drafter, row.setting.batch].append(row)
    return list(by_key.values())


def _labels(rows: Seq[Row]) -> list[str]:
    """One word for each axis; values that differ within the group are joined."""
    spelled = [
        (
            str(row.setting.threads),
            row.setting.drafter,
            str(row.setting.batch),
            str(row.setting.chunk or "whole"),
            "on" if row.setting.cache else "off",
            "tight" if row.setting.tight else "roomy",
        )
        for row in rows
    ]
    return [", ".join(dict.fromkeys(values)) for values in zip(*spelled, strict=True)]


def _counts(rows: Seq[Row]) -> list[str]:
    names = ("cells", "tokens", "hashes", "accepted", "cached", "preempted")
    return [str(sum(getattr(row, name) for row in rows)) for name in names]


def conclusion(verdict: Verdict, model: str, self_test: bool) -> str:
    """The final sentence."""
    difference = verdict.first_difference
    if self_test:
        if difference is None:
            return "self-test: the injected error was NOT found, so a pass of verify means nothing here"
        return f"self-test: the injected error was found. {difference}"
    if difference is not None:
        return f"NOT lossless. First difference: {difference}"
    tokens = sum(row.tokens for row in verdict.rows)
    text = (
        f"{model} is lossless on this machine: {tokens} tokens and the logits behind them under {len(verdict.rows)} "
        f"settings equal plain decoding, bit for bit ({duration(verdict.seconds)})."
    )
    if verdict.skipped:
        text += f" {len(verdict.skipped)} further settings had no time: run it without --quick."
    if not any(row.setting.threads == 1 for row in verdict.rows):
        text += " One thread was not compared with several: the full run does."
    return text


def duration(seconds: float) -> str:
    """Seconds in words."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


# ---- for programs ----


def document(verdict: Verdict, model: str, passed: bool, self_test: bool) -> dict[str, Any]:
    """The verdict as JSON values. passed  with self_test, that the injected error was found"""
    difference = verdict.first_difference
    return {
        "model": model,
        "numerics_id": verdict.numerics_id,
        "self_test": self_test,
        "passed": passed,
        "equal": verdict.is_equal,
        "first_difference": None if difference is None else asdict(difference),
        "settings": [
            asdict(row.setting)
            | {key: value for key, value in asdict(row).items() if key not in ("setting", "differences")}
            | {"equal": row.is_equal}
            for row in verdict.rows
        ],
        "skipped": [asdict(setting) for setting in verdict.skipped],
        "step_s": verdict.step_s,
        "seconds": verdict.seconds,
    }
