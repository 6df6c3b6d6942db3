"""best_nodes: of all proposed nodes, those that make the step yield the most tokens per second.

    G(B) = (N + S_1 + ... + S_B) / (t_d + t(T + B))        nodes in descending order of survival S

N sequences draw one token each in any case; the B likeliest nodes add S tokens each. Every B is looked at, because t
has steps where the kernels' tiles end: the next node alone may not pay while the next four together do.

Source: goodput, Liu et al., "Optimizing speculative decoding for serving large language models using goodput",
arXiv:2406.14066.
Differs: nodes of trees with probabilities of their own instead of one length for all; all B instead of the first peak.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.speculation.tree import DraftTree

MARGIN = 1.03  # speculation must promise that much more than plain decoding


@dataclass(frozen=True)
class Choice:
    """rows: those to verify of each tree, ascending. speed, plain_speed: predicted tokens/s with them and without."""

    rows: list[list[int]]
    num_nodes: int
    speed: float
    plain_speed: float


def no_nodes(trees: Seq[DraftTree]) -> Choice:
    """Plain decoding."""
    return Choice([[] for _ in trees], 0, 1.0, 1.0)


def best_nodes(
    trees: Seq[DraftTree], rooms: Seq[int], limit: int, seconds: Callable[[int, int], float], spent_s: float
) -> Choice:
    """Choose among all nodes of `trees`, whose scores are probabilities of acceptance.

    rooms    most nodes of each tree               limit  most nodes of all together
    seconds  (nodes, tree index of the last one) -> seconds of a step with that many; called for 0, 1, 2, ... nodes
    spent_s  seconds that drafting took already
    """
    pool: list[tuple[float, int, int]] = []
    for i, tree in enumerate(trees):
        if len(tree.tokens) > 1 and rooms[i] > 0:
            pool += [(-alive, i, row) for row, alive in enumerate(alive_in_order(tree)) if row]
    pool.sort()  # among equals the smaller row, so that ancestors come before descendants
    tokens = float(len(trees))
    best = plain = tokens / (spent_s + seconds(0, -1))
    best_count = 0
    left = list(rooms)
    taken: list[tuple[int, int]] = []
    for minus_alive, i, row in pool:
        if left[i] == 0:
            continue
        left[i] -= 1
        taken.append((i, row))
        tokens -= minus_alive
        count = len(taken)
        speed = tokens / (spent_s + seconds(count, i))
        if speed > best:
            best, best_count = speed, count
        if count >= limit:
            break
    if best < MARGIN * plain:
        best, best_count = plain, 0
    rows: list[list[int]] = [[] for _ in trees]
    for i, row in taken[:best_count]:
        rows[i].append(row)
    return Choice(rows, best_count, best, plain)


def alive_in_order(tree: DraftTree) -> Seq[float]:
    """[N+1] survival of each row. Never rising along the rows of a tree that was drawn: its nodes are taken in the
    order of their rows, because choosing among them by what was drawn would change what rejection yields."""
    if not tree.draft_probs:
        return tree.survival
    alive: list[float] = []
    for value in tree.survival:
        alive.append(min(value, alive[-1]) if alive else value)
    return alive
