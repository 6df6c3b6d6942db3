"""DraftKv: which tokens of each sequence a drafter's KV stack holds.

Place: asked by level_drafting before it catches up, told after every forward pass and every verified step.

A stack lies in the sequences' own blocks (ADR 4), so a shared block holds a drafter's KV too, if the drafter ever
filled it. What it filled is remembered per physical block with the digest of the prefix that the block ends; a prefix
hit whose digests agree is not computed again, and a recycled block has another digest.

    sequence.seen_by[stack]   leading tokens whose KV is there. Absent: the sequence has not drawn since it joined; its
                              blocks may wait for the copy that the step begins with, and its digests are unknown

Preemption empties seen_by and block_digests. Writing the same prefix into a shared block again writes the same bits.
"""

from forerun.sequence import Sequence


class DraftKv:
    """Progress of one stack over all sequences.

    stack       key in Sequence.seen_by; the drafter's name does
    is_target   the drafter reads the target's own KV: committed tokens are always there, what it drafts is scratch
    """

    def __init__(self, stack: str, block_size: int, is_target: bool = False) -> None:
        self._stack = stack
        self._block_size = block_size
        self._is_target = is_target
        self._filled: dict[int, bytes] = {}  # physical block -> digest of the prefix whose KV it holds in full
        self._num_noted: dict[int, int] = {}  # sequence id -> leading blocks that stand in _filled

    def is_ready(self, sequence: Sequence) -> bool:
        """May the sequence's blocks be written and read?"""
        return self._stack in sequence.seen_by

    def num_seen(self, sequence: Sequence) -> int:
        """Leading tokens whose KV is there, at most all but the last: its row yields the first draft token."""
        last = len(sequence.tokens) - 1
        if self._is_target:
            return last
        seen = sequence.seen_by[self._stack]
        if seen == 0:
            seen = sequence.seen_by[self._stack] = self._known_prefix(sequence)
        return min(seen, last)

    def write(self, sequence: Sequence, start: int, stop: int) -> None:
        """Logical slots start..stop-1 are about to be written: their blocks no longer hold what was remembered."""
        for index in range(start // self._block_size, -(-stop // self._block_size)):
            self._filled.pop(sequence.block_ids[index], None)

    def advance(self, sequence: Sequence, num_seen: int) -> None:
        """KV is there for tokens[:num_seen] now."""
        sequence.seen_by[self._stack] = num_seen
        self._note(sequence, num_seen)

    def join(self, sequence: Sequence) -> None:
        """The sequence has drawn: from now on it can be drafted for. No effect when that is known."""
        if self._stack not in sequence.seen_by:
            sequence.seen_by[self._stack] = 0
            self._num_noted[sequence.id] = 0

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
        return count * self._block_size

    def _note(self, sequence: Sequence, seen: int) -> None:
        """Remember the blocks that have been filled and whose digest is known."""
        end = min(seen // self._block_size, len(sequence.block_digests))
        for index in range(self._num_noted.get(sequence.id, 0), end):
            self._filled[sequence.block_ids[index]] = sequence.block_digests[index]
        self._num_noted[sequence.id] = max(end, self._num_noted.get(sequence.id, 0))
