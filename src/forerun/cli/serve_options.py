"""The options of `forerun serve` beside those of every command that loads a model, in groups."""

import dataclasses
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from forerun.cli.options import parse_size
from forerun.errors import UsageError
from forerun.server.config import ServerConfig
from forerun.server.keys import KeyLimits, KeySources

KEYS_VARIABLE = "FORERUN_API_KEYS"
_ADDRESS, _WHO, _LOAD, _RUN = "Address", "Access", "Load", "Operation"

Limit = int | None


def parse_origin(text: str) -> str:
    """An origin of CORS. Raises typer.BadParameter."""
    if text != "*" and not re.fullmatch(r"https?://[^/\s]+", text):
        raise typer.BadParameter(f"{text!r} is no origin: write * or one such as https://example.org")
    return text


def parse_host(text: str) -> str:
    """A name in a Host header, without a port. Raises typer.BadParameter."""
    name = text.removeprefix("[").removesuffix("]")
    if name != "*" and not re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:]+", name):
        raise typer.BadParameter(f"{text!r} is no host: write * or a name without a port such as box.example.org")
    return name


def _one_of(*names: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"choose {' or '.join(names)}")
        return text

    return parse


@dataclasses.dataclass(frozen=True)
class Reach:
    """Where the server is reached and under which name."""

    host: Annotated[str, typer.Option(rich_help_panel=_ADDRESS, help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, rich_help_panel=_ADDRESS, help="Port to listen on; 0 takes a free one.")
    ] = 8000
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_ADDRESS,
            help="A name of the model for clients; may be repeated, the first one stands in answers.",
        ),
    ] = None
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=_ADDRESS, help="Certificate chain as PEM; with it, HTTPS."),
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", rich_help_panel=_ADDRESS, help="The certificate's key as PEM.")
    ] = None
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            parser=parse_host,
            metavar="NAME",
            rich_help_panel=_ADDRESS,
            help="Clients may call the server by this name beside its address; * is any. May be repeated.",
        ),
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            parser=parse_origin,
            metavar="ORIGIN",
            rich_help_panel=_ADDRESS,
            help="Web pages of this origin may use the server; * is all. May be repeated.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class Keys:
    """Who may ask, and how much."""

    api_key: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[TENANT:]KEY",
            rich_help_panel=_WHO,
            help=f"Clients need this key; may be repeated. Others see it in the list of processes: better use "
            f"--api-key-file or {KEYS_VARIABLE} (separated by commas).",
        ),
    ] = None
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_WHO,
            help="One TENANT:KEY a line, limits of its own behind it; read again on SIGHUP.",
        ),
    ] = None
    requests_per_minute: Annotated[
        Limit, typer.Option(min=1, rich_help_panel=_WHO, help="Requests of each key; without it, any number.")
    ] = None
    tokens_per_minute: Annotated[
        Limit, typer.Option(min=1, rich_help_panel=_WHO, help="Tokens of each key's prompts and answers.")
    ] = None
    max_concurrent: Annotated[
        Limit, typer.Option(min=1, rich_help_panel=_WHO, help="Requests of each key at the same time.")
    ] = None
    max_prompt_tokens: Annotated[
        Limit, typer.Option(min=1, rich_help_panel=_WHO, help="Longest prompt of a request.")
    ] = None
    max_output_tokens: Annotated[
        Limit, typer.Option(min=1, rich_help_panel=_WHO, help="Longest answer of a request.")
    ] = None
    public_metrics: Annotated[
        bool, typer.Option("--public-metrics", rich_help_panel=_WHO, help="/metrics needs no key.")
    ] = False

    @property
    def sources(self) -> KeySources:
        """Keys of the command line, of the environment and of the file."""
        entries = list(self.api_key or ())
        entries += [entry for entry in re.split(r"[,\n]", os.environ.get(KEYS_VARIABLE, "")) if entry.strip()]
        limits = KeyLimits(
            self.requests_per_minute,
            self.tokens_per_minute,
            self.max_concurrent,
            self.max_prompt_tokens,
            self.max_output_tokens,
        )
        return KeySources(tuple(entries), self.api_key_file, limits)


@dataclasses.dataclass(frozen=True)
class Load:
    """How much the server takes at a time."""

    max_num_seqs: Annotated[
        int, typer.Option(min=1, max=1024, rich_help_panel=_LOAD, help="Generations that run together.")
    ] = 32
    max_waiting: Annotated[
        int, typer.Option(min=0, rich_help_panel=_LOAD, help="Generations that may wait beyond those; more get 503.")
    ] = 1024
    prefill_slowdown: Annotated[
        float,
        typer.Option(
            min=1.0,
            max=1000.0,
            metavar="FACTOR",
            rich_help_panel=_LOAD,
            help="A prompt that is read beside running answers may slow their tokens by this factor; more reads it "
            "sooner.",
        ),
    ] = 1.5
    max_body: Annotated[
        int, typer.Option(parser=parse_size, metavar="SIZE", rich_help_panel=_LOAD, help="Longest request body.")
    ] = "8M"  # type: ignore[assignment]  # parsed like what a user writes
    receive_timeout: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", rich_help_panel=_LOAD, help="Time for a request's headers, and for its body."
        ),
    ] = 30.0


@dataclasses.dataclass(frozen=True)
class Running:
    """What the server tells, and how it ends."""

    grace: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", rich_help_panel=_RUN, help="After SIGTERM, running requests may go on so long."
        ),
    ] = 30.0
    log_format: Annotated[
        str,
        typer.Option(
            parser=_one_of("text", "json"), metavar="text|json", rich_help_panel=_RUN, help="Form of the log."
        ),
    ] = "text"
    log_level: Annotated[
        str,
        typer.Option(
            parser=_one_of("debug", "info", "warning", "error"),
            metavar="debug|info|warning|error",
            rich_help_panel=_RUN,
            help="Least level of what is logged; every request is a line of info.",
        ),
    ] = "info"
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", rich_help_panel=_RUN, help="Log what is asked and answered, too.")
    ] = False


def server_config(reach: Reach, keys: Keys, load: Load, running: Running, model_name: str) -> ServerConfig:
    """The server's settings. Raises UsageError for a combination that cannot be."""
    if (reach.tls_cert is None) != (reach.tls_key is None):
        raise UsageError("TLS needs a certificate and its key: give both --tls-cert and --tls-key")
    names, untold = (reach.served_model_name, []) if reach.served_model_name else _names_of(model_name)
    return ServerConfig(
        host=reach.host,
        port=reach.port,
        allowed_hosts=tuple(reach.allowed_host or ()),
        served_model=names[0],
        model_aliases=tuple(names[1:]),
        untold_names=tuple(untold),
        max_body_bytes=load.max_body,
        max_waiting=load.max_waiting,
        shutdown_grace_s=running.grace,
        receive_timeout_s=load.receive_timeout,
        keys=keys.sources,
        public_metrics=keys.public_metrics,
        cors_origins=tuple(reach.cors_origin or ()),
        tls_cert=reach.tls_cert,
        tls_key=reach.tls_key,
        log_prompts=running.log_prompts,
    )


def _names_of(model: str) -> tuple[list[str], list[str]]:
    """What clients may call a model, and what they also may but are not told.

    One that was named by its path goes by its file's name. Who knows the path may use it; nobody learns of it here.
    """
    path = Path(model)
    if not path.exists():
        return [model], []
    return [path.resolve().name.removesuffix(".gguf")], [model]
