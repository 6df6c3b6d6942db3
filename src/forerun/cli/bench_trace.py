"""`forerun bench trace`: a time line of one run for Perfetto, and the same as totals."""

import json
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import ModelOptions, grouped


@grouped
def trace(
    model: ModelOptions,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where to write the time line.")] = Path(
        "trace.json"
    ),
    prompt_tokens: Annotated[int, typer.Option(help="Length of each prompt.")] = 128,
    new_tokens: Annotated[int, typer.Option(help="Length of each answer.")] = 16,
    batch: Annotated[int, typer.Option(help="Sequences that run together.")] = 1,
    speculation: Annotated[str, typer.Option(metavar="NAME", help="A drafter, or off.")] = "off",
) -> None:
    """Write a time line of one run, each thread's operations and the engine's phases, for https://ui.perfetto.dev."""
    from forerun.bench.decode import check_speculation
    from forerun.bench.trace import TraceWish, run_trace, trace_document
    from forerun.cli.bench import machine
    from forerun.cli.console import stdout
    from forerun.cli.load import engine_options, load_llm, model_name

    wish = TraceWish(prompt_tokens, new_tokens, batch, speculation)
    check_speculation([speculation])
    options = wish.options(engine_options(model))
    llm = load_llm(model, speculation, options)
    profile = run_trace(llm, wish, options)
    about = {"model": model_name(model), "numerics_id": llm.numerics_id, **machine(model)}
    out.write_text(json.dumps(trace_document(profile, about)), encoding="utf-8")
    console = stdout()
    console.print(profile.report(), markup=False)
    console.print(f"\nwrote {out}: open it in https://ui.perfetto.dev", markup=False, soft_wrap=True)
