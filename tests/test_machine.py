"""Memory is read from /proc and from nested control groups, without counting page cache as used."""

from pathlib import Path

import pytest

from forerun import machine


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 8 GB with 6 GB available, and a process in group /outer/inner of version 2."""
    (tmp_path / "meminfo").write_text("MemTotal: 8000000 kB\nMemAvailable: 6000000 kB\n")
    (tmp_path / "cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "root/outer/inner").mkdir(parents=True)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "_CGROUP_ROOT", tmp_path / "root")
    return tmp_path / "root"


def limit(folder: Path, maximum: str, current: int, inactive_file: int) -> None:
    (folder / "memory.max").write_text(f"{maximum}\n")
    (folder / "memory.current").write_text(f"{current}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {inactive_file}\n")


@pytest.mark.usefixtures("groups")
def test_without_limits_the_machine_counts() -> None:
    assert machine.total_memory() == 8_000_000 * 1024
    assert machine.available_memory() == 6_000_000 * 1024


def test_the_tightest_group_counts_and_page_cache_does_not(groups: Path) -> None:
    limit(groups / "outer", "3000000000", 1_000_000_000, 200_000_000)
    limit(groups / "outer/inner", "max", 900_000_000, 0)
    assert machine.total_memory() == 3_000_000_000
    assert machine.available_memory() == 2_200_000_000


def test_a_group_over_its_limit_leaves_nothing(groups: Path) -> None:
    limit(groups / "outer/inner", "1000", 2000, 0)
    assert machine.available_memory() == 0


def test_a_system_that_says_nothing(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", groups / "missing")
    assert machine.available_memory() is None
    assert machine.total_memory() is None
