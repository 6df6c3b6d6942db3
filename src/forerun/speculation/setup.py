"""From a SpeculationConfig to loaded drafters and a budget."""

import os
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from forerun.cache.layout import KvStack
from forerun.config import SpeculationConfig
from forerun.errors import UsageError
from forerun.machine import processor_name
from forerun.speculation.allocation.allocator import Allocator
from forerun.speculation.allocation.calibration_file import CalibrationFiles
from forerun.speculation.allocation.probe import probe_steps
from forerun.speculation.allocation.step_cost import StepCost
from forerun.speculation.allocation.step_cost_file import StepCostFile
from forerun.speculation.budget import Budget, FixedBudget
from forerun.speculation.drafter import (
    Drafter,
    HiddenStateDrafter,
    HostedDrafter,
    OptionValue,
    known_drafters,
    make_drafter,
)
from forerun.speculation.drafters import AUTO, GUIDES
from forerun.speculation.host import DraftHost

MIN_DEFAULT_DEPTH = 3  # longest draft of a fixed budget where the user names none and every row costs its full price
MEMORY_RATE = 12e9  # bytes of KV that a second of attention reads, until it is measured


def make_drafters(config: SpeculationConfig) -> list[Drafter]:
    """The drafters that a configuration names, not yet loaded. Raises UsageError."""
    names = drafter_names(config.drafter)
    return [make_drafter(name, _options_of(name, names, config)) for name in names]


def make_guides(drafters: Seq[Drafter]) -> list[Drafter]:
    """What drafts beside these for requests with a grammar or a prediction; nothing beside nobody."""
    names = {drafter.name for drafter in drafters}
    return [make_drafter(name, {}) for name in GUIDES if drafters and name not in names]


def drafter_names(speculation: str) -> list[str]:
    """The registered names behind "off", "auto", a name, or several joined by "+". Raises UsageError."""
    if speculation == "off":
        return []
    names: list[str] = []
    for part in speculation.split("+"):
        names += AUTO if part == "auto" else (part,)
    names = list(dict.fromkeys(names))
    unknown = [name for name in names if name not in known_drafters()]
    if unknown:
        raise UsageError(f"unknown drafter {unknown[0]!r}: choose off, auto, {', '.join(known_drafters())}")
    return names


def _options_of(name: str, names: Seq[str], config: SpeculationConfig) -> dict[str, OptionValue]:
    """Options for one drafter: its own, and those without a drafter's name."""
    options: dict[str, OptionValue] = {}
    for key, value in config.options.items():
        owner, dot, option = key.rpartition(".")
        if dot and owner not in names:
            raise UsageError(f"option {key}: the drafter {owner!r} is not used here ({'+'.join(names)})")
        if owner in ("", name):
            options[option] = value
    return options


def plan_stacks(drafters: Seq[Drafter], host: DraftHost) -> list[tuple[KvStack, ...]]:
    """KV layers that each drafter wants for itself; none for those that run no model of their own."""
    return [tuple(drafter.kv_stacks(host)) if isinstance(drafter, HostedDrafter) else () for drafter in drafters]


def plan_captures(drafters: Seq[Drafter], host: DraftHost) -> tuple[int, ...]:
    """Hidden states that the target must leave behind for its drafters, ascending."""
    readers = [drafter for drafter in drafters if isinstance(drafter, HiddenStateDrafter)]
    return tuple(sorted({index for drafter in readers for index in drafter.captures(host)}))


def load_drafters(drafters: Seq[Drafter], host: DraftHost) -> None:
    """Load those that run programs. What plan_stacks gives follows the target's stack in host.layout."""
    first = host.target.model.spec.num_layers
    for drafter, own in zip(drafters, plan_stacks(drafters, host), strict=True):
        if isinstance(drafter, HostedDrafter):
            drafter.load(host, first)
        first += sum(stack.num_layers for stack in own)


@dataclass(frozen=True)
class KnownCost:
    """What steps cost, learned in place, and where it is kept."""

    cost: StepCost
    file: StepCostFile


def open_cost(host: DraftHost, threads: int | None, max_probe_rows: int) -> KnownCost:
    """Step costs of an earlier process, else from probes, else a guess. host.layout must be there.

    threads         compute threads, None for all that there are
    max_probe_rows  most rows of a probe; 0 to do without
    """
    layout, backend = host.layout, host.backend
    if layout is None:
        raise ValueError("step costs need the KV memory")
    identity = (host.target.name, backend.name, backend.numerics_id, processor_name(), str(threads or os.cpu_count()))
    known = StepCostFile(host.cache_folder, identity)
    cost = known.load()
    if cost is None:
        per_key = layout.stacks[0].bytes_per_token / MEMORY_RATE
        points = probe_steps(backend, layout, max_probe_rows)
        if len(points) > 1:
            cost = StepCost.from_points(points, per_key)
            known.keep(cost)
        else:
            cost = StepCost.prior(backend.row_tile, per_key, *points.values())
    return KnownCost(cost, known)


def calibration_files(config: SpeculationConfig, host: DraftHost) -> CalibrationFiles:
    """Where the acceptance of a configuration's drafters is kept."""
    names = drafter_names(config.drafter)
    shared = {"target": host.target.name, "numerics": host.backend.numerics_id, "verification": config.verification}
    return CalibrationFiles(
        host.cache_folder,
        {name: {**shared, "drafter": name, "options": _options_of(name, names, config)} for name in names},
    )


def make_budget(config: SpeculationConfig, host: DraftHost, max_model_len: int, known: KnownCost | None) -> Budget:
    """The budget that a configuration asks for. known: what steps cost; None for a fixed budget"""
    if known is not None:
        files = calibration_files(config, host)
        calibrations = files.load()

        def keep(cost: StepCost) -> None:
            known.file.keep(cost)
            files.keep(calibrations)

        return Allocator(config, max_model_len, known.cost, keep, calibrations)
    if config.max_depth is None:  # rows up to the kernels' tile cost hardly more than one
        config = replace(config, max_depth=max(MIN_DEFAULT_DEPTH, host.backend.row_tile - 1))
    return FixedBudget(config, max_model_len)
