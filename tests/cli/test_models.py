"""`forerun models`: the list, pull and show, for people and as JSON."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forerun.models.aliases import DEFAULT_MODEL, config_folder
from tests.cli.conftest import Cli
from tests.models.hub_server import WEIGHTS, FakeHub, running


@pytest.fixture
def hub(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub with one GGUF of no use; asks for `cli` first, whose endpoint it replaces."""
    with running(
        FakeHub({"org/one": {"m.gguf": WEIGHTS}, "org/x": {"a-Q4_0.gguf": b"a", "a-Q8_0.gguf": b"b"}})
    ) as fake:
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield fake


def listed(cli: Cli) -> dict[str, Any]:
    return {entry["name"]: entry for entry in json.loads(cli("models", "list", "--json").out)["models"]}


def test_the_list_names_the_default_and_what_is_here(cli: Cli, hub: FakeHub) -> None:
    before = listed(cli)
    assert [name for name, entry in before.items() if entry["default"]] == [DEFAULT_MODEL]
    assert all(entry["path"] is None for entry in before.values())
    assert cli("models", "pull", "org/x:Q4_0").code == 0
    after = listed(cli)
    assert after.keys() - before.keys() == {"org/x:a-Q4_0.gguf"}
    assert after["org/x:a-Q4_0.gguf"]["size_bytes"] == 1
    assert Path(after["org/x:a-Q4_0.gguf"]["path"]).read_bytes() == b"a"


def test_models_alone_lists(cli: Cli) -> None:
    ran = cli("models")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == cli("models", "list").out
    assert f"{DEFAULT_MODEL} (default)" in ran.out
    assert cli("models", "--json").out == cli("models", "list", "--json").out


def test_an_alias_is_listed_with_its_path_once_it_is_here(cli: Cli, hub: FakeHub) -> None:
    config_folder().mkdir()
    (config_folder() / "models.toml").write_text('[mine]\nhub = "org/one"\nfile = "m.gguf"\nlicence = "MIT"\n')
    assert listed(cli)["mine"]["path"] is None
    cli("models", "pull", "mine")
    entries = listed(cli)
    assert entries["mine"]["size_bytes"] == len(WEIGHTS)
    assert entries["mine"]["licence"] == "MIT"
    assert "org/one:m.gguf" not in entries  # the same file is not listed twice


def test_pull_prints_one_document_and_no_progress_in_a_pipe(cli: Cli, hub: FakeHub) -> None:
    ran = cli("models", "pull", "org/one", "--json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["name"] == "org/one"
    assert document["size_bytes"] == len(WEIGHTS)
    assert Path(document["path"]).read_bytes() == WEIGHTS
    assert document["path"] in cli("models", "pull", "org/one").out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["pull", "org/absent"], 2, "the hub has no org/absent"),
        (["pull", "org/x"], 2, "write org/x:NAME with one of a-Q4_0.gguf, a-Q8_0.gguf"),
        (["pull", "smollm2-135"], 2, "did you mean smollm2-135m"),
        (["show", "org/one"], 2, "forerun models pull org/one"),
        (["show", "./nowhere.gguf"], 2, "there is no file or folder"),
    ],
)
def test_failures_are_one_line(cli: Cli, hub: FakeHub, words: list[str], code: int, message: str) -> None:
    ran = cli("models", *words)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_a_network_failure_is_1(cli: Cli) -> None:
    ran = cli("models", "pull", "org/one")
    assert ran.code == 1
    assert "cannot ask the hub" in ran.err


def test_show_refuses_a_file_that_is_no_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    ran = cli("models", "show", str(tmp_path / "x.gguf"))
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
