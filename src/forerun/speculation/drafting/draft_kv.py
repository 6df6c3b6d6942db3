"""DraftKv: which tokens of each sequence a drafter's KV holds, and where. StackKv: in the sequence's own blocks.

Place: asked by level_drafting before it catches up, told after every forward pass and every verified step.

A stack lies in the sequences' own blocks (ADR 4), so a shared block holds a drafter's KV too, if the drafter ever
filled it. What it filled is remembered per physical block with the digest of the prefix that the block ends; a prefix
hit whose digests agree is not computed again, and a recycled block has another digest.

    sequence.seen_by[stack]   leading tokens whose KV is there. Absent: the sequence has not drawn since it joined, so
                              the digests of its blocks are not known yet

Preemption empties seen_by and block_digests. Writing the same prefix into a shared block again writes the same bits.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from forerun.batch import Outcome
from forerun.sequence import Sequence
from forerun.speculation.tree_search import TreeSearch
from forerun.speculation.vocabularies.draft_vocabulary import DraftVocabulary


class DraftKv(Protocol):
    """Progress of one drafter over all sequences, in tokens as the draft model knows them."""

    block_size: int

    def is_ready(self, sequence: Sequence) -> bool:
        """May the sequence be drafted for now?"""
        ...

    def length(self, sequence: Sequence) -> int:
        """Draft tokens of the whole sequence; the last one is the root."""
        ...

    def capacity(self, sequence: Sequence) -> int:
        """Positions that there is room for, draft nodes included, as far as the KV is concerned."""
        ...

    def tokens(self, sequence: Sequence, start: int, stop: int) -> Seq[int]:
        """Draft tokens start..stop-1."""
        ...

    def blocks(self, sequence: Sequence) -> Seq[int]:
        """Physical blocks in logical order."""
        ...

    def num_seen(self, sequence: Sequence) -> int:
        """Leading draft tokens whose KV is there, at most all but the last: its row yields the first draft token."""
        ...

    def write(self, sequence: Sequence, start: int, stop: int) -> None:
        """Logical slots start..stop-1 are about to be written."""
        ...

    def advance(self, sequence: Sequence, num_seen: int) -> None:
        """KV is there for that many draft tokens now."""
        ...

    def observe(self, sequence: Sequence, outcome: Outcome, search: TreeSearch | None, root: int) -> None:
        """A step was verified: keep the KV of accepted nodes where it is in place.

        search, root  what the drafter had computed for it and the root's position; None when it had not drafted
        """
        ...

    def end(self, sequence_id: int) -> None:
        """The sequence is gone."""
        ...


class StackKv:
    """KV in the target's blocks. Implements DraftKv.

    stack       key in Sequence.seen_by; the drafter's name does
    is_target   the drafter reads the target's own KV: committed tokens are always there, what it drafts is scratch
    """

    def __init__(self, stack: str, block_size: int, vocabulary: DraftVocabulary, is_target: bool = False) -> None:
        self.block_size = block_size
        self._stack = stack
        self._vocabulary = vocabulary
        self._is_target = is_target
        self._filled: dict[int, bytes] = {}  # physical block -> digest of the prefix whose KV it holds in full
        self._num_noted: dict[int, int] = {}  # sequence id -> leading blocks that stand in _filled

    def is_ready(self, sequence: Sequence) -> bool:
        return self._stack in sequence.seen_by

    def length(self, sequence: Sequence) -> int:
        return len(sequence.tokens)

    def capacity(self, sequence: Sequence) -> int:
        return len(sequence.block_ids) * self.block_size

    def tokens(self, sequence: Sequence, start: int, stop: int) -> Seq[int]:
        return self._vocabulary.to_draft(sequence.tokens[start:stop])

    def blocks(self, sequence: Sequence) -> Seq[int]:
        return sequence.block_ids

    def num_seen(self, sequence: Sequence) -> int:
        last = len(sequence.tokens) - 1
        if self._is_target:
            return last
        seen = sequence.seen_by[self._stack]
        if seen == 0:
            seen = sequence.seen_by[self._stack] = self._known_prefix(sequence)
        return min(seen, last)

    def write(self, sequence: Sequence, start: int, stop: int) -> None:
        """Their blocks no longer hold what was remembered."""
        for index in range(start // self.block_size, -(-stop // self.block_size)):
            self._filled.pop(sequence.block_ids[index], None)

    def advance(self, sequence: Sequence, num_seen: int) -> None:
        if self._is_target:
            return
        sequence.seen_by[self._stack] = num_seen
        self._note(sequence, num_seen)

    def observe(self, sequence: Sequence, outcome: Outcome, search: TreeSearch | None, root: int) -> None:
        """Rows were moved for all stacks: an accepted node is in place where its row is the slot it was computed in."""
        if self._stack not in sequence.seen_by:
            sequence.seen_by[self._stack] = 0
            self._num_noted[sequence.id] = 0
        if search is None:
            return
        depth = 0
        for row in outcome.accepted:
            if search.path_in_slot(row) != sequence.tokens[root + 1 : root + 2 + depth]:
                break
            depth += 1
        self.advance(sequence, root + 1 + depth)

    def end(self, sequence_id: int) -> None:
        """The sequence is gone; its blocks keep what they hold."""
        self._num_noted.pop(sequence_id, None)

    def _known_prefix(self, sequence: Sequence) -> int:
        """Tokens in leading blocks that were filled for this very prefix."""
        count = 0
        for block, digest in zip(sequence.block_ids, sequence.block_digests, strict=False):
            if self._filled.get(block) != digest:
                break
            count += 1
        return count * self.block_size

    def _note(self, sequence: Sequence, seen: int) -> None:
        """Remember the blocks that have been filled and whose digest is known."""
        end = min(seen // self.block_size, len(sequence.block_digests))
        for index in range(self._num_noted.get(sequence.id, 0), end):
            self._filled[sequence.block_ids[index]] = sequence.block_digests[index]
        self._num_noted[sequence.id] = max(end, self._num_noted.get(sequence.id, 0))
