"""Options that several commands share, as frozen groups, and `grouped`, which spreads groups into single options.

A command declares `sampling: Sampling` and gets one object; its help page lists every option by itself. What can be
checked without a model is checked before one is loaded.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from forerun.cache.layout import CODEC_BYTES
from forerun.errors import UsageError
from forerun.sequence import SamplingParams

T = TypeVar("T")

_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MODEL, _SAMPLING, _SPEED = "Model", "Sampling", "Speed and memory"


def parse_size(text: str) -> int:
    """Bytes of "1000", "512M", "2G" or "1.5GiB"; the units are powers of 1024. Raises typer.BadParameter."""
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    unit = number[-1:] if number[-1:] in _SIZE_UNITS else ""
    try:
        size = int(float(number.removesuffix(unit)) * _SIZE_UNITS[unit])
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise typer.BadParameter(f"{text!r} is no size: write bytes, or a number with K, M or G such as 512M")
    return size


def parse_kv_format(text: str) -> str:
    """A KV format's name. Raises typer.BadParameter."""
    if text not in CODEC_BYTES:
        raise typer.BadParameter(f"unknown KV format {text!r}: choose {' or '.join(CODEC_BYTES)}")
    return text


def parse_bias(entries: list[str] | None) -> dict[int, float]:
    """Logit biases by token id from "ID=VALUE" entries. Raises UsageError."""
    biases: dict[int, float] = {}
    for entry in entries or []:
        token, _, value = entry.partition("=")
        try:
            biases[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"logit bias {entry!r} is not ID=VALUE, such as 42=-5") from None
    return biases


@dataclasses.dataclass(frozen=True)
class ModelOptions:
    """Which model runs, and with what: the options of everything that loads one."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            rich_help_panel=_MODEL,
            help="A path, alias or hub repository; without it, smollm2-135m.",
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(rich_help_panel=_SPEED, help="Compute threads; without it, all this process may use."),
    ] = None
    kv_cache_bytes: Annotated[
        int | None,
        typer.Option(parser=parse_size, metavar="SIZE", rich_help_panel=_SPEED, help="KV cache, such as 512M or 2G."),
    ] = None
    max_model_len: Annotated[
        int | None, typer.Option(rich_help_panel=_SPEED, help="Longest prompt and answer together, in tokens.")
    ] = None
    kv_format: Annotated[
        str,
        typer.Option(
            parser=parse_kv_format, metavar="bf16|fp32", rich_help_panel=_SPEED, help="Format of the KV cache."
        ),
    ] = "bf16"
    weights: Annotated[
        str,
        typer.Option(
            metavar="file|bf16|int8|int4",
            rich_help_panel=_SPEED,
            help="Format of the weights: the file's own bits, or another; int8 and int4 lose quality.",
        ),
    ] = "file"
    backend: Annotated[
        str,
        typer.Option(
            metavar="cpu|reference", rich_help_panel=_SPEED, help="Native kernels, or numpy (slow, an oracle)."
        ),
    ] = "cpu"


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How the answer is drawn; the names are those of SamplingParams."""

    max_tokens: Annotated[
        int,
        typer.Option("--max-tokens", "-n", rich_help_panel=_SAMPLING, help="Longest answer."),
    ] = 512
    temperature: Annotated[
        float, typer.Option("--temperature", "-t", rich_help_panel=_SAMPLING, help="0 is greedy, 1 the model's own.")
    ] = 0.0
    top_k: Annotated[int, typer.Option(rich_help_panel=_SAMPLING, help="Of the K likeliest tokens; 0 is off.")] = 0
    top_p: Annotated[float, typer.Option(rich_help_panel=_SAMPLING, help="Of the likeliest with this total.")] = 1.0
    min_p: Annotated[
        float, typer.Option(rich_help_panel=_SAMPLING, help="Of those at least this likely, relative to the first.")
    ] = 0.0
    seed: Annotated[
        int | None, typer.Option(rich_help_panel=_SAMPLING, help="Repeats an answer; without it, a random one.")
    ] = None
    stop: Annotated[
        list[str] | None, typer.Option(rich_help_panel=_SAMPLING, help="End before this text; may be repeated.")
    ] = None
    stop_token_id: Annotated[
        list[int] | None, typer.Option(rich_help_panel=_SAMPLING, help="End with this token; may be repeated.")
    ] = None
    min_tokens: Annotated[int, typer.Option(rich_help_panel=_SAMPLING, help="Do not end before.")] = 0
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", rich_help_panel=_SAMPLING, help="Do not end where the model would.")
    ] = False
    repetition_penalty: Annotated[
        float, typer.Option(rich_help_panel=_SAMPLING, help="Over prompt and answer; 1 is off.")
    ] = 1.0
    frequency_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING, help="Over the answer; 0 is off.")] = (
        0.0
    )
    presence_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING, help="Over the answer; 0 is off.")] = 0.0
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(metavar="ID=VALUE", rich_help_panel=_SAMPLING, help="Added to a token's logit; may be repeated."),
    ] = None

    def params(self, **more: Any) -> SamplingParams:
        """SamplingParams with these options and `more`. Raises UsageError, also for options that would do nothing."""
        params = SamplingParams(**self.arguments(), **more)
        off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
        named = [f"--{name.replace('_', '-')}" for name, value in off.items() if getattr(self, name) != value]
        if named and self.temperature == 0:
            raise UsageError(
                f"{' and '.join(named)} would do nothing at temperature 0, which takes the likeliest token: "
                "add a --temperature above 0"
            )
        return params

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of SamplingParams. Raises UsageError for a malformed bias."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["stop"] = tuple(values["stop"] or ())
        values["stop_token_ids"] = tuple(values.pop("stop_token_id") or ())
        values["logit_bias"] = parse_bias(self.logit_bias)
        return values


@dataclasses.dataclass(frozen=True)
class Display:
    """What is shown beside the answer."""

    show_drafts: Annotated[
        bool, typer.Option("--show-drafts", help="Colour accepted draft tokens (on a terminal).")
    ] = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes on stderr, only errors.")] = False


Speculation = Annotated[
    str,
    typer.Option(
        metavar="off|auto|NAME[+NAME...]", rich_help_panel="Speculation", help="What drafts tokens ahead of the model."
    ),
]
SystemMessage = Annotated[str | None, typer.Option("--system", metavar="TEXT", help="System message.")]


def grouped(command: Callable[..., T]) -> Callable[..., T]:
    """Let typer see a command's parameters that are groups (dataclasses of this module) as the options they hold.

        @grouped
        def chat(model: ModelOptions, system: SystemMessage = None): ...

    becomes a command with --model, --threads, ..., --system, whose function is called with one ModelOptions.
    """
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if not dataclasses.is_dataclass(parameter.annotation):
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
            continue
        groups[parameter.name] = group = parameter.annotation
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
            )
            for field in dataclasses.fields(group)
        ]

    def spread(**values: Any) -> T:
        return command(**_gather(groups, values))

    spread.__name__, spread.__doc__ = command.__name__, command.__doc__
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spread


def _gather(groups: Mapping[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    made = {
        name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        for name, group in groups.items()
    }
    return values | made
