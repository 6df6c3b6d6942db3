"""`forerun info`: facts of the machine, also inside a control group and without a built native module."""

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
    monkeypatch.setitem(sys.modules, "forerun.backends.cpu", module)


def test_json_is_one_document(cli: Cli, native: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORERUN_ISA", "portable")
    ran = cli("info", "--json")
    assert (ran.code, ran.err) == (0, "")
    document = json.loads(ran.out)
    assert document["versions"]["forerun"] == __version__
    assert document["versions"]["numpy"]
    assert document["cpu"]["table"] == "amx"
    assert document["cpu"]["forced_isa"] == "portable"
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


def test_the_tightest_control_group_limits_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outer group 8 GiB, own group 1 GiB of which 300 MiB are in use, 100 MiB of them reclaimable."""
    mebibyte = 1 << 20
    own = tmp_path / "outer" / "own"
    own.mkdir(parents=True)
    (tmp_path / "outer" / "memory.max").write_text(f"{8192 * mebibyte}\n")
    (tmp_path / "outer" / "memory.current").write_text("0\n")
    (own / "memory.max").write_text(f"{1024 * mebibyte}\n")
    (own / "memory.current").write_text(f"{300 * mebibyte}\n")
    (own / "memory.stat").write_text(f"anon 5\ninactive_file {100 * mebibyte}\n")
    (tmp_path / "meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable: {4096 * 1024} kB\n")
    monkeypatch.setattr(info, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(info, "_cgroups", lambda: [own, tmp_path / "outer"])
    found = info.memory()
    assert found["limit_bytes"] == 1024 * mebibyte
    assert found["available_bytes"] == 824 * mebibyte
    (own / "memory.max").write_text("max\n")
    (tmp_path / "outer" / "memory.max").write_text("max\n")
    assert info.memory()["limit_bytes"] is None
    assert info.memory()["available_bytes"] == 4096 * mebibyte


def test_the_chosen_huge_page_setting(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    setting.write_text("always [madvise] never\n")
    assert info._chosen(setting) == "madvise"
    assert info._chosen(tmp_path / "absent") is None
