"""Facts about this machine that decide sizes: how much memory this process may still take, and what it takes."""

import platform
import resource
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CPUINFO = Path("/proc/cpuinfo")
_OWN_MEMORY = Path("/proc/self/statm")
_OWN_GROUPS = Path("/proc/self/cgroup")
_CGROUP_ROOT = Path("/sys/fs/cgroup")


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, within the limits of all control groups; None where unknown."""
    available = _meminfo("MemAvailable")
    for limit, used in _limits():
        left = max(0, limit - used)
        available = left if available is None else min(available, left)
    return available


def total_memory() -> int | None:
    """Bytes of memory of this machine or of the control group that limits this process; None where unknown."""
    sizes = [size for size in (_meminfo("MemTotal"), *(limit for limit, _ in _limits())) if size is not None]
    return min(sizes, default=None)


def resident_memory() -> int | None:
    """Bytes of this process that are in memory now; None where unknown."""
    lines = _lines(_OWN_MEMORY)
    return int(lines[0].split()[1]) * resource.getpagesize() if lines else None


def processor_name() -> str:
    """Model of the processor, as the system calls it; its architecture where it does not say."""
    names = (line.partition(":")[2].strip() for line in _lines(_CPUINFO) if line.startswith("model name"))
    return next(names, platform.machine())


def _meminfo(field: str) -> int | None:
    return next((int(line.split()[1]) * 1024 for line in _lines(_MEMINFO) if line.startswith(f"{field}:")), None)


def _limits() -> list[tuple[int, int]]:
    """(limit, use) in bytes of every control group that limits this process; page cache that can be given back is no
    use."""
    found = []
    for folder in _groups():
        limit = _number(folder, "memory.max", "memory.limit_in_bytes")
        if limit is not None and limit < 1 << 60:  # version 1 writes a huge number for "no limit"
            used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
            stats = dict(line.split()[:2] for line in _lines(folder / "memory.stat"))
            found.append((limit, used - int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))))
    return found


def _groups() -> list[Path]:
    """Folders of the control groups of this process's memory, from its own to the outermost."""
    for line in _lines(_OWN_GROUPS):
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):  # version 2, or version 1's memory hierarchy
            root = _CGROUP_ROOT / controllers
            own = root / group.lstrip("/")
            # Inside a container the path may be the host's: the root is then the container's own group.
            return [folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder.is_dir()]
    return []


def _number(folder: Path, *names: str) -> int | None:
    """First whole number among the named files; "max" is none."""
    for name in names:
        lines = _lines(folder / name)
        if lines and lines[0].isdigit():
            return int(lines[0])
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
