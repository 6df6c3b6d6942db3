"""Budget: who may draft how much in a step, and which of the proposed nodes are verified.

FixedBudget allows the same to everybody. Both kinds clamp: a draft of depth d can yield d + 1 tokens, so depth never
exceeds what is left of max_tokens and of the context minus one.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from forerun.batch import Outcome
from forerun.config import SpeculationConfig
from forerun.sequence import Sequence
from forerun.speculation.drafter import Drafter
from forerun.speculation.tree import DraftTree

DEFAULT_DEPTH = 15


@dataclass(frozen=True)
class StepFacts:
    """What a step cost.

    rows, keys  rows of the batch, and visible keys summed over them
    draft_s     seconds in the drafters
    forward_s   seconds in the target's forward pass and draws
    total_s     seconds of the whole step
    """

    rows: int
    keys: int
    draft_s: float
    forward_s: float
    total_s: float


class Budget(Protocol):
    """Decides how much to speculate. Calls come from the engine's thread, once a step each, in this order."""

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        """Most draft nodes that `sequence` may get when `num_decoding` sequences share the step."""
        ...

    def depth(self, sequence: Sequence, num_decoding: int) -> int:
        """Longest useful path, at most `room`."""
        ...

    def wants(self, drafter: Drafter, sequence: Sequence, tree: DraftTree, num_decoding: int) -> bool:
        """Shall `drafter` be asked, where others have proposed `tree` already?"""
        ...

    def calibrate(self, tree: DraftTree) -> DraftTree:
        """The tree with scores that are probabilities of acceptance."""
        ...

    def choose(
        self, sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree], num_other_rows: int
    ) -> list[DraftTree]:
        """The nodes to verify, of each sequence at most `rooms[i]`."""
        ...

    def observe(self, sequences: Seq[Sequence], outcomes: Seq[Outcome], facts: StepFacts) -> None:
        """Learn from a step that drew."""
        ...

    def end(self, sequence_id: int) -> None:
        """The sequence is gone."""
        ...


class FixedBudget:
    """Same limit for every sequence that decodes."""

    def __init__(self, config: SpeculationConfig, max_model_len: int) -> None:
        self._config = config
        self._max_depth = config.max_depth if config.max_depth is not None else DEFAULT_DEPTH
        self._max_model_len = max_model_len

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        return self.depth(sequence, num_decoding)

    def depth(self, sequence: Sequence, num_decoding: int) -> int:
        share = self._config.max_draft_rows // max(1, num_decoding)
        return max(0, min(self._max_depth, share, longest_draft(sequence, self._max_model_len)))

    def wants(self, drafter: Drafter, sequence: Sequence, tree: DraftTree, num_decoding: int) -> bool:
        return True

    def calibrate(self, tree: DraftTree) -> DraftTree:
        return tree

    def choose(
        self, sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree], num_other_rows: int
    ) -> list[DraftTree]:
        return [tree.prune(room) for tree, room in zip(trees, rooms, strict=True)]

    def observe(self, sequences: Seq[Sequence], outcomes: Seq[Outcome], facts: StepFacts) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass


def longest_draft(sequence: Sequence, max_model_len: int) -> int:
    """Depth behind which a draft of `sequence` is of no use, its own wish included; may be negative."""
    left = max_model_len - len(sequence.tokens)
    if sequence.params.max_tokens is not None:
        left = min(left, sequence.params.max_tokens - sequence.num_output)
    wanted = sequence.params.speculation.max_depth
    return left - 1 if wanted is None else min(left - 1, wanted)
