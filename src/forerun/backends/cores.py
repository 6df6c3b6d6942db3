"""Which cores this process may compute on: affinity, control group quota, and cores instead of hardware threads."""

import math
import os
import platform
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")


def allowed_cpus() -> list[int]:
    """Logical CPUs that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def physical_cores() -> int:
    """Cores behind the allowed logical CPUs: two hardware threads of one core count once."""
    cores = {
        (_topology(cpu, "physical_package_id"), _topology(cpu, "core_id") or f"cpu{cpu}") for cpu in allowed_cpus()
    }
    return max(1, len(cores))


def allowed_cores() -> int:
    """Cores that this process can keep busy: physical ones, at most the control group's quota."""
    quota = _quota(_CGROUP)
    return physical_cores() if quota is None else max(1, min(physical_cores(), math.ceil(quota)))


def default_threads() -> int:
    """Compute threads when the user names none: one a core. A second hardware thread only disturbs streaming."""
    return min(allowed_cores(), 1024)


def model_name() -> str:
    """The processor's name, as the system gives it."""
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _quota(root: Path) -> float | None:
    """CPUs' worth of time that the tightest control group of this process grants; None without a limit."""
    quotas = []
    for line in _read(Path("/proc/self/cgroup")).splitlines() or ["0::/"]:
        _, controllers, group = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        own = base / group.lstrip("/")
        quotas += [_folder_quota(folder) for folder in (own, *own.parents) if folder.is_relative_to(base)]
    limits = [quota for quota in quotas if quota is not None]
    return min(limits) if limits else None


def _folder_quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()  # version 2: "max 100000" or "150000 100000"
    if not words:
        words = [_read(folder / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None  # no limit is "max", or -1 in version 1
    return int(words[0]) / int(words[1])


def _topology(cpu: int, name: str) -> str:
    return _read(_CPUS / f"cpu{cpu}" / "topology" / name).strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
