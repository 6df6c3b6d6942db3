"""`forerun info`: the machine and the software as forerun sees them; what a bug report should carry."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.cli.console import print_json, stdout

_CGROUP = Path("/sys/fs/cgroup")
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_MEMINFO = Path("/proc/meminfo")
_LIBRARIES = ("numpy", "tokenizers", "gguf", "safetensors", "huggingface_hub", "jinja2")


def info(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Show the CPU, the kernels chosen for it, threads, memory, versions and folders."""
    facts = gather()
    if json:
        print_json(facts)
        return
    from rich.table import Table

    from forerun.models.download import megabytes

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for group, values in facts.items():
        for key, value in values.items():
            if key.endswith("_bytes") and value is not None:
                value = megabytes(value)
            elif isinstance(value, (list, tuple)):
                value = " ".join(map(str, value))
            label = f"{group} {key.removesuffix('_bytes').replace('_', ' ')}"
            table.add_row(label, "-" if value is None else str(value))
    stdout().print(table, markup=False)


def gather() -> dict[str, dict[str, Any]]:
    """All facts, as groups of JSON values. Unknown ones are None; sizes are bytes."""
    from forerun import __version__
    from forerun.models.aliases import DEFAULT_MODEL, cache_folder, config_folder

    try:
        from forerun.backends.cpu import cpu_info
    except ImportError as error:  # a source tree that was not built
        cpu: dict[str, Any] = {"native_module": f"missing ({error}): install the package to build it"}
    else:
        cpu = dict(cpu_info())
    versions: dict[str, str | None] = {"forerun": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in _LIBRARIES}
    return {
        "versions": versions | {"system": f"{platform.system()} {platform.release()} {platform.machine()}"},
        "cpu": cpu | {"forced_isa": os.environ.get("FORERUN_ISA") or None},
        "memory": memory() | {"huge_pages": _chosen(_HUGE_PAGES)},
        "folders": {"cache": str(cache_folder()), "config": str(config_folder()), "python": sys.executable},
        "models": {"default": DEFAULT_MODEL},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def memory() -> dict[str, int | None]:
    """Bytes of memory of the machine, of the control group that limits this process, and available now."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    available = next(
        (int(line.split()[1]) * 1024 for line in _lines(_MEMINFO) if line.startswith("MemAvailable:")), None
    )
    limit = None
    for folder in _cgroups():
        bound = _number(folder, "memory.max", "memory.limit_in_bytes")
        if bound is None or bound >= total:
            continue
        limit = min(bound, limit or bound)
        if available is not None:
            available = min(available, max(0, bound - _unreclaimable(folder)))
    return {"total_bytes": total, "limit_bytes": limit, "available_bytes": available}


def _cgroups() -> list[Path]:
    """Folders of the control groups whose memory limits hold for this process, from its own to the outermost."""
    for line in _lines(Path("/proc/self/cgroup")):
        _, controllers, group = line.split(":", 2)
        if controllers in ("", "memory"):  # version 2, or version 1's memory hierarchy
            root = _CGROUP / controllers
            own = root / group.lstrip("/")
            # Inside a container the path may be the host's: the root is then the container's own group.
            return [folder for folder in (own, *own.parents) if folder.is_relative_to(root) and folder.is_dir()]
    return []


def _unreclaimable(folder: Path) -> int:
    """Bytes that a control group uses and cannot give back: all but inactive file pages."""
    used = _number(folder, "memory.current", "memory.usage_in_bytes") or 0
    stats = dict(line.split()[:2] for line in _lines(folder / "memory.stat"))
    return used - int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))


def _number(folder: Path, *names: str) -> int | None:
    for name in names:
        lines = _lines(folder / name)
        if lines and lines[0].isdigit():
            return int(lines[0])
    return None


def _chosen(path: Path) -> str | None:
    """The word in brackets of a kernel setting such as "always [madvise] never"."""
    words = " ".join(_lines(path)).split()
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
