"""`forerun bench speculation`: what each drafter is worth, by kind of text, and proof that none of them costs."""

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.cli.bench import parse_counts
from forerun.cli.console import print_json, progress, stdout
from forerun.cli.drafting import DRAFT_MODEL, DraftOptions
from forerun.cli.options import ModelOptions, grouped
from forerun.cli.render import note
from forerun.errors import UsageError

JSON_NAME = "speculation.json"
NO_PLOTS = "no plots: they need matplotlib, which `pip install forerun[plots]` brings"


@dataclass(frozen=True)
class Matrix:
    """What is measured."""

    drafters: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME,...", help="Without it, all that need no further model, and auto."),
    ] = None
    categories: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="Of the prompts; without it, all.")
    ] = None
    batch: Annotated[str, typer.Option(metavar="N,N,...", help="Sequences that run together.")] = "1,4,16"
    temperature: Annotated[str, typer.Option("--temperature", "-t", metavar="T,T,...", help="0 is greedy.")] = "0,0.8"
    new_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 64
    pairs: Annotated[int, typer.Option(help="Of runs, in every cell; 7 are needed for a verdict on speed.")] = 7
    requests: Annotated[int, typer.Option(help="Prompts in a run, at least; a larger batch takes more.")] = 4
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Questions of Spec-Bench (question.jsonl) in place of our own.")
    ] = None
    turns: Annotated[bool, typer.Option("--turns", help="With --data, the questions' later turns too.")] = False
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A look: batch 1, greedy, 3 pairs of one prompt, 32 tokens; no verdict on speed."),
    ] = False


@grouped
def speculation(
    model: ModelOptions,
    matrix: Matrix,
    drafting: DraftOptions,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Write speculation.json, .md and plots there, and measure only cells that are not there yet.",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Each drafter over plain decoding, paired in the same run; exit code 1 if a cell is slower or not equal."""
    from forerun.bench.speculation import Watch, bench_speculation, cells_of
    from forerun.bench.speculation_cells import SpeculationResults
    from forerun.bench.speculation_kept import is_measured, kept_results, merged
    from forerun.bench.speculation_report import document
    from forerun.cli.bench import machine
    from forerun.cli.generate import versions
    from forerun.cli.load import engine_options, load_llm, model_name

    prompts, wish = _prompts(matrix), _wish(matrix, drafting)
    options = wish.options(engine_options(model))
    llm = load_llm(model, "off", options)
    about = {
        "model": _shown_name(model_name(model)),
        "numerics_id": llm.numerics_id,
        "machine": machine(model),
        "versions": versions(),
    }
    kept = SpeculationResults([], {}) if out is None else kept_results(out / JSON_NAME, wish, prompts.name, about)
    cells = [cell for cell in cells_of(prompts, wish) if not is_measured(cell, wish, kept.cells)]

    def measured(results: SpeculationResults) -> None:
        note(_line(results.cells[-1]))
        if out is not None:
            _write_json(document(merged(kept, results), wish, prompts.name, about), out)

    with progress("Measuring", unit="runs") as report:
        results = bench_speculation(llm, prompts, wish, options, Watch(report, measured), cells)
    found = document(merged(kept, results), wish, prompts.name, about)
    if out is not None:
        _write(found, out)
    if json:
        print_json(found)
    else:
        _print(found)
    return 0 if found["passed"] else 1


def _shown_name(model: str) -> str:
    """A model as figures name it: of a path, the last part."""
    return Path(model).name if Path(model).expanduser().exists() else model


def _prompts(matrix: Matrix) -> Any:
    from forerun.bench.prompts import own_prompts, spec_bench

    if matrix.data is None and matrix.turns:
        raise UsageError("--turns is for the questions of --data: our own prompts have one turn")
    prompts = own_prompts() if matrix.data is None else spec_bench(matrix.data, matrix.turns)
    return prompts if matrix.categories is None else prompts.only(matrix.categories.split(","))


def _wish(matrix: Matrix, drafting: DraftOptions) -> Any:
    from forerun.bench.speculation_cells import SpeculationWish, default_drafters

    named = None if matrix.drafters is None else tuple(matrix.drafters.split(","))
    drafters = named if named is not None else default_drafters()
    if drafting.draft_model is not None and not any(DRAFT_MODEL in name.split("+") for name in drafters):
        drafters = (*drafters, DRAFT_MODEL, *(("auto+" + DRAFT_MODEL,) if "auto" in drafters else ()))
    wish = SpeculationWish(
        drafters=drafters,
        batches=parse_counts(matrix.batch),
        temperatures=_parse_numbers(matrix.temperature),
        new_tokens=matrix.new_tokens,
        pairs=matrix.pairs,
        requests=matrix.requests,
        config=drafting.config("+".join(name for name in drafters if name != "off") or "off"),
        is_strict=named is not None,
    )
    return (
        replace(wish, batches=(1,), temperatures=(0.0,), new_tokens=32, pairs=3, requests=1) if matrix.quick else wish
    )


def _parse_numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is no list of numbers: write them like 0,0.8") from None


def _line(result: Any) -> str:
    """A cell as soon as it is measured."""
    from forerun.bench.speculation_report import bounded

    cell, ratio = result.cell, result.speedup
    bounds = {"median": ratio.median, "lower": ratio.lower, "upper": ratio.upper if len(ratio.pairs) > 1 else None}
    failed = "" if result.is_equal is not False else ", NOT equal"
    slower = ", slower" if result.is_slower else ""
    return (
        f"{cell.drafter}, {cell.category}, batch {cell.batch}, T {cell.temperature:g}: {bounded(bounds)}, "
        f"accepted length {result.accepted_len:.2f}{slower}{failed}"
    )


def _write_json(found: Mapping[str, Any], folder: Path) -> None:
    """Write the document, as a whole or not at all: a run may be stopped at any time."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json_module.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    unfinished = folder / f".{JSON_NAME}"
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(folder / JSON_NAME)


def _write(found: Mapping[str, Any], folder: Path) -> None:
    from forerun.bench.speculation_plot import write_speculation_plots
    from forerun.bench.speculation_report import markdown

    _write_json(found, folder)
    (folder / "speculation.md").write_text(markdown(found), encoding="utf-8")
    try:
        write_speculation_plots(found, folder)
    except ImportError:
        note(NO_PLOTS)


# ---- on the terminal ----

_COLUMNS = ("drafter", "category", "batch", "T", "plain tok/s", "tok/s", "speed-up (95 %)", "whole", "accepted length")


def _print(found: Mapping[str, Any]) -> None:
    from rich.table import Table

    from forerun.bench.speculation_report import bounded, equality, times

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in (*_COLUMNS, "acceptance at 1, 2, 3", "draft share", "equal", ""):
        is_text = column in ("drafter", "category", "equal", "")
        table.add_column(column, justify="left" if is_text else "right")
    for cell in found["cells"]:
        table.add_row(
            cell["drafter"],
            cell["category"],
            str(cell["batch"]),
            f"{cell['temperature']:g}",
            f"{cell['plain_tokens_per_s']:.1f}",
            f"{cell['tokens_per_s']:.1f}",
            bounded(cell["speedup"]),
            times(cell["whole"]["median"]),
            f"{cell['accepted_len']:.2f}",
            " ".join(f"{share:.0%}" for share in cell["acceptance_at"][:3]),
            f"{cell['draft_share']:.1%}",
            equality([cell["equal"]]),
            "FAILED" if cell["failed"] else ("slower" if cell["slower"] else ""),
        )
    console = stdout()
    console.print(table)
    console.print()
    for line in _conclusions(found):
        console.print(line, markup=False, soft_wrap=True)


def _conclusions(found: Mapping[str, Any]) -> list[str]:
    from forerun.bench.speculation_report import times

    machine = found["machine"]
    lines = [
        f"{one['drafter']}: geometric mean {times(one['mean'])} over {one['cells']} cells"
        + (f", {times(one['mean_batch_1'])} at batch 1" if one["mean_batch_1"] else "")
        + (f", {times(one['mean_copy'])} on copy" if one["mean_copy"] else "")
        + f"; lowest cell {times(one['lowest'])}, {one['failed']} failed"
        for one in found["summary"]
    ]
    lines += [f"{name}: not measured, because {reason}" for name, reason in found["skipped"].items()]
    lines += [
        f"{name}: {check['drafter']} hardly agrees with the model: {check['cause']}"
        for name, checks in found["checks"].items()
        for check in checks
        if check["cause"] is not None
    ]
    lines += [
        f"NOT equal: {cell['drafter']}, {cell['category']}, batch {cell['batch']}, T {cell['temperature']:g}: "
        f"{cell['difference']}"
        for cell in found["cells"]
        if cell["difference"] is not None
    ]
    if not found["has_verdict"]:
        fewest = min(len(cell["speedup"]["pairs"]) for cell in found["cells"])
        needed = found["settings"]["min_pairs"]
        lines.append(f"No verdict on speed: {fewest} pairs, and {needed} are needed for one.")
    lines.append(
        f"{found['model']}, {machine['cpu']}, {machine['threads']} threads, {found['numerics_id']}; "
        f"prompts {found['prompts']}, prefix cache off"
    )
    return lines
