"""Speculator: asks the drafter, checks and trims its trees, and keeps the statistics.

It stands between the scheduler's selection and the batch. A drafter that fails or proposes nonsense costs speed only:
its nodes are dropped here and the sequence decodes plainly.
"""

import logging
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass

from forerun.batch import Outcome
from forerun.sequence import Sequence
from forerun.speculation.budget import FixedBudget
from forerun.speculation.drafter import Ask, Drafter, Seen
from forerun.speculation.tree import MAX_NODES, DraftTree

log = logging.getLogger(__name__)


@dataclass
class SpeculationStats:
    """Totals over the speculator's life."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    dropped_nodes: int = 0  # out-of-range ids and what hung below them
    drafter_errors: int = 0


class Speculator:
    """Proposes one tree per decoding sequence. `drafter` None is plain decoding."""

    def __init__(self, drafter: Drafter | None, budget: FixedBudget, vocab_size: int) -> None:
        self._drafter = drafter
        self._budget = budget
        self._vocab_size = vocab_size
        self.stats = SpeculationStats()

    @property
    def drafter_name(self) -> str:
        """Name of the drafter, "off" without one."""
        return self._drafter.name if self._drafter is not None else "off"

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        """Draft nodes that the scheduler shall reserve slots for."""
        return 0 if self._drafter is None else self._budget.depth(sequence, num_decoding)

    def begin(self, sequence: Sequence) -> None:
        """A sequence joins."""
        if self._drafter is not None:
            with self._guard():
                self._drafter.begin(sequence)

    def end(self, sequence: Sequence) -> None:
        """A sequence leaves."""
        if self._drafter is not None:
            with self._guard():
                self._drafter.end(sequence.id)

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int]) -> list[DraftTree]:
        """A tree per sequence rooted at its last token, with at most `rooms[i]` nodes; root only where nothing fits."""
        trees = [DraftTree.root_only(sequence.tokens[-1]) for sequence in sequences]
        asked = [index for index, room in enumerate(rooms) if room > 0]
        if self._drafter is None or not asked:
            return trees
        asks = [Ask(sequences[index], min(rooms[index], MAX_NODES), rooms[index]) for index in asked]
        with self._guard():
            proposed = self._drafter.propose(asks)
            for index, ask, tree in zip(asked, asks, proposed, strict=True):
                if tree is not None and tree.tokens[0] == trees[index].tokens[0]:
                    trees[index] = self._sound(tree).prune(ask.max_nodes, ask.max_depth)
        return trees

    def observe(self, sequences: Seq[Sequence], outcomes: Seq[Outcome]) -> None:
        """Count what was verified and tell the drafter."""
        seen = []
        for sequence, outcome in zip(sequences, outcomes, strict=True):
            if outcome.tree.num_nodes:
                self.stats.drafts += 1
                self.stats.drafted += outcome.tree.num_nodes
                self.stats.accepted += len(outcome.accepted)
                seen.append(Seen(sequence, outcome))
        if self._drafter is not None and seen:
            with self._guard():
                self._drafter.observe(seen)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """A drafter must never take the engine down: what it raises is counted and logged."""
        try:
            yield
        except Exception:
            self.stats.drafter_errors += 1
            log.exception("drafter %s failed; what it did not propose is decoded plainly", self.drafter_name)

    def _sound(self, tree: DraftTree) -> DraftTree:
        """The tree without ids that the target does not know, nor anything below them."""
        bad = {row for row in range(1, len(tree)) if not 0 <= tree.tokens[row] < self._vocab_size}
        if not bad:
            return tree
        keep = [row for row in range(len(tree)) if not any(tree.ancestors[row] >> b & 1 for b in bad)]
        self.stats.dropped_nodes += len(tree) - len(keep)
        new_row = {old: new for new, old in enumerate(keep)}
        return DraftTree(
            tuple(tree.tokens[row] for row in keep),
            tuple(new_row[tree.parents[row]] if row else -1 for row in keep),
            tuple(tree.score[row] for row in keep),
            tree.source,
        )
