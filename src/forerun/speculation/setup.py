"""From a SpeculationConfig to loaded drafters."""

from collections.abc import Sequence as Seq

from forerun.cache.layout import KvStack
from forerun.config import SpeculationConfig
from forerun.errors import UsageError
from forerun.speculation.drafter import (
    Drafter,
    HiddenStateDrafter,
    HostedDrafter,
    OptionValue,
    known_drafters,
    make_drafter,
)
from forerun.speculation.drafters import AUTO
from forerun.speculation.host import DraftHost


def make_drafters(config: SpeculationConfig) -> list[Drafter]:
    """The drafters that a configuration names, not yet loaded. Raises UsageError."""
    names = drafter_names(config.drafter)
    return [make_drafter(name, _options_of(name, names, config)) for name in names]


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


def load_drafters(drafters: Seq[Drafter], stacks: Seq[tuple[KvStack, ...]], host: DraftHost) -> None:
    """Load those that run programs. stacks  as plan_stacks gave; they follow the target's in host.layout"""
    first = host.target.model.spec.num_layers
    for drafter, own in zip(drafters, stacks, strict=True):
        if isinstance(drafter, HostedDrafter):
            drafter.load(host, first)
        first += sum(stack.num_layers for stack in own)
