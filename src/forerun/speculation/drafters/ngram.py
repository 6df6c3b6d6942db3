"""n-gram drafter: the text often repeats itself, so propose what followed the last time.

Finds the longest suffix of the tokens, `max_n` down to `min_n` tokens long, that occurred before, and proposes what
followed its most recent occurrence. A continuation that runs into the end of the text goes on periodically.

    tokens   a b c d e a b          suffix "a b" (n = 2) occurred at 0, followed by c d e a b
    draft            c d e a b c d e ...

Cost: a few dictionary entries per token, a few look-ups per proposal, independent of the context's length.
Source: prompt lookup decoding (A. Saxena, 2023).
Differs: an incremental index instead of a search; periodic continuation.
"""

from collections.abc import Sequence as Seq

from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.tree import DraftTree


class _Index:
    """For each n, where each n-gram of a token list last ended (exclusive), among those that have a successor."""

    def __init__(self, min_n: int, max_n: int) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._last_end: dict[tuple[int, ...], int] = {}
        self._num_seen = 0

    def catch_up(self, tokens: Seq[int]) -> None:
        """Index every n-gram that ends before the last token, so that each has a successor."""
        for end in range(max(1, self._num_seen), len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._last_end[tuple(tokens[end - n : end])] = end
        self._num_seen = len(tokens)

    def find(self, tokens: Seq[int]) -> tuple[int, int] | None:
        """(where the continuation begins, n) of the longest known suffix."""
        for n in self._sizes:
            if n <= len(tokens):
                end = self._last_end.get(tuple(tokens[-n:]))
                if end is not None:
                    return end, n
        return None


class NgramDrafter:
    """Draws drafts out of each sequence's own tokens; keeps nothing across sequences."""

    name = "ngram"
    is_paid = False
    learns = False

    def __init__(self, min_n: int = 2, max_n: int = 4) -> None:
        if not 1 <= min_n <= max_n <= 16:
            raise UsageError(f"n-gram drafter: 1 <= min_n <= max_n <= 16 is required, got {min_n} and {max_n}")
        self._min_n = min_n
        self._max_n = max_n
        self._indexes: dict[int, _Index] = {}

    def begin(self, sequence: Sequence) -> None:
        self._indexes[sequence.id] = _Index(self._min_n, self._max_n)

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self._propose(ask) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Nothing to learn: the tokens themselves are the index."""

    def end(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)

    def _propose(self, ask: Ask) -> DraftTree | None:
        tokens = ask.sequence.tokens
        index = self._indexes[ask.sequence.id]
        index.catch_up(tokens)
        found = index.find(tokens)
        if found is None:
            return None
        start, _ = found
        period = len(tokens) - start
        length = min(ask.max_nodes, ask.max_depth)
        draft = [tokens[start + offset % period] for offset in range(length)]
        return DraftTree.chain(tokens[-1], draft, source=self.name)


register("ngram", NgramDrafter)
