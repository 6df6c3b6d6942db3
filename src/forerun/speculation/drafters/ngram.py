"""n-gram drafter: the text often repeats itself, so propose what followed the last time, or most of the times.

Finds the longest suffix of the tokens, `max_n` down to `min_n` tokens long, that occurred before, and proposes what
followed it: at its most recent occurrence, or with choice="frequent" where it went on as it did most often. A
continuation that runs into the end of the text goes on periodically.

    tokens   a b c d e a b          suffix "a b" (n = 2) occurred at 0, followed by c d e a b
    draft            c d e a b c d e ...

A node's score is the share of drafts that came true after a match as long as the one it continues, over all sequences;
before anything is known, L / (L + 2) for a match of L tokens. A match is as long as the two places agree, also beyond
max_n, so text in its third period is trusted more than in its second.

Options: min_n=2, max_n=4, choice="recent".
Cost: a few dictionary entries per token, a few look-ups per proposal, independent of the context's length.
Memory: about 200 bytes a token for each n; with choice="frequent" about 500, for at most KEPT continuations each.
Source: prompt lookup decoding (A. Saxena, 2023).
Differs: an incremental index instead of a search; periodic continuation; scores.
"""

from bisect import bisect_left
from collections.abc import Sequence as Seq
from typing import Protocol

from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.tree import DraftTree

KEPT = 4  # continuations that are counted for one n-gram
LONGEST = 32  # matches are not measured beyond this
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # upper ends of the classes of match lengths; one more class above
PRIOR_DRAFTS = 8.0  # weight of the score that is assumed at first
WINDOW = 256.0  # drafts of a class after which old ones begin to fade

NGram = tuple[int, ...]


class _Ends(Protocol):
    """For n-grams, where the continuation that shall be proposed begins, and which share of occurrences went on so."""

    def note(self, ngram: NGram, token: int, end: int) -> None:
        """The n-gram ended at `end` (exclusive), where `token` stands."""
        ...

    def find(self, ngram: NGram) -> tuple[int, float] | None: ...


class _MostRecent:
    """Where each n-gram ended last."""

    def __init__(self) -> None:
        self._end: dict[NGram, int] = {}

    def note(self, ngram: NGram, token: int, end: int) -> None:
        self._end[ngram] = end

    def find(self, ngram: NGram) -> tuple[int, float] | None:
        end = self._end.get(ngram)
        return None if end is None else (end, 1.0)


class _MostFrequent:
    """How often each n-gram went on with which token, and where it did so last; the KEPT most frequent tokens."""

    def __init__(self) -> None:
        self._ends: dict[NGram, dict[int, tuple[int, int]]] = {}  # -> token -> (count, end)

    def note(self, ngram: NGram, token: int, end: int) -> None:
        ends = self._ends.setdefault(ngram, {})
        count, _ = ends.pop(token, (0, 0))
        if len(ends) == KEPT:
            del ends[min(ends, key=lambda other: ends[other])]
        ends[token] = (count + 1, end)

    def find(self, ngram: NGram) -> tuple[int, float] | None:
        ends = self._ends.get(ngram)
        if ends is None:
            return None
        count, end = max(ends.values())  # the more recent among equally frequent ones
        return end, count / sum(count for count, _ in ends.values())


class _Index:
    """The n-grams of one token list that have a successor."""

    def __init__(self, min_n: int, max_n: int, ends: _Ends) -> None:
        self._sizes = range(max_n, min_n - 1, -1)
        self._ends = ends
        self._num_seen = 0
        self.match_length: int | None = None  # behind the draft that is being verified

    def catch_up(self, tokens: Seq[int]) -> None:
        """Index every n-gram that ends before the last token, so that each has a successor."""
        for end in range(max(1, self._num_seen), len(tokens)):
            for n in self._sizes:
                if n <= end:
                    self._ends.note(tuple(tokens[end - n : end]), tokens[end], end)
        self._num_seen = len(tokens)

    def find(self, tokens: Seq[int]) -> tuple[int, float] | None:
        """(where the continuation begins, share of occurrences that went on so) of the longest known suffix."""
        for n in self._sizes:
            if n <= len(tokens):
                found = self._ends.find(tuple(tokens[-n:]))
                if found is not None:
                    return found
        return None


class _Trust:
    """How often drafts came true, by the length of the match."""

    def __init__(self) -> None:
        middles = [*LENGTHS, LONGEST]
        self._hits = [PRIOR_DRAFTS * length / (length + 2) for length in middles]
        self._drafts = [PRIOR_DRAFTS] * len(middles)

    def of(self, length: int) -> float:
        row = bisect_left(LENGTHS, length)
        return min(0.99, max(0.01, self._hits[row] / self._drafts[row]))

    def count(self, length: int, hit: bool) -> None:
        row = bisect_left(LENGTHS, length)
        if self._drafts[row] > WINDOW:
            self._hits[row], self._drafts[row] = self._hits[row] / 2, self._drafts[row] / 2
        self._hits[row] += hit
        self._drafts[row] += 1


class NgramDrafter:
    """Draws drafts out of each sequence's own tokens; keeps nothing across sequences but how far matches are to be
    trusted."""

    name = "ngram"
    is_paid = False
    learns = False

    def __init__(self, min_n: int = 2, max_n: int = 4, choice: str = "recent") -> None:
        if not 1 <= min_n <= max_n <= 16:
            raise UsageError(f"n-gram drafter: 1 <= min_n <= max_n <= 16 is required, got {min_n} and {max_n}")
        if choice not in ("recent", "frequent"):
            raise UsageError(f"n-gram drafter: choice must be recent or frequent, got {choice!r}")
        self._min_n, self._max_n = min_n, max_n
        self._ends: type[_MostRecent | _MostFrequent] = _MostRecent if choice == "recent" else _MostFrequent
        self._indexes: dict[int, _Index] = {}
        self._trust = _Trust()

    def begin(self, sequence: Sequence) -> None:
        self._indexes[sequence.id] = _Index(self._min_n, self._max_n, self._ends())

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self._propose(ask) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Count which nodes came true, of those whose parent did."""
        for one in seen:
            index = self._indexes.get(one.sequence.id)
            if index is None or index.match_length is None:
                continue
            length, index.match_length = index.match_length, None
            if one.sequence.is_finished or not one.outcome.is_finite:
                continue  # cut short: a node that is missing may have been right
            tree, walked = one.outcome.tree, {0, *one.outcome.accepted}
            for row in range(1, len(tree)):
                if tree.sources[row] == self.name and tree.parents[row] in walked:
                    self._trust.count(length + tree.depths[row] - 1, row in walked)

    def end(self, sequence_id: int) -> None:
        self._indexes.pop(sequence_id, None)

    def _propose(self, ask: Ask) -> DraftTree | None:
        tokens = ask.sequence.tokens
        index = self._indexes[ask.sequence.id]
        index.catch_up(tokens)
        index.match_length = None
        found = index.find(tokens)
        length = min(ask.max_nodes, ask.max_depth)
        if found is None or length < 1:
            return None
        start, share = found
        period = len(tokens) - start
        draft = [tokens[start + offset % period] for offset in range(length)]
        index.match_length = matched = match_length(tokens, start)
        score = [self._trust.of(matched + depth) for depth in range(length)]
        score[0] *= share
        return DraftTree.chain(tokens[-1], draft, score, self.name)


def match_length(tokens: Seq[int], end: int) -> int:
    """Tokens, at most LONGEST, that the texts before `end` and at the end of `tokens` have in common."""
    length = 0
    while length < min(end, LONGEST) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


register("ngram", NgramDrafter)
