"""Budget: who may draft how much in a step, and which of the proposed nodes are verified.

FixedBudget allows the same to everybody; the one that learns is in allocator.py. Both clamp: a draft of depth d can
yield d + 1 tokens, so depth never exceeds what is left of max_tokens and of the context minus one.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from forerun.batch import Outcome
from forerun.config import SpeculationConfig
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Drafter
from forerun.speculation.tree import MAX_NODES, DraftTree

DEFAULT_DEPTH = 15


@dataclass(frozen=True)
class StepFacts:
    """What a step cost.

    rows, keys  rows of the batch, and visible keys summed over them
    draft_s     seconds in the drafters
    forward_s   seconds in the target's forward pass and draws
    total_s     seconds of the whole step
    steps       steps that this one stands for: itself, and those before it that drafted nothing and were not observed
    """

    rows: int
    keys: int
    draft_s: float
    forward_s: float
    total_s: float
    steps: int = 1


class Budget(Protocol):
    """Decides how much to speculate. Calls come from the engine's thread, in this order.

    decisions  how often it decided what, by reason, for one sequence in one step each
    """

    decisions: Counter[str]

    def rests(self, num_decoding: int) -> bool:
        """The next step, of about so many sequences, needs no draft: then it is not asked for room. At most once a
        step, and never where a sequence is guided."""
        ...

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        """Most draft nodes that `sequence` may get when `num_decoding` sequences share the step. Once a step each."""
        ...

    def asks(
        self, drafter: Drafter, allowed: Seq[int], sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree]
    ) -> dict[int, Ask]:
        """What `drafter` is asked for, by index, where others have proposed `trees` already.

        allowed  indices of the sequences that have room and may use it
        """
        ...

    def drafted(self, drafter: Drafter, asks: Seq[Ask], depth: int, seconds: float) -> None:
        """Asking it took so long, with the checks of what it proposed, whose deepest tree is `depth` deep; 0 without
        any."""
        ...

    def calibrate(self, drafter: Drafter, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """The drafter's tree with scores that are probabilities of acceptance."""
        ...

    def choose(
        self, sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree], num_other_rows: int
    ) -> list[DraftTree]:
        """The nodes to verify, of each sequence at most `rooms[i]`. Not called where nobody has room."""
        ...

    def observe(self, sequences: Seq[Sequence], outcomes: Seq[Outcome], facts: StepFacts) -> None:
        """Learn from a step that drew, after its tokens were appended."""
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
        self.decisions: Counter[str] = Counter()

    def rests(self, num_decoding: int) -> bool:
        return False

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        return self.depth(sequence, num_decoding)

    def depth(self, sequence: Sequence, num_decoding: int) -> int:
        """Longest useful path."""
        share = self._config.max_draft_rows // max(1, num_decoding)
        return max(0, min(self._max_depth, share, longest_draft(sequence, self._max_model_len)))

    def asks(
        self, drafter: Drafter, allowed: Seq[int], sequences: Seq[Sequence], rooms: Seq[int], trees: Seq[DraftTree]
    ) -> dict[int, Ask]:
        return {
            i: Ask(sequences[i], min(rooms[i], MAX_NODES), min(self.depth(sequences[i], len(sequences)), rooms[i]))
            for i in allowed
        }

    def drafted(self, drafter: Drafter, asks: Seq[Ask], depth: int, seconds: float) -> None:
        pass

    def calibrate(self, drafter: Drafter, sequence: Sequence, tree: DraftTree) -> DraftTree:
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
