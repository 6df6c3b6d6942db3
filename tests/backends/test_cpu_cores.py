"""How many threads: affinity, control group quotas of both versions, and cores instead of hardware threads."""

import pytest

from forerun.backends import cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Four logical CPUs on two cores, and an empty control group tree; returns a function that writes files."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    for cpu in range(4):
        write(f"cpu/cpu{cpu}/topology/physical_package_id", "0\n")
        write(f"cpu/cpu{cpu}/topology/core_id", f"{cpu // 2}\n")
    monkeypatch.setattr(cores, "_CPUS", tmp_path / "cpu")
    monkeypatch.setattr(cores, "_CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(cores, "allowed_cpus", lambda: [0, 1, 2, 3])
    read = cores._read
    group = {"text": "0::/a/b\n"}
    monkeypatch.setattr(cores, "_read", lambda p: group["text"] if str(p) == "/proc/self/cgroup" else read(p))
    write.group = group
    return write


def test_hardware_threads_count_once(machine):
    assert cores.physical_cores() == cores.default_threads() == 2


def test_affinity(machine, monkeypatch):
    monkeypatch.setattr(cores, "allowed_cpus", lambda: [2, 3])
    assert cores.default_threads() == 1


def test_unknown_topology_counts_every_cpu(machine, monkeypatch):
    monkeypatch.setattr(cores, "allowed_cpus", lambda: [7, 8, 9])
    assert cores.physical_cores() == 3


@pytest.mark.parametrize(
    ("limit", "threads"), [("max 100000", 2), ("100000 100000", 1), ("150000 100000", 2), ("20000 100000", 1)]
)
def test_quota_of_an_outer_group(machine, limit, threads):
    machine("cgroup/a/cpu.max", limit)
    machine("cgroup/a/b/cpu.max", "max 100000")
    assert cores.default_threads() == threads


@pytest.mark.parametrize(("quota", "threads"), [("-1", 2), ("90000", 1)])
def test_version_1(machine, quota, threads):
    machine.group["text"] = "5:memory:/x\n4:cpu,cpuacct:/a\n"
    machine("cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", quota)
    machine("cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000")
    assert cores.default_threads() == threads


def test_this_machine():
    assert 1 <= cores.default_threads() <= cores.physical_cores() <= len(cores.allowed_cpus())
    assert cores.model_name()
