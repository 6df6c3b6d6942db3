"""SelfDrafter: the target drafts for itself, with a part of its layers or with coarser weights.

Place in the step: a Drafter like any other; level_drafting makes its trees. What is its own:

    KV       it has no layers of its own. It reads the target's KV of the committed tokens, so it never catches up: a
             draft begins with the root's row
    scratch  the root's row and drafted nodes write the target's layers at logical slots len(tokens) - 1 and behind. All
             of them hold nothing that is committed: the target's own pass writes the root and the nodes it verifies
             before anything reads them, a slot further back is written again before its token counts as computed, and
             only blocks of computed tokens are published. So no KV of a draft is ever kept
    weights  a part without a format of its own shares the loaded weights, and costs a program's workspace only

Source: Draft & Verify, J. Zhang et al., arXiv:2309.08168; QuantSpec, R. Tiwari et al., arXiv:2502.10424.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.backends.base import Limits, ProgramSpec
from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.models import decoder
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen
from forerun.speculation.drafting.level_drafting import DraftSettings, LevelDrafting, draft_limits
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES, DraftTree

MAX_WIDTH = 16


@dataclass(frozen=True)
class Part:
    """What a target drafts with. The default is all of it.

    skip     sub-layers to leave out: "layers.3.attn", "layers.3.mlp"
    weights  format of a copy of the weights; None: those that are loaded
    """

    skip: frozenset[str] = frozenset()
    weights: str | None = None


def part_pass(host: DraftHost, part: Part, limits: Limits, name: str = "part") -> ProgramSpec:
    """The forward pass of a part of the target."""
    model = host.target.model
    return ProgramSpec(name, model, lambda ops: decoder.logits(model.spec, ops, part.skip), limits, part.weights)


def part_cost(host: DraftHost, part: Part) -> float:
    """Bytes of weights that one pass of a part reads, as a share of the whole target's. Loads nothing."""
    one_row = Limits(1, 1, 1)
    whole = host.backend.pass_bytes(part_pass(host, Part(), one_row))
    return host.backend.pass_bytes(part_pass(host, part, one_row)) / whole


def draft_shape(name: str, width: int, max_depth: int, min_survival: float) -> DraftSettings:
    """Settings of a drafter over the target's KV. Raises UsageError."""
    if not 1 <= width <= MAX_WIDTH:
        raise UsageError(f"{name}.width must be between 1 and {MAX_WIDTH}, got {width}")
    if not 1 <= max_depth <= MAX_NODES:
        raise UsageError(f"{name}.max_depth must be between 1 and {MAX_NODES}, got {max_depth}")
    if not 0.0 <= min_survival < 1.0:
        raise UsageError(f"{name}.min_survival must be at least 0 and below 1, got {min_survival}")
    return DraftSettings(name, True, width, max_depth, min_survival)


class SelfDrafter:
    """Drafts with a part of the target. Implements Drafter and HostedDrafter.

    choose  the part, asked before anything is loaded. Raises UsageError when this target has none that is of use
    weakness  why it agrees with the target too rarely, where it does, and what to do then
    """

    is_paid = True

    def __init__(self, settings: DraftSettings, choose: Callable[[DraftHost], Part], weakness: str) -> None:
        assert settings.is_target, "a part of the target drafts over the target's KV"
        self.name = settings.name
        self._settings, self._choose, self.weakness = settings, choose, weakness
        self._drafting: LevelDrafting

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        self._choose(host)  # refuses what it cannot do
        return ()

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        spec = part_pass(host, self._choose(host), draft_limits(host, self._settings), self.name)
        self._drafting = LevelDrafting(host.backend.add_program(spec), self._settings, host)

    def begin(self, sequence: Sequence) -> None:
        """Nothing to prepare: the target's KV is there."""

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return self._drafting.propose(asks)

    def observe(self, seen: Seq[Seen]) -> None:
        self._drafting.observe(seen)

    def end(self, sequence_id: int) -> None:
        self._drafting.end(sequence_id)
