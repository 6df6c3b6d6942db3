"""`forerun info`: the machine and the software as forerun sees them; what a bug report should carry."""

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from forerun.cli.console import print_json, stdout

_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_LIBRARIES = ("numpy", "tokenizers", "gguf", "safetensors", "huggingface_hub", "jinja2")


def info(json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False) -> None:
    """Show the CPU, the kernels chosen for it, threads, memory, versions, folders and drafters."""
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
    from forerun.cache.layout import KvLayout, KvStack
    from forerun.config import CacheConfig
    from forerun.machine import available_memory, total_memory
    from forerun.models.aliases import DEFAULT_MODEL, cache_folder, config_folder

    try:
        from forerun.backends.cpu import CpuBackend, cpu_info
    except ImportError as error:  # a source tree that was not built
        cpu: dict[str, Any] = {"native_module": f"missing ({error}): install the package to build it"}
    else:
        # Also the check that FORERUN_ISA names a table of this machine: an error here as everywhere.
        backend = CpuBackend(threads=1)
        # The id names the KV codec too: allocate the smallest store with the default one.
        backend.allocate_kv(KvLayout(1, 16, (KvStack("target", 1, 1, 64, *CacheConfig(1).codecs),)))
        cpu = {"numerics_id": backend.numerics_id, **cpu_info()}
    versions: dict[str, str | None] = {"forerun": __version__, "python": platform.python_version()}
    versions |= {name: _version(name) for name in _LIBRARIES}
    return {
        "versions": versions | {"system": f"{platform.system()} {platform.release()} {platform.machine()}"},
        "cpu": cpu | {"forced_isa": os.environ.get("FORERUN_ISA") or None},
        "memory": {
            "total_bytes": total_memory(),  # within the control group's limit
            "available_bytes": available_memory(),
            "huge_pages": _chosen(_HUGE_PAGES),
        },
        "folders": {"cache": str(cache_folder()), "config": str(config_folder()), "python": sys.executable},
        "models": {"default": DEFAULT_MODEL},
        "drafter": _drafters(),
    }


def _drafters() -> dict[str, str]:
    """What registered drafters do, by name; none in a source tree that was not built, which some of them need."""
    try:
        from forerun.speculation import drafters  # noqa: F401  # registers the built-in ones
        from forerun.speculation.drafter import about_drafter, known_drafters
    except ImportError:
        return {}
    return {name: about_drafter(name) for name in known_drafters()}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _chosen(path: Path) -> str | None:
    """The word in brackets of a kernel setting such as "always [madvise] never"."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)
