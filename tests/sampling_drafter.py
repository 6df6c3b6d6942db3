"""A drafter that draws its nodes at random and says from what, as verification by rejection wants it."""

import random
from collections.abc import Callable

import numpy as np

from forerun.speculation.drafter import Ask
from forerun.speculation.tree import DraftTree
from tests.fakes import Stateless


def chain_shape(depth: int) -> tuple[int, ...]:
    """Parents of a chain's rows, the root included."""
    return tuple(range(-1, depth))


class SamplingDrafter(Stateless):
    """Draws trees of a fixed shape: every row's children without replacement from q(tokens up to the row).

    shape   parents of all rows, the root included
    report  what it says it drew from, given what it did draw from; anything but the identity is a lie
    """

    name = "sampling"

    def __init__(
        self,
        q: Callable[[tuple[int, ...]], np.ndarray],
        shape: tuple[int, ...],
        seed: int = 0,
        report: Callable[[np.ndarray], np.ndarray] = lambda q: q,
    ) -> None:
        self._q, self._shape, self._random, self._report = q, shape, random.Random(seed), report

    def tree(self, ask: Ask) -> DraftTree | None:
        paths = [tuple(ask.sequence.tokens)]
        tokens, parents, score, left = [ask.sequence.tokens[-1]], [-1], [1.0], {}
        probs: dict[int, np.ndarray] = {}
        row_of = {0: 0}
        for node, parent in enumerate(self._shape[1:], start=1):
            row = row_of.get(parent)
            if row is None:
                continue
            if row not in left:
                q = self._q(paths[row])
                left[row], probs[row] = q.copy(), self._report(q)
            total = left[row].cumsum()
            if total[-1] <= 0:
                continue  # nothing is left to draw
            token = int(np.searchsorted(total, self._random.random() * total[-1], side="right"))
            score.append(float(left[row][token] / total[-1]))
            left[row][token] = 0
            row_of[node] = len(tokens)
            tokens.append(token)
            parents.append(row)
            paths.append((*paths[row], token))
        return DraftTree(tuple(tokens), tuple(parents), tuple(score), draft_probs=probs)
