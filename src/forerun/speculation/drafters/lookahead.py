"""lookahead drafter: guess further than one token, let each step correct the guesses, and keep the n-grams that result.

Every sequence has a window of W columns of N - 1 guessed tokens. Its top row is a guess of the next W tokens; below
each column hangs what earlier steps made of the text from there on. One step of the target gives every column its next
token, because a column's rows, read downwards, are a path of the draft tree:

    root ─ (0,1) ─┬ (0,2) ─ (1,2) ─ (2,2) ─> new          columns c = 1, 2 of N - 1 = 3 rows; (r, c) is guessed to
                  └ (1,1) ─ (2,1) ─> new                  stand r + c tokens behind the root

Columns and their new token are n-grams; they go into the sequence's pool, as do those of its text. The pool's n-grams
that begin with the current token are drafted beside the window. Then every column drops its first token and takes the
new one, and the window has moved on by one token. Of a draft that was pruned the verified part is used: a column whose
path was cut gets its next token from its last verified row.

New tokens are argmaxes also where the sequence is sampled: that costs speed only.

Options: window=2 (W), ngram=4 (N), guesses=2 (n-grams of the pool verified in a step, and kept for each token),
from_text=True (the sequence's own n-grams enter the pool too). Rows of a step: 1 + (window + guesses) * (ngram - 1),
13 by default.
Memory: at most `guesses` n-grams for every distinct token of a sequence, about 150 bytes each.
Cost: about 30 us a step, and one pass over a row of logits for each column.
Source: lookahead decoding (Fu et al., arXiv:2402.02057).
Differs: the window is part of one draft tree, so a guess that is right is accepted like any other node; it moves on by
as many columns as tokens were accepted.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.tree import MAX_NODES, DraftTree

PRIOR_NODES = 16.0  # weight of the scores that are assumed at first
WINDOW_PRIORS, POOL_PRIORS = (0.05, 0.3), (0.3, 0.6)  # of a node at depth 1, and of one whose parent came true
FADE_AFTER = 1000.0  # verified nodes after which old ones begin to fade

NGram = tuple[int, ...]


class _Pool:
    """N-grams by their first token, the latest last, at most `kept` for each."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._tails: dict[int, dict[NGram, None]] = {}

    def add(self, ngram: NGram) -> None:
        tails = self._tails.setdefault(ngram[0], {})
        tails.pop(ngram[1:], None)
        if len(tails) == self._kept:
            del tails[next(iter(tails))]
        tails[ngram[1:]] = None

    def behind(self, token: int) -> list[NGram]:
        """What followed a token, the latest first."""
        return list(reversed(self._tails.get(token, {})))


@dataclass
class _Rate:
    """Share of the verified nodes of one kind that were accepted."""

    hits: float
    nodes: float = PRIOR_NODES

    @property
    def value(self) -> float:
        return min(0.95, max(0.005, self.hits / self.nodes))

    def count(self, hit: bool) -> None:
        if self.nodes > FADE_AFTER:
            self.hits, self.nodes = self.hits / 2, self.nodes / 2
        self.hits += hit
        self.nodes += 1


class _Rates:
    """Rates of the nodes at depth 1, and of those below a node that came true."""

    def __init__(self, priors: tuple[float, float]) -> None:
        self._first, self._further = (_Rate(PRIOR_NODES * prior) for prior in priors)

    def at(self, depth: int) -> _Rate:
        return self._first if depth == 1 else self._further


class _Paths:
    """A draft tree in the making: the trie of paths, each node with the largest score that it was given."""

    def __init__(self, root: int) -> None:
        self.tokens, self.parents, self.score = [root], [-1], [1.0]
        self._children: dict[tuple[int, int], int] = {}

    def add(self, path: Seq[int], rates: _Rates) -> None:
        row = 0
        for depth, token in enumerate(path, 1):
            score = rates.at(depth).value
            child = self._children.get((row, token))
            if child is None:
                if len(self.tokens) > MAX_NODES:
                    return
                child = self._children[row, token] = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(row)
                self.score.append(score)
            self.score[child] = max(self.score[child], score)
            row = child


@dataclass(eq=False)
class _Text:
    """Window and pool of a running sequence.

    columns  [W] lists of N - 1 tokens, the first of each being the window's top row
    drafted  pool n-grams of the draft that is being verified, whose success is counted
    """

    sequence: Sequence
    pool: _Pool
    columns: list[list[int]] = field(default_factory=list)
    num_seen: int = 0  # tokens whose n-grams are in the pool
    drafted: list[NGram] = field(default_factory=list)

    @property
    def trunk(self) -> list[int]:
        """[W] the guess of the next tokens."""
        return [column[0] for column in self.columns]

    def paths(self) -> Iterator[list[int]]:
        """For each column the draft path that ends with it."""
        trunk = self.trunk
        for at, column in enumerate(self.columns):
            yield trunk[:at] + column


class LookaheadDrafter:
    """Drafts from n-grams that the target itself computes on the side."""

    name = "lookahead"
    is_paid = False

    def __init__(self, window: int = 2, ngram: int = 4, guesses: int = 2, from_text: bool = True) -> None:
        if not 1 <= window <= 16:
            raise UsageError(f"lookahead drafter: window must be between 1 and 16, got {window}")
        if not 2 <= ngram <= 16:
            raise UsageError(f"lookahead drafter: ngram must be between 2 and 16, got {ngram}")
        if not 1 <= guesses <= 16:
            raise UsageError(f"lookahead drafter: guesses must be between 1 and 16, got {guesses}")
        if (window + guesses) * (ngram - 1) > MAX_NODES:
            raise UsageError(
                f"lookahead drafter: (window + guesses) * (ngram - 1) must be at most {MAX_NODES}, "
                f"got {(window + guesses) * (ngram - 1)}"
            )
        self._window, self._n, self._guesses, self._from_text = window, ngram, guesses, from_text
        self._texts: dict[int, _Text] = {}
        self._in_window, self._in_pool = _Rates(WINDOW_PRIORS), _Rates(POOL_PRIORS)

    def begin(self, sequence: Sequence) -> None:
        self._texts[sequence.id] = _Text(sequence, _Pool(self._guesses))

    def end(self, sequence_id: int) -> None:
        self._texts.pop(sequence_id, None)

    # ---- drafting ----

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self._propose(ask) for ask in asks]

    def _propose(self, ask: Ask) -> DraftTree | None:
        text = self._texts[ask.sequence.id]
        self._catch_up(text)
        tree = _Paths(ask.sequence.tokens[-1])
        text.drafted = text.pool.behind(tree.tokens[0])
        for ngram in text.drafted:
            tree.add(ngram, self._in_pool)
        for path in text.paths():
            tree.add(path, self._in_window)
        return DraftTree.of(tree.tokens, tree.parents, tree.score, self.name)

    def _catch_up(self, text: _Text) -> None:
        """Fill the window the first time, and the pool with the n-grams that new tokens complete."""
        tokens = text.sequence.tokens
        if not text.columns:
            text.columns = [self._guess(tokens, at) for at in range(self._window)]
        if self._from_text:
            for end in range(max(self._n, text.num_seen + 1), len(tokens) + 1):
                text.pool.add(tuple(tokens[end - self._n : end]))
        text.num_seen = len(tokens)

    def _guess(self, tokens: Seq[int], at: int) -> list[int]:
        """A column made up of earlier text: anything will do, what is wrong is corrected row by row."""
        start = (len(tokens) * 7 + at * 31) % len(tokens)
        return [tokens[(start + row) % len(tokens)] for row in range(self._n - 1)]

    # ---- learning ----

    def observe(self, seen: Seq[Seen]) -> None:
        """Count what came true, and move the windows on."""
        for one in seen:
            text = self._texts.get(one.sequence.id)
            if text is None or not text.columns or one.sequence.is_finished or not one.outcome.is_finite:
                continue
            self._count(text, one)
            self._move_on(text, one)

    def _count(self, text: _Text, one: Seen) -> None:
        """The nodes of this draft whose parent came true: did they?"""
        tree, walked = one.outcome.tree, {0, *one.outcome.accepted}
        in_pool: set[int] = set()
        for ngram in text.drafted:
            in_pool.update(_rows_of(tree, ngram))
        text.drafted = []
        for row in range(1, len(tree)):
            if tree.sources[row] == self.name and tree.parents[row] in walked:
                rates = self._in_pool if row in in_pool else self._in_window
                rates.at(tree.depths[row]).count(row in walked)

    def _move_on(self, text: _Text, one: Seen) -> None:
        """Give every column its next token, keep the n-grams, and drop what the text has passed."""
        tree, tokens = one.outcome.tree, one.sequence.tokens
        verified = [_rows_of(tree, path) for path in text.paths()]
        reached = [at for at, rows in enumerate(verified) if len(rows) > at]  # at least the column's first token
        found = one.top([verified[at][-1] for at in reached], 1)[:, 0].tolist() if reached else []
        following = dict(zip(reached, found, strict=True))
        for at, column in enumerate(text.columns):
            left = self._guess(tokens, at)
            if at in following:
                length = len(verified[at]) - at
                ngram = (*column[:length], following[at])
                text.pool.add(ngram)
                left = [*ngram[1:], *column[length + 1 :], *left]
            else:
                left = [*column[1:], *left]
            text.columns[at] = left[: self._n - 1]
        passed = len(one.outcome.tokens) - 1  # the windows have moved on by one token already
        kept = text.columns[passed:]
        text.columns = kept + [self._guess(tokens, at) for at in range(len(kept), self._window)]


def _rows_of(tree: DraftTree, path: Seq[int]) -> list[int]:
    """Rows of the longest part of a path that the tree has."""
    rows: list[int] = []
    row: int | None = 0
    for token in path:
        row = tree.child(row, token) if row is not None else None
        if row is None:
            break
        rows.append(row)
    return rows


register("lookahead", LookaheadDrafter)
