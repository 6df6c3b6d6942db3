"""Drafter: the protocol of everything that proposes tokens, and the registry of their names.

A drafter catches up: before it proposes it reads the tokens of `ask.sequence` that it has not seen. That one rule
covers prompt, accepted tokens, pauses and preemption; a rejected draft needs no call at all.

Nothing a drafter does can change what is said, only how fast, so the speculator checks its trees and drops bad nodes.
Verification by rejection asks for honesty: nodes that were drawn at random come with the distribution they were drawn
from (DraftTree.draft_probs), whether a node is proposed never depends on what was drawn there, and they are drawn with
noise that no earlier draft has used, such as the domain DRAFTS of sampling/noise with the step's own position.
"""

import inspect
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from forerun.backends.base import ForwardResult
from forerun.batch import Outcome
from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.models.decoder import hidden_name
from forerun.sequence import Sequence
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import DraftTree

OptionValue = bool | int | float | str


@dataclass(frozen=True)
class Worth:
    """Which paths are worth a further pass of the drafter.

    judge           (depth, the drafter's own score of a node) -> probability that it is accepted if its parent is
    least_survival  paths less likely than this are not
    """

    judge: Callable[[int, float], float]
    least_survival: float


@dataclass(frozen=True)
class Ask:
    """Propose at most `max_nodes` nodes, none deeper than `max_depth`, below the last token of `sequence`.

    Slots for `max_nodes` tokens behind the last one are reserved in the sequence's blocks.

    worth  None: all of them are
    """

    sequence: Sequence
    max_nodes: int
    max_depth: int
    worth: Worth | None = None


@dataclass(frozen=True)
class Seen:
    """What became of a step's draft, drafted or not: the tree that was verified and its outcome.

    first_output  index of the root's row among the step's output rows; node i is i further
    result        the step's logits, valid during the call of `observe` only
    """

    sequence: Sequence
    outcome: Outcome
    first_output: int
    result: ForwardResult

    def top(self, rows: Seq[int], count: int) -> npt.NDArray[np.int32]:
        """[len(rows), count] most likely successors of the tree's rows, on the walked path or not."""
        return self.result.top([self.first_output + row for row in rows], count)


class Drafter(Protocol):
    """Proposes draft trees. Calls come from the engine's thread.

    is_paid  proposing runs a model, so that it is only worth it where enough is accepted

    A drafter with an attribute `learns` that is False is not called for `observe`: that saves time in every step.
    """

    name: str
    is_paid: bool

    def begin(self, sequence: Sequence) -> None:
        """A sequence has joined."""
        ...

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        """One tree per ask, rooted at the sequence's last token; None when there is nothing to propose."""
        ...

    def observe(self, seen: Seq[Seen]) -> None:
        """Learn from a step: every sequence that drew, after its tokens were appended."""
        ...

    def end(self, sequence_id: int) -> None:
        """The sequence is gone: drop its state. `Sequence` objects seen before stay valid."""
        ...


@runtime_checkable
class HostedDrafter(Protocol):
    """What a drafter implements beside Drafter when it runs programs or keeps files: it is told where it lives."""

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        """KV layers of its own, in the target's blocks; asked before the KV memory is allocated. Loads no weights.

        Raises UsageError or UnsupportedModel when it cannot draft for this target.
        """
        ...

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        """Load what it runs; the KV memory is there. Its own stacks begin at layer `first_kv_layer` of the store."""
        ...


@dataclass(frozen=True)
class Computed:
    """Rows of a step that have become part of a sequence, drawn from or not.

    start   position of the first one; the sequence's tokens are computed up to start + len(rows) now
    rows    rows of the batch, one a token
    result  valid during the call of `collect` only
    """

    sequence: Sequence
    start: int
    rows: Seq[int]
    result: ForwardResult

    @property
    def stop(self) -> int:
        """Position behind the last one."""
        return self.start + len(self.rows)

    def hidden(self, captures: Seq[int]) -> npt.NDArray[np.float32]:
        """[len(rows), ...] the target's hidden states of these numbers, side by side."""
        return np.concatenate([self.result.captured(hidden_name(index), self.rows) for index in captures], axis=1)


@runtime_checkable
class HiddenStateDrafter(Protocol):
    """What a drafter implements beside HostedDrafter when it reads hidden states of the target."""

    def captures(self, host: DraftHost) -> Seq[int]:
        """Numbers of the hidden states, see models/decoder; asked before the target is loaded."""
        ...

    def collect(self, computed: Seq[Computed]) -> None:
        """Take over what a step has computed, prefill too: nobody computes it again. It comes after the commit, but
        before blocks are published or released, so that slots of the rows may be written even where a sequence ends."""
        ...


@runtime_checkable
class RememberingDrafter(Protocol):
    """What a drafter implements beside Drafter when what it has learned or read takes memory worth telling."""

    @property
    def num_bytes(self) -> int:
        """Memory of what it remembers, without models that it runs; may be asked while it works, from any thread."""
        ...


_FACTORIES: dict[str, Callable[..., Drafter]] = {}


def register(name: str, factory: Callable[..., Drafter]) -> None:
    """Make a drafter known by name; options of a configuration become keyword arguments of `factory`."""
    _FACTORIES[name] = factory


def known_drafters() -> list[str]:
    """Registered names, sorted."""
    return sorted(_FACTORIES)


def about_drafter(name: str) -> str:
    """What a registered drafter does, in a line: the first one of its factory's docstring."""
    lines = (_FACTORIES[name].__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""


def make_drafter(name: str, options: Mapping[str, OptionValue]) -> Drafter:
    """Build a registered drafter. Raises UsageError on an unknown name or option."""
    factory = _FACTORIES.get(name)
    if factory is None:
        raise UsageError(f"unknown drafter {name!r}: choose off, auto, {', '.join(known_drafters())}")
    known = list(inspect.signature(factory).parameters)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UsageError(f"drafter {name!r} does not take these options: {unknown[0]}; it knows {', '.join(known)}")
    try:
        return factory(**options)
    except TypeError as error:
        raise UsageError(f"drafter {name!r} does not take these options: {error}") from error
