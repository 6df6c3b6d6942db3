"""DraftTree: a draft is (tokens, parents); everything else about it is derived here, once.

Row 0 is the root: the last accepted token, already part of the sequence. Rows 1..N are draft nodes and a node's parent
always has a smaller row number, so rows are in an order in which every ancestor comes first, and the ancestors of a
node in ascending row order are in ascending depth.

    root "the" ── 1 "cat" ── 2 "sat"          tokens  = [the, cat, sat, dog]
              └── 3 "dog"                     parents = [-1, 0, 1, 0]        depths = [0, 1, 2, 1]
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

MAX_NODES = 63  # ancestors fit one uint64, the root included


@dataclass(frozen=True)
class DraftTree:
    """Draft tokens and their parents. Raises ValueError when the arrays do not form a tree.

    tokens   [N+1] token ids, tokens[0] the root
    parents  [N+1] row of the parent, parents[0] == -1
    score    [N+1] estimated probability that the node is accepted given that its parent is, score[0] == 1
    sources  [N+1] name of the drafter that proposed the node; empty for the root, and everywhere if left out
    draft_probs  row -> [V] float64: the distribution that this row's children were drawn from, without replacement, in
             the order of their rows. Rows without an entry have children that were chosen, not drawn. Verification by
             coupled draws never looks at it; by rejection it needs it
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    score: tuple[float, ...]
    sources: tuple[str, ...] = ()
    draft_probs: Mapping[int, npt.NDArray[np.float64]] = field(default_factory=dict, compare=False, hash=False)

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if not 1 <= n <= MAX_NODES + 1:
            raise ValueError(f"a draft tree has 1 to {MAX_NODES + 1} rows, got {n}")
        if not self.sources:
            object.__setattr__(self, "sources", ("",) * n)
        if not len(self.parents) == len(self.score) == len(self.sources) == n or self.parents[0] != -1:
            raise ValueError("tokens, parents, score and sources have one entry a row, and the root's parent is -1")
        if any(not 0 <= self.parents[row] < row for row in range(1, n)):
            raise ValueError("a node's parent must come before the node")
        if len(self._child_map) != n - 1:
            raise ValueError("two children of one node have the same token")

    # ---- construction ----

    @staticmethod
    @lru_cache(maxsize=4096)  # every step of plain decoding needs one a sequence, with what is derived from it
    def root_only(token: int) -> "DraftTree":
        """A tree without draft nodes: plain decoding."""
        return DraftTree((token,), (-1,), (1.0,))

    @classmethod
    def chain(
        cls, root: int, tokens: Sequence[int], score: Sequence[float] | None = None, source: str = ""
    ) -> "DraftTree":
        """One path below the root."""
        n = len(tokens)
        scores = (1.0, *(score if score is not None else [1.0] * n))
        return cls((root, *tokens), tuple(range(-1, n)), scores, _one_source(source, n))

    @classmethod
    def from_paths(cls, root: int, paths: Iterable[Sequence[int]], source: str = "") -> "DraftTree":
        """The trie of several paths; a prefix that two paths share becomes one node."""
        tokens, parents = [root], [-1]
        children: dict[tuple[int, int], int] = {}
        for path in paths:
            row = 0
            for token in path:
                child = children.get((row, token))
                if child is None:
                    child = len(tokens)
                    children[row, token] = child
                    tokens.append(token)
                    parents.append(row)
                row = child
        return cls(tuple(tokens), tuple(parents), (1.0,) * len(tokens), _one_source(source, len(tokens) - 1))

    @classmethod
    def of(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        score: Sequence[float],
        source: str,
        draft_probs: Mapping[int, npt.NDArray[np.float64]] | None = None,
    ) -> "DraftTree":
        """A tree that one drafter proposed."""
        sources = _one_source(source, len(tokens) - 1)
        return cls(tuple(tokens), tuple(parents), tuple(score), sources, draft_probs or {})

    # ---- derived ----

    def __len__(self) -> int:
        """Rows, the root included."""
        return len(self.tokens)

    @property
    def num_nodes(self) -> int:
        """Draft nodes, the root not counted."""
        return len(self.tokens) - 1

    @property
    def source(self) -> str:
        """Names of all drafters in it, joined by "+"."""
        return "+".join(name for name in dict.fromkeys(self.sources) if name)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """[N+1] edges between each row and the root."""
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """[N+1] bit set per row: bit i is set when row i is the row itself or one of its ancestors."""
        masks = [1]
        for row in range(1, len(self.tokens)):
            masks.append(masks[self.parents[row]] | 1 << row)
        return tuple(masks)

    @cached_property
    def is_chain(self) -> bool:
        """True when every node's parent is the row before it; then slots equal positions and no mask is needed."""
        return all(parent == row - 1 for row, parent in enumerate(self.parents))

    @cached_property
    def survival(self) -> tuple[float, ...]:
        """[N+1] estimated probability that a row is reached: the product of scores along its path."""
        survival = [1.0]
        for row in range(1, len(self.tokens)):
            survival.append(survival[self.parents[row]] * min(1.0, max(0.0, self.score[row])))
        return tuple(survival)

    @cached_property
    def _child_map(self) -> dict[tuple[int, int], int]:
        return {(self.parents[row], self.tokens[row]): row for row in range(1, len(self.tokens))}

    def child(self, row: int, token: int) -> int | None:
        """Row of the child of `row` that holds `token`, or None."""
        return self._child_map.get((row, token))

    @cached_property
    def _children(self) -> tuple[tuple[int, ...], ...]:
        children: list[list[int]] = [[] for _ in self.tokens]
        for row in range(1, len(self.tokens)):
            children[self.parents[row]].append(row)
        return tuple(map(tuple, children))

    def children(self, row: int) -> tuple[int, ...]:
        """Rows of the children of `row`, ascending."""
        return self._children[row]

    def path(self, row: int) -> tuple[int, ...]:
        """Rows from the root's child down to `row`; empty for the root."""
        rows = []
        while row > 0:
            rows.append(row)
            row = self.parents[row]
        return tuple(reversed(rows))

    # ---- change (a new tree) ----

    def prune(self, max_nodes: int, max_depth: int | None = None) -> "DraftTree":
        """The tree of the `max_nodes` nodes most likely to be reached (product of scores along the path).

        Ties keep the smaller row. A child's product never exceeds its parent's, so the set is closed under parents.
        Nodes that were drawn at random are kept in the order of their rows: choosing among them by what was drawn would
        change the distribution that rejection verifies.
        """
        depth_limit = len(self.tokens) if max_depth is None else max_depth
        if self.num_nodes <= max_nodes and max(self.depths) <= depth_limit:
            return self
        candidates = [row for row in range(1, len(self.tokens)) if self.depths[row] <= depth_limit]
        if not self.draft_probs:
            candidates.sort(key=lambda row: (-self.survival[row], row))
        return self.keep(candidates[: max(0, max_nodes)])

    def keep(self, rows: Iterable[int]) -> "DraftTree":
        """The tree of the root and `rows`, a set that holds every node's parent."""
        kept = [0, *sorted(rows)]
        if len(kept) == len(self.tokens):
            return self
        new_row = {old: new for new, old in enumerate(kept)}
        return DraftTree(
            tuple(self.tokens[row] for row in kept),
            tuple(new_row[self.parents[row]] if row else -1 for row in kept),
            tuple(self.score[row] for row in kept),
            tuple(self.sources[row] for row in kept),
            {new_row[row]: probs for row, probs in self.draft_probs.items() if row in new_row},
        )

    def with_scores(self, score: Sequence[float]) -> "DraftTree":
        """The same nodes with other scores. Raises ValueError unless there is one a row."""
        if len(score) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} rows need as many scores, got {len(score)}")
        # What was derived from tokens and parents stays right, and every step needs this once a sequence.
        same = object.__new__(DraftTree)
        same.__dict__.update(self.__dict__)
        same.__dict__.pop("survival", None)
        same.__dict__["score"] = tuple(score)
        return same

    def merge(self, other: "DraftTree") -> "DraftTree":
        """Union of two trees with the same root; a node of both keeps the larger score and the name that goes with it.

        Nodes that do not fit MAX_NODES are left out. Raises ValueError for trees whose nodes were drawn at random.
        """
        if other.tokens[0] != self.tokens[0]:
            raise ValueError("only trees with the same root can be merged")
        if self.draft_probs or other.draft_probs:
            raise ValueError("trees whose nodes were drawn at random cannot be merged")
        tokens, parents = list(self.tokens), list(self.parents)
        score, sources = list(self.score), list(self.sources)
        children = dict(self._child_map)
        row_of = [0]
        for row in range(1, len(other.tokens)):
            parent = row_of[other.parents[row]]
            mine = children.get((parent, other.tokens[row])) if parent >= 0 else None
            if parent < 0 or (mine is None and len(tokens) > MAX_NODES):
                row_of.append(-1)
                continue
            if mine is None:
                mine = len(tokens)
                children[parent, other.tokens[row]] = mine
                tokens.append(other.tokens[row])
                parents.append(parent)
                score.append(other.score[row])
                sources.append(other.sources[row])
            elif other.score[row] > score[mine]:
                score[mine], sources[mine] = other.score[row], other.sources[row]
            row_of.append(mine)
        return DraftTree(tuple(tokens), tuple(parents), tuple(score), tuple(sources))


def _one_source(source: str, num_nodes: int) -> tuple[str, ...]:
    return ("", *[source] * num_nodes)
