"""The import rule: every module has one room, and imports go down, never sideways into another room, never up.

The table is the architecture of docs/design.md. A new module fails here until it has been given a room.
"""

import graphlib
from collections.abc import Callable

import pytest

from tests.structure.source_tree import PACKAGE, Module, package_modules

# Lowest layer first. A module may import its own room and every room of the layers below. Rooms of one layer do not
# know each other. A room lists modules or packages; the longest match wins, so `speculation.tree` is data although the
# rest of `speculation` is not.
LAYERS: tuple[dict[str, tuple[str, ...]], ...] = (
    {"errors": ("errors",)},
    {"config": ("config",), "machine": ("machine",), "profile": ("profile",), "text": ("text",)},
    {"data": ("sequence", "sampling.noise", "speculation.tree", "cache.layout", "models.spec")},
    {"step": ("batch", "cache", "sampling"), "grammar": ("grammar",)},
    {"models": ("backends.base", "models")},
    {"backends": ("backends",), "speculation": ("speculation",), "scheduler": ("scheduler",)},
    {"engine": ("engine",)},
    {"api": ("llm", "generation", "results", "opening", "options", "drafter_check")},
    {"package": ("",)},
    {"bench": ("bench",), "server": ("server",), "analysis": ("analysis",), "training": ("training",)},
    {"cli": ("cli", "__main__")},
)

# Foreign modules that only some of our modules may import.
CONFINED = {
    "torch": ("backends.cuda", "training"),
    "transformers": ("training",),
    "forerun._native": (
        *(f"backends.{name}" for name in ("cpu", "cpu_program", "measure", "packing", "profiled")),
        "speculation.drafters.suffix",
    ),
    "llguidance": ("grammar",),
    **dict.fromkeys(("fastapi", "starlette", "uvicorn", "aiohttp", "flask", "websockets"), ("server",)),
}

MODULES = package_modules()


def is_within(name: str, prefix: str) -> bool:
    """True when `name` is the module `prefix` or lies in that package."""
    return name == prefix or name.startswith(prefix + ".")


def room_of(name: str) -> tuple[int, str] | None:
    """(layer number, room) of a module, None when the table has no place for it."""
    best: tuple[int, int, str] | None = None
    for layer, rooms in enumerate(LAYERS):
        for room, prefixes in rooms.items():
            for prefix in prefixes:
                if is_within(name, prefix) and (best is None or len(prefix) > best[0]):
                    best = (len(prefix), layer, room)
    return None if best is None else best[1:]


def targets(module: Module, known: dict[str, Module]) -> dict[str, int]:
    """Modules of this package that `module` imports, with the line. "from forerun.batch import Batch" gives "batch"."""
    found: dict[str, int] = {}
    for dotted, line in module.imports:
        if not is_within(dotted, PACKAGE):
            continue
        name = dotted.removeprefix(PACKAGE).removeprefix(".")
        if is_within(name, "_native"):
            continue  # not a Python module; CONFINED says who may import it
        while name and name not in known:
            name = name.rpartition(".")[0]
        found.setdefault(name, line)
        # Importing a.b runs a/__init__.py first: what that imports counts too.
        while name := name.rpartition(".")[0]:
            if known[name].imports and not is_within(module.name, name):
                found.setdefault(name, line)
    return found


def upward_imports(module: Module, known: dict[str, Module]) -> list[str]:
    """One line for every import that the table forbids."""
    home = room_of(module.name)
    if home is None:
        return [f"{module.path}: has no room in LAYERS"]
    problems = []
    for target, line in targets(module, known).items():
        place = room_of(target)
        if place is None or (place[0] >= home[0] and place != home):
            problems.append(f"{module.path}:{line}: room '{home[1]}' must not import {PACKAGE}.{target} ({place})")
    return problems


def confined_imports(module: Module) -> list[str]:
    """One line for every import of a foreign module that does not belong here."""
    return [
        f"{module.path}:{line}: '{foreign}' may be imported in {', '.join(homes)} only"
        for dotted, line in module.imports
        for foreign, homes in CONFINED.items()
        if is_within(dotted, foreign) and not any(is_within(module.name, home) for home in homes)
    ]


def hidden_imports(module: Module) -> list[str]:
    """Imports that a reader or this test could miss: relative ones, and those only a type checker sees."""
    problems = [f"{module.path}:{line}: relative import" for dotted, line in module.imports if dotted.startswith(".")]
    if "TYPE_CHECKING" in module.text:
        problems.append(f"{module.path}: TYPE_CHECKING hides a cycle; move the shared type down a layer")
    return problems


def every(check: Callable[[Module], list[str]]) -> list[str]:
    """Everything that `check` finds in the package."""
    return [problem for module in MODULES.values() for problem in check(module)]


def test_every_module_has_a_room() -> None:
    assert [module.path for name, module in MODULES.items() if room_of(name) is None] == []


def test_imports_go_down() -> None:
    assert every(lambda module: upward_imports(module, MODULES)) == []


def test_confined_modules_stay_confined() -> None:
    assert every(confined_imports) == []


def test_no_import_is_hidden() -> None:
    assert every(hidden_imports) == []


def test_no_cycles() -> None:
    # A package that imports its own modules is no cycle: they do not wait for it.
    graph = {
        name: {target for target in targets(module, MODULES) if not is_within(name, target)}
        for name, module in MODULES.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, naming the cycle


class TestTheChecksThemselves:
    """Bad examples, so that no check above can pass by looking at nothing."""

    @pytest.mark.parametrize(
        ("name", "line"),
        [
            ("scheduler.order", "from forerun.speculation.speculator import Speculator"),
            ("speculation.speculator", "import forerun.scheduler"),
            ("batch", "from forerun.backends.base import Backend"),
            ("text.tokenizer", "from forerun.config import EngineConfig"),
            ("models.decoder", "def f():\n    from forerun.engine import Engine"),
        ],
    )
    def test_upward_import_is_found(self, name: str, line: str) -> None:
        known = dict.fromkeys(
            ("", "config", "engine", "scheduler", "speculation", "speculation.speculator", "backends", "backends.base"),
            Module("", ""),
        )
        assert len(upward_imports(Module(name, line), known)) == 1

    def test_module_without_a_room_is_found(self) -> None:
        assert room_of("misc") is None
        assert room_of("speculation.tree") != room_of("speculation.verify")

    def test_import_through_a_package_with_imports_is_found(self) -> None:
        known = {
            "": Module("", ""),
            "cache": Module("cache", "from forerun import engine"),
            "cache.layout": Module("", ""),
        }
        assert targets(Module("models.spec", "from forerun.cache.layout import KvLayout"), known).keys() == {
            "cache",
            "cache.layout",
        }

    @pytest.mark.parametrize(
        ("name", "line", "allowed"),
        [
            ("models.hub", "import torch.nn", False),
            ("backends.cuda.ops", "import torch.nn", True),
            ("backends.reference", "from forerun import _native", False),
            ("backends.cpu", "from forerun._native import Program", True),
            ("cli.serve", "from starlette.applications import Starlette", False),
        ],
    )
    def test_confinement(self, name: str, line: str, allowed: bool) -> None:
        assert (confined_imports(Module(name, line)) == []) == allowed

    def test_hidden_imports_are_found(self) -> None:
        assert hidden_imports(Module("engine", "from .batch import Batch"))
        assert hidden_imports(Module("engine", "from typing import TYPE_" + "CHECKING"))
