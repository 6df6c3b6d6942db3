"""`forerun bench serve`: load on this server or any other OpenAI-compatible one."""

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.cli.bench import parse_counts
from forerun.cli.console import print_json, progress, stdout
from forerun.cli.options import ModelOptions, Speculation, grouped
from forerun.cli.render import note
from forerun.errors import UsageError

NO_PLOTS = "no plots: they need matplotlib, which `pip install forerun[plots]` brings"


@dataclass(frozen=True)
class Endpoint:
    """Which server."""

    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Base URL of a server, such as http://127.0.0.1:8000/v1; else we start one."),
    ] = None
    served_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name there; without it, the first it lists.")
    ] = None
    api_key: Annotated[str | None, typer.Option(envvar="OPENAI_API_KEY", help="For the server at --url.")] = None


@dataclass(frozen=True)
class Load:
    """What is asked of it."""

    clients: Annotated[str, typer.Option(metavar="N,N,...", help="Closed loop: clients; empty for none.")] = "1,4,16,64"
    rate: Annotated[str, typer.Option(metavar="R,R,...", help="Open loop, Poisson: requests a second.")] = ""
    requests: Annotated[int, typer.Option(help="Of a run; at least twice the clients are sent.")] = 32
    warmup: Annotated[int, typer.Option(help="Requests before, not counted.")] = 4
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Questions of Spec-Bench (question.jsonl), or a text a line.")
    ] = None
    categories: Annotated[str | None, typer.Option(metavar="NAME,...", help="Of the prompts; without it, all.")] = None
    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="Longest answer.")] = 64
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.0
    seed: Annotated[int, typer.Option(help="Of the order of prompts, of arrivals and of sampling.")] = 0
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Answers of full length, where supported.")] = False
    slo_ttft: Annotated[float, typer.Option(help="Goodput: longest time to first token, seconds.")] = 1.0
    slo_tpot: Annotated[float, typer.Option(help="Goodput: longest time per token after it, seconds.")] = 0.1
    timeout: Annotated[float, typer.Option(help="Of a request, seconds.")] = 300.0
    long_prompt: Annotated[
        int, typer.Option(metavar="TOKENS", help="Also measure --streams beside a prompt of so many tokens.")
    ] = 0
    streams: Annotated[str, typer.Option(metavar="N,N,...", help="Streams beside the long prompt.")] = "1,16"
    repeats: Annotated[int, typer.Option(min=1, help="Long prompts, alone and beside each number of streams.")] = 3


@grouped
def serve(
    model: ModelOptions,
    endpoint: Endpoint,
    load: Load,
    speculation: Speculation = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Write serving.json, .md and plots there.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> int:
    """Latencies and throughput under load; exit code 1 if a request failed.

    Closed loop: N clients, each sends its next request when its last one is answered. Open loop: requests come by a
    Poisson process, whether the server keeps up or not. TTFT: from when a request is due until its first text.
    Inter-token: between two arrivals of text in a stream. TPOT: from first to last text by the tokens after the first.
    Throughput: output tokens of whole answers by the time from first request to last end. Goodput: answers a second
    within the SLO. With --url, --speculation is what each request says: off, or one of the server's drafters.
    """
    import contextlib

    from forerun.bench.serving_report import document
    from forerun.bench.serving_server import own_server

    wish, prompts = _wish(load), _prompts(load)
    with contextlib.ExitStack() as stack:
        start_s, url = None, endpoint.url
        if url is None:
            own = stack.enter_context(own_server(_arguments(model, speculation)))
            url, start_s = own.url, own.start_s
        name = endpoint.served_model or _first_model(url, endpoint.api_key)
        wish = replace(wish, model=name, drafter=_drafter(endpoint, speculation))
        runs, interference = _measure(url, endpoint, load, wish, prompts)
    found = document(runs, interference, wish, _about(model, url, start_s, name, prompts))
    if out is not None:
        _write(found, out)
    if json:
        print_json(found)
    else:
        _print(found)
    return 0 if found["passed"] else 1


def _drafter(endpoint: Endpoint, speculation: str) -> str | None:
    """What requests to somebody's server say; our own is started with it. Raises UsageError."""
    if endpoint.url is None or speculation == "auto":
        return None
    if "+" in speculation:
        raise UsageError(f"a request names one drafter or off, not {speculation}: start the server at --url with it")
    return speculation


def _measure(url: str, endpoint: Endpoint, load: Load, wish: Any, prompts: Any) -> tuple[list[Any], list[Any]]:
    import asyncio

    from forerun.bench.serving import bench_serving
    from forerun.bench.serving_client import Target
    from forerun.bench.serving_interference import measure_interference

    target = Target.of(url, endpoint.api_key)
    runs: list[Any] = []
    if wish.clients or wish.rates:
        with progress("Measuring", unit="requests") as report:
            runs = asyncio.run(bench_serving(target, prompts, wish, report))
    streams = parse_counts(load.streams) if load.long_prompt else ()
    return runs, [asyncio.run(measure_interference(target, wish, n, load.long_prompt, load.repeats)) for n in streams]


def _wish(load: Load) -> Any:
    from forerun.bench.serving import ServingWish

    clients = parse_counts(load.clients) if load.clients else ()
    try:
        rates = tuple(float(part) for part in load.rate.split(",")) if load.rate else ()
    except ValueError:
        raise UsageError(f"{load.rate!r} is no list of numbers: write them like 2,8") from None
    if not (clients or rates) and not load.long_prompt:
        raise UsageError("nothing to measure: give --clients, --rate or --long-prompt")
    return ServingWish(
        model="",
        clients=clients,
        rates=rates,
        requests=load.requests,
        warmup=load.warmup,
        max_tokens=load.max_tokens,
        temperature=load.temperature,
        seed=load.seed,
        ignore_eos=load.ignore_eos,
        max_ttft_s=load.slo_ttft,
        max_tpot_s=load.slo_tpot,
        timeout_s=load.timeout,
    )


def _prompts(load: Load) -> Any:
    from forerun.bench.prompts import own_prompts, spec_bench, text_lines

    if load.prompts is None:
        found = own_prompts()
    else:
        found = spec_bench(load.prompts) if load.prompts.suffix == ".jsonl" else text_lines(load.prompts)
    return found if load.categories is None else found.only(load.categories.split(","))


def _arguments(model: ModelOptions, speculation: str) -> list[str]:
    """The options of `forerun serve` that give the same model and memory."""
    import dataclasses

    arguments = ["--speculation", speculation]
    for field in dataclasses.fields(model):
        value = getattr(model, field.name)
        if value is not None:
            arguments += [f"--{field.name.replace('_', '-')}", str(value)]
    return arguments


def _first_model(url: str, api_key: str | None) -> str:
    import urllib.error
    import urllib.request

    base = url.rstrip("/")
    wanted = urllib.request.Request(f"{base if base.endswith('/v1') else base + '/v1'}/models")
    if api_key:
        wanted.add_header("Authorization", f"Bearer {api_key}")
    try:
        with urllib.request.urlopen(wanted, timeout=30) as answer:
            return str(json_module.loads(answer.read())["data"][0]["id"])
    except (urllib.error.URLError, OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UsageError(f"{url} lists no models ({error}): name one with --served-model") from None


def _about(model: ModelOptions, url: str, start_s: float | None, name: str, prompts: Any) -> dict[str, Any]:
    from forerun.cli.bench import machine
    from forerun.cli.generate import versions

    return {
        "model": Path(name).name,
        "server": "forerun serve, started for this" if start_s is not None else url,
        "start_s": start_s,
        "prompts": prompts.name,
        "num_prompts": sum(len(group) for group in prompts.categories.values()),
        "machine": machine(model),
        "versions": versions(),
    }


def _write(found: Mapping[str, Any], folder: Path) -> None:
    from forerun.bench.serving_plot import write_serving_plots
    from forerun.bench.serving_report import markdown

    folder.mkdir(parents=True, exist_ok=True)
    text = json_module.dumps(found, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / "serving.json").write_text(text, encoding="utf-8")
    (folder / "serving.md").write_text(markdown(found), encoding="utf-8")
    try:
        write_serving_plots(found, folder)
    except ImportError:
        note(NO_PLOTS)


def _print(found: Mapping[str, Any]) -> None:
    from forerun.bench.serving_report import markdown

    console = stdout()
    console.print(markdown(found), markup=False, soft_wrap=True)
    for run in found["runs"]:
        for error, count in run["errors"].items():
            console.print(f"{count} requests at {run['load']:g}: {error}", markup=False, soft_wrap=True)
    if found["start_s"] is not None:
        console.print(f"The server answered {found['start_s']:.2f} s after its start.", markup=False)
