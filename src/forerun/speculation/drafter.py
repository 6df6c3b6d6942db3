"""Drafter: the protocol of everything that proposes tokens, and the registry of their names.

A drafter catches up: before it proposes it reads the tokens of `ask.sequence` that it has not seen. That one rule
covers prompt, accepted tokens, pauses and preemption; a rejected draft needs no call at all.

Nothing a drafter does can change what is said, only how fast, so the speculator checks its trees and drops bad nodes.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from forerun.batch import Outcome
from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.tree import DraftTree


@dataclass(frozen=True)
class Ask:
    """Propose at most `max_nodes` nodes, none deeper than `max_depth`, below the last token of `sequence`."""

    sequence: Sequence
    max_nodes: int
    max_depth: int


@dataclass(frozen=True)
class Seen:
    """What became of a draft: the tree that was verified and its outcome."""

    sequence: Sequence
    outcome: Outcome


class Drafter(Protocol):
    """Proposes draft trees. Calls come from the engine's thread."""

    name: str

    def begin(self, sequence: Sequence) -> None:
        """A sequence has joined."""
        ...

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        """One tree per ask, rooted at the sequence's last token; None when there is nothing to propose."""
        ...

    def observe(self, seen: Seq[Seen]) -> None:
        """Learn from verified drafts."""
        ...

    def end(self, sequence_id: int) -> None:
        """The sequence is gone: drop its state."""
        ...


_FACTORIES: dict[str, Callable[..., Drafter]] = {}


def register(name: str, factory: Callable[..., Drafter]) -> None:
    """Make a drafter known by name; options of a configuration become keyword arguments of `factory`."""
    _FACTORIES[name] = factory


def known_drafters() -> list[str]:
    """Registered names, sorted."""
    return sorted(_FACTORIES)


def make_drafter(name: str, options: Mapping[str, int]) -> Drafter:
    """Build a registered drafter. Raises UsageError on an unknown name or option."""
    factory = _FACTORIES.get(name)
    if factory is None:
        raise UsageError(f"unknown drafter {name!r}: choose off, {', '.join(known_drafters())}")
    try:
        return factory(**options)
    except TypeError as error:
        raise UsageError(f"drafter {name!r} does not take these options: {error}") from error
