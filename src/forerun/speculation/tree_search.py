"""TreeSearch: one sequence's draft tree while it grows, level by level.

Place: level_drafting computes the frontier of every search in one forward pass, adds what each row proposes, and lets
the searches choose their next frontier until none has one.

    root ── a 0.6 ── c 0.5     every proposed child is a candidate; its value is the product of scores along its path
        └── b 0.3              frontier = best `width` candidates of the newest level

Computed candidates are numbered in the order of their rows: number i is written at logical slot root + i, and numbers
never exceed max_nodes, the slots that are reserved. A candidate outside the best max_nodes can neither enter the tree
nor have a descendant in it, for a child's value is at most its parent's; so it is not computed. The finished tree holds
the best max_nodes candidates, computed ones first and in their order, so that rows and slots agree where nothing was
dropped in between.

Source: EAGLE-2, Li et al., arXiv:2406.16858, dynamic draft trees (expansion and rerank).
Differs: candidates that cannot enter the tree are not expanded; growth may stop where every path has become unlikely.
"""

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from forerun.speculation.drafter import Worth
from forerun.speculation.tree import DraftTree


class TreeSearch:
    """Candidates below `root`; candidate 0 is the root itself.

    width         children of a candidate that level_drafting proposes, and size of a frontier
    min_survival  candidates less likely than this are neither expanded nor kept
    worth         candidates that are not, are kept but not expanded; without it all are. Where children are drawn,
                  what was drawn does not decide how far it goes
    """

    def __init__(
        self,
        root: int,
        max_nodes: int,
        max_depth: int,
        width: int = 1,
        min_survival: float = 0.0,
        worth: Worth | None = None,
    ) -> None:
        self.max_nodes, self._max_depth = max_nodes, max_depth
        self._worth = worth
        self._survival = [1.0]  # of every candidate, as judged
        self.width, self._min_survival = width, min_survival
        self._tokens, self._parents, self._depths = [root], [-1], [0]
        self._scores, self._values = [1.0], [1.0]
        self._number: dict[int, int] = {0: 0}  # computed candidate -> number of its slot behind the root's
        self._computed = [0]  # number -> candidate
        self._masks: dict[int, int] = {0: 1}  # computed candidate -> numbers of its path, as bits
        self._probs: dict[int, npt.NDArray[np.float64]] = {}
        self._newest: list[int] = []  # candidates added since the last frontier
        self.frontier: list[int] = [0]  # candidates of the level that is being computed

    # ---- growing ----

    def add(
        self, node: int, tokens: Seq[int], scores: Seq[float], probs: npt.NDArray[np.float64] | None = None
    ) -> None:
        """Children of a computed candidate, best first. probs  [V] distribution that they were drawn from, if any."""
        if probs is not None:
            self._probs[node] = probs
        for token, score in zip(tokens, scores, strict=True):
            self._newest.append(len(self._tokens))
            self._tokens.append(token)
            self._parents.append(node)
            self._depths.append(self._depths[node] + 1)
            self._scores.append(score)
            self._values.append(self._values[node] * min(1.0, max(0.0, score)))
            judged = 1.0 if self._worth is None else self._worth.judge(self._depths[-1], score)
            self._survival.append(self._survival[node] * judged)

    def grow(self) -> list[int]:
        """Choose and number the next frontier; empty when the tree is complete."""
        room = min(self.width, self.max_nodes + 1 - len(self._computed))
        useful = set(self._best()) if len(self._tokens) > self.max_nodes + 1 else None
        level = [
            node
            for node in self._newest
            if self._depths[node] < self._max_depth
            and self._values[node] >= self._min_survival
            and self._is_worth_it(node)
            and (useful is None or node in useful)
        ]
        level.sort(key=lambda node: (-self._values[node], node))
        self.frontier, self._newest = sorted(level[: max(0, room)]), []
        for node in self.frontier:
            self._number[node] = len(self._computed)
            self._masks[node] = self._masks[self._parents[node]] | 1 << len(self._computed)
            self._computed.append(node)
        return self.frontier

    def _is_worth_it(self, node: int) -> bool:
        """A pass over the candidate is."""
        worth = self._worth
        return worth is None or self._survival[node] >= worth.least_survival or self._parents[node] in self._probs

    # ---- what a row of the frontier needs ----

    def token(self, node: int) -> int:
        """Token of a candidate."""
        return self._tokens[node]

    def parent(self, node: int) -> int:
        """Candidate below which a candidate hangs, -1 for the root."""
        return self._parents[node]

    def depth(self, node: int) -> int:
        """Edges between a candidate and the root."""
        return self._depths[node]

    def number(self, node: int) -> int:
        """Logical slot of a computed candidate, counted from the root's."""
        return self._number[node]

    def ancestors(self, node: int) -> int:
        """Batch.ancestors of a computed candidate; 0 where its slot is its position, so that its row is causal."""
        number = self._number[node]
        mask = self._masks[node]
        return 0 if mask == (2 << number) - 1 else mask

    def path(self, node: int) -> list[int]:
        """Tokens from the root's child down to the candidate; empty for the root."""
        tokens = []
        while node > 0:
            tokens.append(self._tokens[node])
            node = self._parents[node]
        return tokens[::-1]

    # ---- what came of it ----

    @property
    def num_slots(self) -> int:
        """Slots behind the root's that have been written."""
        return len(self._computed) - 1

    def path_in_slot(self, number: int) -> list[int] | None:
        """Path of the candidate that was computed at a slot, None when nothing was."""
        return self.path(self._computed[number]) if number < len(self._computed) else None

    def leading_chain(self) -> list[int]:
        """Tokens in the slots behind the root's, as long as each continues the one before it."""
        count = 0
        while count + 1 < len(self._computed) and self.ancestors(self._computed[count + 1]) == 0:
            count += 1
        return self.path(self._computed[count])

    def best_path(self) -> list[tuple[int, float]]:
        """(token, value) down the likeliest path: from every node to its best child."""
        path, node = [], 0
        children: dict[int, list[int]] = {}
        for child in self._best():
            children.setdefault(self._parents[child], []).append(child)
        while node in children:
            node = children[node][0]
            path.append((self._tokens[node], self._values[node]))
        return path

    def tree(self, source: str) -> DraftTree | None:
        """The finished tree; None when it is empty."""
        behind = len(self._computed)
        kept = [0, *sorted(self._best(), key=lambda node: (self._number.get(node, behind), node))]
        if len(kept) == 1:
            return None
        row_of = {node: row for row, node in enumerate(kept)}
        return DraftTree.of(
            [self._tokens[node] for node in kept],
            [-1, *(row_of[self._parents[node]] for node in kept[1:])],
            [self._scores[node] for node in kept],
            source,
            {row_of[node]: probs for node, probs in self._probs.items() if node in row_of},
        )

    def _best(self) -> list[int]:
        """The max_nodes candidates of largest value, closed under parents: a parent comes before its child in ties."""
        likely = (node for node in range(1, len(self._tokens)) if self._values[node] >= self._min_survival)
        return sorted(likely, key=lambda node: (-self._values[node], node))[: self.max_nodes]
