"""`forerun bench kernels` and `forerun bench targets`: kernels and steps against the limits of this machine."""

import json as json_module
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.cli.console import print_json, progress, stdout
from forerun.cli.options import ModelOptions, grouped
from forerun.cli.render import note
from forerun.errors import UsageError

Quick = Annotated[bool, typer.Option("--quick", help="Fewer settings and turns; figures are rough.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="Write the document and plots (PNG, SVG) into a folder.")
]
PeerFile = Annotated[
    Path | None,
    typer.Option("--peer", metavar="FILE", help="JSON with llama.cpp's tokens/s from the same sitting."),
]
IdleFile = Annotated[
    Path | None,
    typer.Option("--idle", metavar="FILE", help="A document of the idle machine, to compare the limits with."),
]

NO_PLOTS = "plots need matplotlib: pip install 'forerun[plots]'; the JSON document is complete without them"


@grouped
def kernels(
    model: ModelOptions,
    quick: Quick = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Out = None,
) -> int:
    """Measure bandwidth, matrix peaks, every kernel and whole steps; exit code 1 if logits depend on the batch."""
    document = _measure(model, quick)
    if out is not None:
        _write(document, out)
    if json:
        print_json(document)
    else:
        _print(document)
    return 0 if document["equality"]["difference"] is None else 1


@grouped
def targets(
    model: ModelOptions,
    quick: Quick = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    out: Out = None,
    documents: Annotated[
        list[Path] | None,
        typer.Option("--from", metavar="FILE", help="A document of bench kernels, instead of measuring; repeatable."),
    ] = None,
    peer: PeerFile = None,
    idle: IdleFile = None,
) -> int:
    """Print every target beside its measured value, as Markdown; exit code 1 if one is missed."""
    from forerun.bench.targets import FAILED, Peer, evaluate, markdown

    if documents and (out is not None or model.model is not None):
        raise UsageError("--from takes what was measured before: leave --model and --out out")
    peer_speeds = None if peer is None else Peer.of(_read(peer))
    idle_document = None if idle is None else _read_sitting(idle)
    if documents:
        sittings = [_read_sitting(path) for path in documents]
    else:
        sittings = [_measure(model, quick)]
        if out is not None:
            _write(sittings[0], out)
    judged = [(document, evaluate(document, peer_speeds, idle_document)) for document in sittings]
    if json:
        entries = [
            {"model": document["model"]["name"], "targets": [asdict(result) for result in results]}
            for document, results in judged
        ]
        print_json({"sittings": entries})
    else:
        print(markdown(judged), end="")
    unequal = any(document["equality"]["difference"] is not None for document in sittings)
    return 1 if unequal or any(result.status == FAILED for _, results in judged for result in results) else 0


# ---- measuring ----


def _measure(model: ModelOptions, quick: bool) -> dict[str, Any]:
    if model.backend != "cpu":
        raise UsageError("only the cpu backend has kernels to measure: leave --backend out")

    from forerun.backends.cpu import cpu_info
    from forerun.bench.loading import warm
    from forerun.bench.rig import wanted_kv_bytes
    from forerun.bench.sitting import measure, options_for
    from forerun.cli.bench import machine
    from forerun.cli.generate import versions
    from forerun.cli.load import engine_options, load_llm, model_name
    from forerun.models.hub import resolve
    from forerun.models.registry import open_model

    options = options_for(engine_options(model))
    with progress("Downloading") as report:
        path = resolve(model_name(model), progress=report)
    warm(path)
    if model.kv_cache_bytes is None:
        wanted = wanted_kv_bytes(open_model(path).spec, options.kv_format, options.block_size, quick)
        model = replace(model, kv_cache_bytes=wanted)
    with progress("Measuring", unit="measurements") as report:
        document = measure(lambda: load_llm(model, "off", options), options, quick, report)
    about = machine(model) | {"features": cpu_info()["features"]}
    return {"command": "bench kernels", "machine": about, "versions": versions(), **document}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json_module.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"{path} is no JSON document: {error}") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no JSON object")
    return document


def _read_sitting(path: Path) -> dict[str, Any]:
    from forerun.bench.sitting import FORMAT

    document = _read(path)
    if document.get("format") != FORMAT:
        raise UsageError(f"{path} is no document of this version's bench kernels: measure again")
    return document


# ---- showing ----


def _write(document: Mapping[str, Any], folder: Path) -> None:
    from forerun.bench.plot import write_plots

    folder.mkdir(parents=True, exist_ok=True)
    text = json_module.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / "kernels.json").write_text(text, encoding="utf-8")
    try:
        write_plots(document, folder)
    except ImportError:
        note(NO_PLOTS)


def _print(document: Mapping[str, Any]) -> None:
    console = stdout()
    limits, machine = document["limits"], document["machine"]
    console.print(
        f"{machine['cpu']}, {document['threads']} threads, {document['numerics_id']}, {document['model']['name']}",
        markup=False,
        soft_wrap=True,
    )
    bandwidths = [
        (_size(e["buffer_bytes"]), f"{e['one_thread'] / 1e9:.1f}", f"{e['all_threads'] / 1e9:.1f}", e["loop"])
        for e in limits["bandwidths"]
    ]
    peaks = [(e["format"], f"{e['one_thread'] / 1e12:.3f}", f"{e['all_threads'] / 1e12:.3f}") for e in limits["peaks"]]
    console.print(_table(("buffer", "1 thread, GB/s", "all threads, GB/s", "fastest way"), bandwidths))
    console.print(_table(("numbers", "1 thread, T/s", "all threads, T/s"), peaks))
    console.print(_table(_KERNEL_COLUMNS, [_kernel_cells(kernel) for kernel in document["kernels"]]))
    steps = [
        (s["kind"], str(s["context"]), str(s["rows"]), f"{1e3 * s['seconds']:.2f}", f"{s['ratio']:.2f}")
        for s in document["steps"]
    ]
    console.print(_table(("step", "context", "rows", "ms", "t(n) / t(1)"), steps))
    draws = [
        (d["method"], str(d["rows"]), f"{1e3 * d['seconds']:.3f}", f"{d['over_greedy']:+.1%}")
        for d in document["draws"]
    ]
    console.print(_table(("draw", "rows", "ms", "of a greedy step"), draws))
    engine = [
        (str(e["batch"]), f"{1e3 * e['step_s']:.2f}", f"{1e3 * e['outside_s']:.3f}", f"{e['tokens_per_s']:.0f}")
        for e in document["engine"]
    ]
    console.print(_table(("engine, batch", "step ms", "outside kernels, ms", "tokens/s"), engine))
    for line in _conclusions(document):
        console.print(line, markup=False, soft_wrap=True)


_KERNEL_COLUMNS = ("kernel", "shape", "rows", "context", "count", "us", "GB/s", "GFLOP/s", "bound", "fraction", "share")


def _kernel_cells(kernel: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = kernel["seconds"]
    return (
        kernel["kind"],
        f"{kernel['inputs']} -> {kernel['outputs']}" if kernel["outputs"] else str(kernel["inputs"]),
        str(kernel["rows"]),
        str(kernel["context"]),
        str(kernel["count"]),
        f"{1e6 * seconds:.1f}",
        f"{kernel['num_bytes'] / seconds / 1e9:.1f}",
        f"{kernel['operations'] / seconds / 1e9:.0f}",
        kernel["bound"],
        f"{kernel['fraction']:.0%}",
        f"{kernel['share']:.1%}",
    )


def _conclusions(document: Mapping[str, Any]) -> list[str]:
    decode, prefill, load, equality = (document[key] for key in ("decode", "prefill", "load", "equality"))
    lines = [
        f"decode {1 / decode['seconds']:.1f} tokens/s, {decode['fraction']:.0%} of the limit of the file's bytes",
        f"prefill {prefill['tokens_per_s']:.0f} tokens/s, {prefill['fraction']:.0%} of peak {prefill['peak_format']}",
        f"loading {load['seconds']:.2f} s for {load['file_bytes'] / 1e6:.0f} MB",
        f"limits: the median round reached {document['limits']['steadiness']:.0%} of the best",
    ]
    if document["limits"]["steadiness"] < 0.85:
        lines.append("The machine was busy with something else: these figures are not to be published.")
    if equality["difference"] is None:
        lines.append(f"equal: the logits of {equality['rows']} rows are the same alone and in a batch, bit for bit")
    else:
        lines.append(f"NOT equal: {equality['difference']}")
    return lines


def _table(columns: Seq[str], rows: Seq[Seq[str]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    left = {"kernel", "shape", "numbers", "step", "draw", "bound", "fastest way"}
    for column in columns:
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _size(num_bytes: int) -> str:
    return f"{num_bytes >> 20} MB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KB"
