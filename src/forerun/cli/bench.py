"""`forerun bench`: measurements of speed and of quality, which check equality too."""

from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any

import typer

from forerun.cli.console import print_json, progress, stdout
from forerun.cli.generate import versions
from forerun.cli.options import ModelOptions, grouped
from forerun.errors import UsageError

app = typer.Typer(help="Measure decoding speed, and quality against fp32.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def parse_counts(text: str) -> tuple[int, ...]:
    """Whole numbers of "1,4,16". Raises UsageError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{text!r} is no list of whole numbers: write them like 1,4,16") from None


@dataclass(frozen=True)
class Workload:
    """What `bench decode` measures."""

    prompt_tokens: Annotated[int, typer.Option(help="Length of each prompt.")] = 128
    new_tokens: Annotated[int, typer.Option(help="Length of each answer.")] = 128
    batch: Annotated[str, typer.Option(metavar="N,N,...", help="Sequences that run together.")] = "1,4,16"
    speculation: Annotated[str, typer.Option(metavar="NAME,NAME,...", help="Drafters, and off.")] = "off,ngram"
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="Of the answers; 0 is greedy.")] = 0.0
    repeats: Annotated[int, typer.Option(help="Timed runs of every setting; medians count.")] = 3


@app.command("decode")
@grouped
def decode(model: ModelOptions, workload: Workload, json: Json = False) -> int:
    """Prefill and decode speed for batch sizes and drafters; exit code 1 if their answers are not equal."""
    from forerun.bench.decode import DecodeResult, DecodeWish, bench_decode, check_speculation
    from forerun.cli.load import engine_options, load_llm, model_name

    wish = DecodeWish(
        prompt_tokens=workload.prompt_tokens,
        new_tokens=workload.new_tokens,
        batches=parse_counts(workload.batch),
        speculations=tuple(workload.speculation.split(",")),
        repeats=workload.repeats,
        temperature=workload.temperature,
    )
    check_speculation(wish.speculations)
    options = wish.options(engine_options(model))
    llm = load_llm(model, "off", options)
    with progress("Measuring", unit="runs") as report:
        results = bench_decode(llm, wish, options, report)
    equal = all(result.is_equal for result in results)
    if json:

        def entry(result: DecodeResult) -> dict[str, Any]:
            return asdict(result) | {"equal": result.is_equal}

        print_json(
            {
                "model": model_name(model),
                "equal": equal,
                "settings": asdict(wish) | {"prefix_cache": False},
                "results": [entry(result) for result in results],
                "memory_bytes": asdict(llm.backend.memory()),
                **_circumstances(model, llm.numerics_id),
            }
        )
    else:
        _print_decode(results, model, llm.numerics_id)
    return 0 if equal else 1


@app.command("quality")
@grouped
def quality(
    model: ModelOptions,
    tokens: Annotated[int, typer.Option(help="Length of the text.")] = 256,
    json: Json = False,
) -> None:
    """Compare the engine's logits over a text with fp32 arithmetic on the file's weights.

    Of several formats of the weights, one row each: --weights file,bf16,int8,int4.
    """
    from forerun.backends.weight_formats import check_choice
    from forerun.bench import corpus
    from forerun.bench.quality import fp32_logits, measure_quality
    from forerun.cli.load import engine_options, load_llm, model_name

    formats = model.weights.split(",")
    for name in formats:
        check_choice(name)
    fp32 = None

    def measure(weights: str) -> dict[str, Any]:
        nonlocal fp32
        chosen = replace(model, weights=weights)
        llm = load_llm(chosen, "off")
        with progress(f"Computing {weights}", unit="tokens") as report:
            fp32 = fp32_logits(llm, tokens) if fp32 is None else fp32
            found = measure_quality(llm, tokens, engine_options(chosen), report, fp32)
        return {
            "weights": weights,
            "numerics_id": llm.numerics_id,
            "weight_bytes": llm.backend.memory().weights,
            **asdict(found),
        }

    results = [measure(weights) for weights in formats]  # one model in memory at a time
    about = {"model": model_name(model), "corpus": corpus.NAME, "machine": machine(model), "versions": versions()}
    if json:
        print_json(about | {"results": results})
    else:
        _print_quality(results, about)


# ---- what a figure depends on ----


def _circumstances(model: ModelOptions, numerics_id: str) -> dict[str, Any]:
    """Machine, text, versions: what a figure must be published with."""
    from forerun.bench import corpus

    return {
        "corpus": corpus.NAME,
        "machine": machine(model),
        "numerics_id": numerics_id,
        "versions": versions(),
    }


def machine(model: ModelOptions) -> dict[str, Any]:
    """The processor and how much of it is used."""
    import platform

    from forerun.backends import cores
    from forerun.machine import total_memory

    table, threads = None, 1
    if model.backend == "cpu":
        from forerun.backends.cpu import choose_table

        table, threads = choose_table(), cores.default_threads() if model.threads is None else model.threads
    return {
        "cpu": cores.model_name(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "physical_cores": cores.physical_cores(),
        "kernel_table": table,
        "threads": threads,
        "memory_bytes": total_memory(),
    }


def _print_decode(results: Seq[Any], model: ModelOptions, numerics_id: str) -> None:
    from rich.table import Table

    from forerun.bench import corpus
    from forerun.models.download import megabytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("batch", "speculation", "prefill tokens/s", "decode tokens/s", "step ms", "accepted length"):
        table.add_column(column, justify="left" if column == "speculation" else "right")
    for column in ("acceptance", "peak memory"):
        table.add_column(column, justify="right")
    table.add_column("equal")
    for result in results:
        table.add_row(
            str(result.batch),
            result.speculation,
            f"{result.prefill_tokens_per_s:.0f}",
            f"{result.decode_tokens_per_s:.1f}",
            f"{result.step_ms:.1f}",
            f"{result.mean_accepted_len:.2f}",
            "" if result.acceptance is None else f"{result.acceptance:.0%}",
            megabytes(result.peak_memory_bytes),
            "yes" if result.is_equal else "NO",
        )
    about = machine(model)
    console = stdout()
    console.print(table)
    console.print(
        f"{about['cpu']}, {about['threads']} threads, {numerics_id}; text {corpus.NAME}, prefix cache off",
        markup=False,
        soft_wrap=True,
    )
    for result in results:
        if result.difference is not None:
            console.print(f"NOT equal: {result.difference}", markup=False, soft_wrap=True)


def _print_quality(results: Seq[dict[str, Any]], about: dict[str, Any]) -> None:
    from rich.table import Table

    from forerun.models.download import megabytes

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("weights")
    for column in ("in memory", "mean KL", "largest KL", "same likeliest token", "perplexity"):
        table.add_column(column, justify="right")
    for result in results:
        table.add_row(
            result["weights"],
            megabytes(result["weight_bytes"]),
            f"{result['mean_kl']:.5f}",
            f"{result['max_kl']:.4f}",
            f"{result['top1_agreement']:.1%}",
            f"{result['perplexity']:.3f}",
        )
    first = results[0]
    table.add_row("fp32", "", "0", "0", "100.0%", f"{first['perplexity_fp32']:.3f}")
    text = f"{first['tokens']} positions of {about['corpus']}"
    console = stdout()
    console.print(table)
    console.print(
        f"{about['model']}, {text}; KL in nats, from fp32 on the file's weights",
        ", ".join(dict.fromkeys(result["numerics_id"] for result in results)),
        sep="\n",
        markup=False,
        soft_wrap=True,
    )
