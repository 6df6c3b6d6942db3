"""`forerun info`: facts of the machine, also without a built native module."""

import json
import sys
import types
from pathlib import Path

import pytest

from forerun import __version__
from forerun.cli import info
from tests.cli.conftest import Cli


@pytest.fixture
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the CPU backend, so that the test needs no build."""
    module = types.ModuleType("forerun.backends.cpu")
    module.cpu_info = lambda: {"model": "Test CPU", "tables": ["portable", "amx"], "table": "amx"}  # type: ignore[attr-defined]
    backend = types.SimpleNamespace(numerics_id="amx/k1", allocate_kv=lambda layout: None)
    module.CpuBackend = lambda threads: backend  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "forerun.backends.cpu", module)


def test_json_is_one_document(cli: Cli, native: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_ISA", "portable")
    ran = cli("info", "--json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["versions"]["forerun"] == __version__
    assert document["versions"]["numpy"]
    assert document["cpu"]["table"] == "amx"
    assert document["cpu"]["numerics_id"] == "amx/k1"
    assert document["cpu"]["forced_isa"] == "portable"
    assert document["drafter"]["ngram"].startswith("Draws drafts out of each sequence's own tokens")
    assert document["folders"]["cache"] == str(tmp_path / "cache")
    assert 0 < document["memory"]["available_bytes"] <= document["memory"]["total_bytes"]


def test_the_table_shows_the_same(cli: Cli, native: None) -> None:
    out = cli("info").out
    assert "Test CPU" in out
    assert "portable amx" in out
    assert "GB" in out


def test_a_source_tree_without_a_build_says_so(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "forerun.backends.cpu", None)
    ran = cli("info")
    assert ran.code == 0
    assert "install the package to build it" in ran.out


def test_the_chosen_huge_page_setting(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    assert info._chosen(setting) == "madvise"
    assert info._chosen(tmp_path / "absent") is None


def test_the_real_backend_answers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = pytest.importorskip("forerun.backends.cpu")
    monkeypatch.delenv("FORERUN_ISA", raising=False)
    found = json.loads(cli("info", "--json").out)["cpu"]
    assert found["table"] == cpu.choose_table()
    assert found["table"] in found["tables"]
    assert found["numerics_id"].startswith(found["table"])
    assert found["numerics_id"].endswith("kv-bf16")
    monkeypatch.setenv("FORERUN_ISA", "abacus")
    ran = cli("info", "--json")
    assert (ran.code, ran.out) == (2, "")
    assert "FORERUN_ISA=abacus" in ran.err
