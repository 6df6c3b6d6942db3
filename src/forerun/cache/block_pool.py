"""BlockPool: who owns which KV block. Ids and counts only, no tensors.

Every block is in exactly one state, and the three counts always add up to the total (`check`):

    owned    in use by `count` sequences
    cached   in use by nobody, but its content stands in the prefix index and may be shared again
    blank    in use by nobody, content worthless

Blank blocks are handed out first, the one released last before all others: its memory has been touched, while the first
use of a huge page costs milliseconds. Then cached ones, least recently released first; a cached block that is handed
out leaves the prefix index through `on_reuse`.
"""

from collections.abc import Callable, Iterable, Sequence


class BlockPool:
    """Reference-counted block ids 0..num_blocks-1. Not thread-safe: the engine's thread owns it."""

    def __init__(self, num_blocks: int, on_reuse: Callable[[int], None] | None = None) -> None:
        self._count = [0] * num_blocks
        self._blank: dict[int, None] = dict.fromkeys(reversed(range(num_blocks)))  # an ordered set: the last goes first
        self._cached: dict[int, None] = {}  # oldest release first
        self._is_indexed = [False] * num_blocks
        self._on_reuse = on_reuse

    @property
    def num_blocks(self) -> int:
        return len(self._count)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out: blank and cached ones."""
        return len(self._blank) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_owned(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self, n: int) -> list[int] | None:
        """Take `n` blocks with count 1, or none at all and return None."""
        if n > self.num_free:
            return None
        taken = []
        for _ in range(n):
            if self._blank:
                block, _ = self._blank.popitem()
            else:
                block = next(iter(self._cached))
                del self._cached[block]
                self._is_indexed[block] = False
                if self._on_reuse is not None:
                    self._on_reuse(block)
            self._count[block] = 1
            taken.append(block)
        return taken

    def share(self, block: int) -> None:
        """One more owner; a cached block becomes owned again."""
        if self._count[block] == 0:
            if block not in self._cached:
                raise ValueError(f"block {block} holds nothing that could be shared")
            del self._cached[block]
        self._count[block] += 1

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one ownership of each block, the last one first, so that a prefix outlives its continuations."""
        for block in reversed(blocks):
            if self._count[block] <= 0:
                raise ValueError(f"block {block} is released more often than it was taken")
            self._count[block] -= 1
            if self._count[block] == 0:
                (self._cached if self._is_indexed[block] else self._blank)[block] = None

    def cached_blocks(self) -> Iterable[int]:
        """Ids of the cached blocks, the one that is reused first first."""
        return self._cached.keys()

    def reset(self) -> None:
        """Nobody owns anything any more; what the prefix index describes stays cached."""
        self._count = [0] * self.num_blocks
        self._cached = {block: None for block, is_indexed in enumerate(self._is_indexed) if is_indexed}
        self._blank = {block: None for block, is_indexed in enumerate(self._is_indexed) if not is_indexed}

    def count(self, block: int) -> int:
        """Number of owners."""
        return self._count[block]

    def is_blank(self, block: int) -> bool:
        """True when nobody owns the block and no prefix entry describes it: its content is worthless."""
        return block in self._blank

    def is_writable(self, block: int) -> bool:
        """True for the only owner of a block that no prefix entry describes; others must copy before they write."""
        return self._count[block] == 1 and not self._is_indexed[block]

    def is_indexed(self, block: int) -> bool:
        """True when a prefix entry describes the block."""
        return self._is_indexed[block]

    def mark_indexed(self, block: int) -> None:
        """The prefix index now describes this owned block."""
        if self._count[block] == 0:
            raise ValueError(f"block {block} is owned by nobody and cannot enter the prefix index")
        self._is_indexed[block] = True

    def check(self, owners: Iterable[Sequence[int]]) -> None:
        """Compare with the block lists of all live sequences. Raises AssertionError when blocks leaked or doubled."""
        seen = [0] * self.num_blocks
        for blocks in owners:
            for block in blocks:
                seen[block] += 1
        assert seen == self._count, "block counts differ from the sequences' block lists"
        free = set(self._blank) | set(self._cached)
        assert len(free) == self.num_free, "a block is both blank and cached"
        assert free == {block for block, count in enumerate(self._count) if count == 0}, "a block is lost"
        assert all(self._is_indexed[block] for block in self._cached), "a cached block is not in the prefix index"
        assert not any(self._is_indexed[block] for block in self._blank), "an indexed block is blank"
