"""best_first: the most likely tree when what may follow a path costs no forward pass.

Place: heads that guess several positions at once call this with their scores.

The most likely candidate that is not yet in the tree is a first child or the next sibling of a node in it, because
scores of siblings fall and a child is at most as likely as its parent. So a heap of those is all that is needed:

    root ── a 0.6 ── c 0.5     heap: b (next sibling of a) 0.3, c's first child, c's next sibling
        └── b 0.3

Source: the optimal static tree of Sequoia, arXiv:2402.12374, and OPT-Tree, arXiv:2406.17276.
Differs: a heap instead of dynamic programming, which gives the same tree where scores fall along siblings.
"""

import heapq
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forerun.speculation.drafting.candidates import Candidates
from forerun.speculation.tree import DraftTree

Expand = Callable[[Seq[int]], Candidates]  # path from the root's child down -> its successors, best first


@dataclass(frozen=True)
class _Node:
    """A node of the tree: its row, its path, how likely it is reached, and its children."""

    row: int
    path: tuple[int, ...]
    survival: float
    children: Candidates


def best_first(root: int, max_nodes: int, max_depth: int, expand: Expand, source: str) -> DraftTree | None:
    """The tree of the `max_nodes` most likely candidates, none deeper than `max_depth`; None without any.

    expand  is asked once for every path in the tree that may go on
    """
    tokens, parents, scores = [root], [-1], [1.0]
    probs: dict[int, npt.NDArray[np.float64]] = {}
    heap: list[tuple[float, int, int, _Node]] = []  # (-survival, order, rank among siblings, parent)

    def enter(node: _Node, rank: int) -> None:
        if rank < len(node.children.tokens):
            survival = node.survival * min(1.0, max(0.0, node.children.scores[rank]))
            heapq.heappush(heap, (-survival, len(tokens) * MAX_RANKS + rank, rank, node))

    def grow(row: int, path: tuple[int, ...], survival: float) -> None:
        if len(path) < max_depth and len(tokens) <= max_nodes:
            node = _Node(row, path, survival, expand(path))
            if node.children.probs is not None:
                probs[row] = node.children.probs
            enter(node, 0)

    grow(0, (), 1.0)
    while heap and len(tokens) <= max_nodes:
        survival, _, rank, node = heapq.heappop(heap)
        token = node.children.tokens[rank]
        tokens.append(token)
        parents.append(node.row)
        scores.append(node.children.scores[rank])
        enter(node, rank + 1)
        grow(len(tokens) - 1, (*node.path, token), -survival)
    if len(tokens) == 1:
        return None
    kept = {row: prob for row, prob in probs.items() if row in parents}
    return DraftTree.of(tokens, parents, scores, source, kept)


MAX_RANKS = 1 << 20  # more siblings than a node can have: ties go to the older node, then to the better sibling
