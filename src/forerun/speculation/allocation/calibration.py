"""Calibration: how likely a drafted token is accepted, by drafter, depth and score, and how a request differs.

A drafter's score says how sure it is; only counting says how often it is right. Counts are kept for each drafter, depth
and range of scores, older ones fading. A node counts only where its parent was accepted: it then was accepted or not.
Below a rejected node nothing was tested, and counting those as failures would make deep nodes look bad (censoring).

Nodes that were proposed but not verified count too, as far as the emitted tokens reach: had the node been verified, it
would have been accepted just if it is the token that came. So a free drafter that nobody listens to is still judged.

A request's own factor is its accepted nodes over those expected of it, drawn towards one.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.speculation.tree import DraftTree

KAPPA = 8.0  # observations that a first guess is worth
LEVEL_KAPPA = 4.0  # and those that the next shallower depth is worth
MEMORY = 0.99  # of a count, at each further observation
REQUEST_MEMORY = 0.97
ANY_SCORE = -1  # in place of a range of scores
UNKNOWN = 0.2  # first estimate for scores that say nothing: 1 for all nodes
HOPEFUL = 0.6  # the same of a drafter that runs a model, whose use must be tried before it is known
CERTAIN = 0.995  # nothing is more likely than this
SCORE_EDGES = (0.03, 0.08, 0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85, 0.92, 0.97, 0.999)
DEPTHS = (1, 2, 3, 4, 4, 5, 5, 5, 6)  # group of each depth, the last for all deeper ones


@dataclass
class _Count:
    """Fading counts: `right` of `tested`."""

    tested: float
    right: float


@dataclass
class RequestFactor:
    """How much better or worse than usual the drafts of one request do."""

    expected: float = 0.0
    right: float = 0.0

    def apply(self, usual: float) -> float:
        """Estimate for this request where `usual` holds for all of them."""
        prior = KAPPA * usual
        return min(CERTAIN, usual * (self.right + prior) / (self.expected + prior))

    def observe(self, usual: float, was_right: bool) -> None:
        """Count one tested node."""
        self.expected = REQUEST_MEMORY * self.expected + usual
        self.right = REQUEST_MEMORY * self.right + was_right


class Calibration:
    """Counts of one drafter.

    unknown  the first estimate of what is accepted at a depth, whatever the score
    """

    def __init__(self, unknown: float = UNKNOWN) -> None:
        self._counts: dict[tuple[int, int], _Count] = {}
        self.unknown = unknown
        self.num_tested = 0

    def usual(self, depth: int, score: float) -> float:
        """Probability that a node is accepted, given that its parent is. depth  1 below the root"""
        return self._estimate(_group(depth), bisect_right(SCORE_EDGES, score), score)

    def at_depth(self, depth: int) -> float:
        """The same, whatever the score: some child of an accepted node at `depth` - 1 is accepted."""
        return self._estimate(_group(depth), ANY_SCORE, self.unknown)

    def judge(self, factor: RequestFactor) -> Callable[[int, float], float]:
        """(depth, score) -> the same for a request with that factor."""
        return lambda depth, score: factor.apply(self.usual(depth, score))

    def observe(self, tree: DraftTree, tokens: Seq[int], factor: RequestFactor, num_rows: int | None = None) -> None:
        """Count the nodes of a proposal that the emitted tokens tested.

        tree      as its drafter proposed it, with the drafter's scores
        tokens    emitted, from the root's successor on
        num_rows  only so many nodes count: those of a drawn tree that were verified
        """
        on_path = {0}
        depths, parents = tree.depths, tree.parents
        is_right = [False] * (len(tokens) + 1)
        was_tested = [False] * (len(tokens) + 1)
        for row in range(1, len(tree) if num_rows is None else min(num_rows + 1, len(tree))):
            depth = depths[row]
            if depth > len(tokens) or parents[row] not in on_path:
                continue
            right = tree.tokens[row] == tokens[depth - 1]
            if right:
                on_path.add(row)
            was_tested[depth] = True
            is_right[depth] = is_right[depth] or right
            score = tree.score[row]
            group, bucket = _group(depth), bisect_right(SCORE_EDGES, score)
            factor.observe(self._estimate(group, bucket, score), right)
            self._add(group, bucket, score, right)
            self.num_tested += 1
        for depth in range(1, len(tokens) + 1):
            if was_tested[depth]:
                self._add(_group(depth), ANY_SCORE, self.unknown, is_right[depth])

    # ---- what is kept ----

    def to_json(self) -> list[list[float]]:
        """Depth group, range of scores, tested and right of every count."""
        return [[group, bucket, count.tested, count.right] for (group, bucket), count in sorted(self._counts.items())]

    @classmethod
    def from_json(cls, content: object, weight: float) -> "Calibration":
        """The counts of `to_json`, each as if it were of at most `weight` observations; nothing is tested yet.

        Raises ValueError, TypeError or OverflowError on what makes no sense.
        """
        if not isinstance(content, list):
            raise TypeError("a calibration is a list of counts")
        made = cls()
        for group, bucket, tested, right in content:
            is_known = group in DEPTHS and bucket in range(ANY_SCORE, len(SCORE_EDGES) + 1)
            if not (is_known and 0.0 < tested < math.inf and 0.0 <= right <= tested):
                raise ValueError(f"no count: {group}, {bucket}, {tested}, {right}")
            scale = min(1.0, weight / tested)
            made._counts[int(group), int(bucket)] = _Count(scale * tested, scale * right)
        return made

    # ---- estimates ----

    def _estimate(self, group: int, bucket: int, score: float) -> float:
        """Mean of the counts, drawn towards that one level up; at the top towards the score, as long as it is new."""
        counts = self._counts
        top = counts.get((1, bucket))
        mean = top.right / top.tested if top is not None else _first_guess(bucket, score)
        for level in range(2, group + 1):
            count = counts.get((level, bucket))
            if count is not None:
                mean = (count.right + LEVEL_KAPPA * mean) / (count.tested + LEVEL_KAPPA)
        return min(CERTAIN, mean)

    def _add(self, group: int, bucket: int, score: float, right: bool) -> None:
        count = self._counts.get((group, bucket))
        if count is None:
            prior = KAPPA if group == 1 else 0.0
            count = self._counts[group, bucket] = _Count(prior, prior * _first_guess(bucket, score))
        count.tested = MEMORY * count.tested + 1
        count.right = MEMORY * count.right + right


def scores_of_drawn(tree: DraftTree, calibration: Calibration, factor: RequestFactor) -> list[float]:
    """Scores for nodes drawn at random, by depth and rank among siblings alone: nothing that was drawn may decide
    whether a node is verified. The first sibling is the likeliest to be accepted."""
    families = Counter(tree.parents[1:])
    ranks: Counter[int] = Counter()
    scores = [1.0]
    for row in range(1, len(tree)):
        parent = tree.parents[row]
        size, rank = families[parent], ranks[parent]
        ranks[parent] += 1
        part = 0.5**rank / (2 - 0.5 ** (size - 1))
        scores.append(part * factor.apply(calibration.at_depth(tree.depths[row])))
    return scores


def _first_guess(bucket: int, score: float) -> float:
    """A score of 1 is what drafters give that have none."""
    if bucket == ANY_SCORE:
        return score
    return UNKNOWN if bucket == len(SCORE_EDGES) else max(0.01, score)


def _group(depth: int) -> int:
    return DEPTHS[min(depth, len(DEPTHS)) - 1]
