"""`forerun serve`: every option has help, and what is wrong is one line and an exit code, before a model is loaded."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from forerun.cli.serve_options import Keys, Load, Reach, Running, server_config
from tests.cli.conftest import Cli
from tests.logging_state import kept_logging

NO_MODEL = ("serve", "--model", "/nowhere/at-all.gguf")


@pytest.fixture(autouse=True)
def _logging() -> Iterator[None]:
    """The command sets the process's logging."""
    with kept_logging():
        yield


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_every_option_has_help(cli: Cli) -> None:
    ran = cli("serve", "--help")
    assert ran.code == 0
    options = [line for line in ran.out.splitlines() if line.lstrip("│ *").startswith("--")]
    assert len(options) > 30
    assert all(len(line.strip("│ ").split("  ")) > 1 for line in options), options


def test_a_port_in_use(cli: Cli, taken: int) -> None:
    ran = cli(*NO_MODEL, "--port", str(taken))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == f"forerun: port {taken} of 127.0.0.1 is in use: choose another with --port\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--port", "70000"], "'--port'"),
        (["--host", "no.such.host.invalid"], "is not known"),
        (["--api-key-file", "/nowhere/keys"], "cannot be read"),
        (["--api-key", "short"], "at least 8"),
        (["--api-key", "a:long-enough", "--api-key", "b:long-enough"], "twice"),
        (["--tls-cert", "/nowhere/cert.pem"], "--tls-key"),
        (["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"], "/nowhere/cert.pem"),
        (["--log-format", "xml"], "text or json"),
        (["--log-level", "loud"], "debug or info"),
        (["--cors-origin", "example.org"], "no origin"),
        (["--max-body", "much"], "no size"),
        (["--requests-per-minute", "0"], "'--requests-per-minute'"),
        (["--max-num-seqs", "0"], "'--max-num-seqs'"),
        (["--prefill-slowdown", "0.5"], "'--prefill-slowdown'"),
        (["--speculation", "nobody"], "unknown drafter"),
    ],
)
def test_wrong_options(cli: Cli, words: list[str], said: str) -> None:
    ran = cli(*NO_MODEL, "--port", "0", *words)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err
    assert ran.err.count("\n") == 1
    assert "long-enough" not in ran.err


def test_a_certificate_that_is_none(cli: Cli, tmp_path: Path) -> None:
    authority = trustme.CA()
    one, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    one.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    other.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "text.pem").write_text("nothing of the kind")
    for cert, key in (("cert.pem", "key.pem"), ("text.pem", "key.pem"), ("cert.pem", "text.pem")):
        ran = cli(*NO_MODEL, "--port", "0", "--tls-cert", str(tmp_path / cert), "--tls-key", str(tmp_path / key))
        assert ran.code == 2
        assert "no certificate with its key" in ran.err
        assert ran.err.count("\n") == 1


def test_a_model_that_is_not_there(cli: Cli) -> None:
    ran = cli(*NO_MODEL, "--port", "0")
    assert ran.code == 2
    assert "/nowhere/at-all.gguf" in ran.err


def test_names_for_clients(tmp_path: Path) -> None:
    """A model named by its path goes by its file's name; names that are given stand alone, the first one first. A path
    may be used and is not told."""
    file = tmp_path / "small.gguf"
    file.touch()

    def names(model: str, given: list[str] | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        config = server_config(Reach(served_model_name=given), Keys(), Load(), Running(), model)
        return (config.served_model, *config.model_aliases), config.untold_names

    assert names(str(file)) == (("small",), (str(file),))
    assert names(str(tmp_path)) == ((tmp_path.name,), (str(tmp_path),))
    assert names("smollm2-135m") == (("smollm2-135m",), ())
    assert names(str(file), ["first", "second"]) == (("first", "second"), ())
