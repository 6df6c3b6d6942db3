"""The `forerun` command: registers the commands and turns every expected failure into one line and an exit code.

Exit codes: 0 done, 1 failure, 2 a usage error, 130 interrupted. Warnings are one line each on stderr; FORERUN_DEBUG=1
shows tracebacks and the whole log. `serve` replaces both by a log of its own.
A command's module imports at its top only what is light; engine, backends and numpy are imported inside the function,
so that `forerun --help` answers at once.
"""

import contextlib
import errno
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated

import typer

from forerun import __version__
from forerun.cli import (
    bench,
    bench_kernels,
    bench_layer_skip,
    bench_serve,
    bench_speculation,
    bench_trace,
    chat,
    demo,
    generate,
    info,
    models,
    serve,
    verify,
)
from forerun.errors import ForerunError, one_line

app = typer.Typer(
    name="forerun",
    help="Run language models on the CPU, faster by lossless speculation.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"forerun {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


# Every command, in the order of the help page.
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("serve")(serve.serve)
app.command("demo")(demo.demo)
app.command("verify")(verify.verify)
app.add_typer(bench.app, name="bench")
bench.app.command("kernels")(bench_kernels.kernels)
bench.app.command("targets")(bench_kernels.targets)
bench.app.command("speculation")(bench_speculation.speculation)
bench.app.command("serve")(bench_serve.serve)
bench.app.command("layer-skip")(bench_layer_skip.layer_skip)
bench.app.command("trace")(bench_trace.trace)
app.add_typer(models.app, name="models")
app.command("info")(info.info)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line (default: the process's own) and return its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write what the terminal's encoding lacks
    if os.environ.get("FORERUN_DEBUG") == "1":
        logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(levelname)s %(message)s")
        return _run(arguments)
    with _warnings_on_stderr():
        return _run(arguments)


@contextlib.contextmanager
def _warnings_on_stderr() -> Iterator[None]:
    """Show what the engine warns about, without tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_OneLine())
    logger = logging.getLogger("forerun")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _OneLine(logging.Formatter):
    """`forerun: warning: what happened`; of an exception, its message alone."""

    def format(self, record: logging.LogRecord) -> str:
        text = " ".join(record.getMessage().split())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and " ".join(str(error).split()) not in text:
            text += f" ({one_line(error)})"
        return f"forerun: {record.levelname.lower()}: {text}"


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = app(args=None if arguments is None else list(arguments), prog_name="forerun", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except Exception as error:
        if os.environ.get("FORERUN_DEBUG") == "1" and not _is_usage_error(error):
            raise
        return _explain(error)
    except KeyboardInterrupt:
        return 130
    except SystemExit as leave:  # typer leaves so when the reader of our output has left
        return leave.code if isinstance(leave.code, int) else 1


def _explain(error: Exception) -> int:
    """Print what went wrong and return the exit code; an unexpected error keeps its traceback."""
    if isinstance(error, typer.Abort):
        return 130
    if isinstance(error, BrokenPipeError) or (isinstance(error, OSError) and error.errno == errno.EPIPE):
        _silence_stdout()
        return 1
    if _is_usage_error(error):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "forerun"
        message = str(error.format_message()).rstrip(".")  # type: ignore[attr-defined]
        print(f"forerun: {message}. Try '{command} --help'.", file=sys.stderr)
        return 2
    if isinstance(error, ForerunError):
        print(f"forerun: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, MemoryError):
        print("forerun: out of memory: choose a smaller model or a shorter context", file=sys.stderr)
        return 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        print(f"forerun: {where}{error.strerror or error}", file=sys.stderr)
        if error.errno == errno.ENOSPC:
            _silence_stdout()  # the interpreter's last flush would fail again, with a message of its own
        return 1
    raise error


def _is_usage_error(error: Exception) -> bool:
    # typer's usage errors derive from a class that moved between its versions; the method did not.
    return hasattr(error, "format_message")


def _silence_stdout() -> None:
    """Our output has nowhere to go any more: let the interpreter's last flush go nowhere too."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
