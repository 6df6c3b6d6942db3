"""The entry point: exit codes, one-line errors, no traceback, a quick start."""

import io
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from forerun import __version__
from forerun.cli import console, info
from forerun.cli.main import main
from forerun.errors import CapacityError, ForerunError, RequestError
from tests.cli.conftest import Cli


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "forerun", *words]


def fail_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """Let `forerun info` raise `error`."""

    def raise_it() -> NoReturn:
        raise error

    monkeypatch.setattr(info, "gather", raise_it)


def test_help_and_version(cli: Cli) -> None:
    assert "models" in cli("--help").out
    assert cli().out == cli("--help").out
    ran = cli("--version")
    assert (ran.code, ran.out) == (0, f"forerun {__version__}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-command"], "No such command 'no-such-command'. Try 'forerun --help'."),
        (["info", "--what"], "No such option: --what"),
        (["models", "pull"], "Missing argument 'MODEL'. Try 'forerun models pull --help'."),
        (["models", "show", "a", "b"], "unexpected extra argument"),
    ],
)
def test_a_usage_error_is_one_line_and_2(cli: Cli, words: list[str], message: str) -> None:
    ran = cli(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith("forerun: ")
    assert message in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ForerunError("the fact: the remedy"), 1, "forerun: the fact: the remedy\n"),
        (CapacityError("too small"), 1, "forerun: too small\n"),
        (RequestError("top_p must be", param="top_p"), 2, "forerun: top_p must be\n"),
        (MemoryError(), 1, "forerun: out of memory: choose a smaller model or a shorter context\n"),
        (PermissionError(13, "Permission denied", "/x"), 1, "forerun: /x: Permission denied\n"),
        (OSError(28, "No space left on device"), 1, "forerun: No space left on device\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 1, ""),
    ],
)
def test_a_failure_is_one_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, line: str
) -> None:
    fail_with(monkeypatch, error)
    monkeypatch.setattr("forerun.cli.main._silence_stdout", lambda: None)  # it would redirect this process's stdout
    ran = cli("info")
    assert (ran.code, ran.out, ran.err.strip("\n")) == (code, "", line.strip("\n"))


def test_a_programming_error_is_not_hidden(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli("info")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (None, "forerun: warning: the table is ignored: too old\n"),
        (ValueError("no\nroom"), "forerun: warning: the table is ignored: too old (ValueError: no room)\n"),
        (ValueError("too old"), "forerun: warning: the table is ignored: too old\n"),
    ],
)
def test_a_warning_is_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: Exception | None, line: str) -> None:
    def warn() -> NoReturn:
        logging.getLogger("forerun.somewhere").info("unimportant")
        logging.getLogger("forerun.somewhere").warning("the table is ignored: %s", "too\nold", exc_info=error)
        raise ForerunError("over")

    monkeypatch.setattr(info, "gather", warn)
    assert cli("info").err == f"{line}forerun: over\n"
    assert cli("info").err == f"{line}forerun: over\n"  # once, however often a process runs a command


def test_debug_shows_where_an_expected_error_comes_from(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_with(monkeypatch, ForerunError("expected"))
    monkeypatch.setenv("FORERUN_DEBUG", "1")
    with pytest.raises(ForerunError):
        cli("info")
    assert cli("models", "pull").code == 2  # a typing error needs no traceback


def test_the_process_returns_the_code_and_no_traceback() -> None:
    ran = subprocess.run(command("models", "show", "./absent.gguf"), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "forerun: there is no file or folder './absent.gguf': check the path\n"


def test_a_reader_that_leaves_causes_no_noise() -> None:
    process = subprocess.Popen(command("models", "list"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait() == 1


def test_a_full_disk_under_stdout_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command("models", "list"), stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (1, "forerun: No space left on device\n")


def test_ctrl_c_ends_with_130(tmp_path: Path) -> None:
    """The model's file is a named pipe without a writer, so that the command waits until it is interrupted."""
    pipe = tmp_path / "models.toml"
    os.mkfifo(pipe)
    environment = {**os.environ, "FORERUN_HOME": str(tmp_path)}
    process = subprocess.Popen(command("models", "list"), stderr=subprocess.PIPE, env=environment)
    with pipe.open("wb"):  # returns once the command has opened its end
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from forerun.cli.main import main; main(['--help'])\n"
        "names = 'numpy huggingface_hub gguf tokenizers safetensors jinja2 urllib.request'\n"
        "heavy = set(names.split()) & sys.modules.keys()\n"
        "sys.exit(f'loaded: {heavy}' if heavy else 0)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")


def test_output_that_the_terminal_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(info, "gather", lambda: {"models": {"default": "größe"}})
    assert main(["info"]) == 0
    stream.seek(0)
    assert "gr??e" in stream.read()


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_shows_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with console.progress("Fetching it") as report:
            report(1, 0)
            report(5, 10)
        assert ("Fetching it" in stream.getvalue()) is shown
    monkeypatch.setattr(sys, "stderr", idle := Terminal())
    with console.progress("Fetching it"):
        pass
    assert idle.getvalue() == ""
