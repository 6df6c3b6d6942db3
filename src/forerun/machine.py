"""Facts about this machine that decide sizes: how much memory a process may still take."""

from pathlib import Path

_CGROUPS = (  # (limit, usage) of cgroup v2 and v1
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def available_memory() -> int | None:
    """Bytes that can be taken without swapping, within the cgroup's limit; None where the system does not say."""
    candidates = [left for left in (_meminfo("MemAvailable"), _cgroup_left()) if left is not None]
    return min(candidates) if candidates else None


def total_memory() -> int | None:
    """Bytes of memory that this process can see; None where the system does not say."""
    total, limit = _meminfo("MemTotal"), _cgroup_limit()
    candidates = [size for size in (total, limit) if size is not None]
    return min(candidates) if candidates else None


def _meminfo(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), None)


def _read_number(path: str) -> int | None:
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < 1 << 60 else None  # "max" and v1's huge number: no limit


def _cgroup_limit() -> int | None:
    return next((limit for path, _ in _CGROUPS if (limit := _read_number(path)) is not None), None)


def _cgroup_left() -> int | None:
    for limit_path, usage_path in _CGROUPS:
        limit, usage = _read_number(limit_path), _read_number(usage_path)
        if limit is not None and usage is not None:
            return max(0, limit - usage)
    return None
