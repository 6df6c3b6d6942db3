"""Which sub-layers may a model leave out when it drafts for itself? A search over sets of sub-layers.

Place: beside the engine; bench/layer_skip measures what a set costs in agreement and asks here which set to try next.

Leaving sub-layers out makes a drafted token cheaper (c, its part of a whole pass) and rarer accepted (alpha). With
drafts of k tokens a step yields E(alpha, k) = 1 + alpha + .. + alpha^k tokens and costs 1 + k c passes, so

    S = max over k of E(alpha, k) / (1 + k c)

is the speed-up to hope for, and what is maximised. Leaving nothing out gives S = 1.

Source: Draft & Verify, J. Zhang et al., arXiv:2309.08168; SWIFT, H. Xia et al., arXiv:2410.06916.
Differs: a greedy start, then random swaps instead of Bayesian optimisation; agreement is measured on given text instead
of timed generation. The greedy start is lazy: a sub-layer is measured again only when its old figure is the best one.
"""

import heapq
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

MAX_DRAFT = 15  # longest draft that S is computed for
MIN_ALPHA = 0.25  # the greedy start ends where so little is accepted

Skip = frozenset[str]


@dataclass(frozen=True)
class Agreement:
    """How often a pass without some sub-layers says what the whole model says, averaged over positions.

    same_token  both have the same likeliest token: acceptance of greedy drafts
    overlap     sum over tokens of the smaller probability: acceptance of sampled drafts at best
    """

    same_token: float
    overlap: float

    @property
    def alpha(self) -> float:
        """What is taken for acceptance: requests are greedy or sampled."""
        return (self.same_token + self.overlap) / 2


@dataclass(frozen=True)
class Found:
    """A set of sub-layers and what is expected of it.

    cost     bytes of weights a drafted token reads, as a part of the whole model's
    speedup  S for the agreement's alpha
    depth    the draft length k that gives it
    """

    skip: Skip
    agreement: Agreement
    cost: float
    speedup: float
    depth: int


def expected_speedup(alpha: float, cost: float, max_draft: int = MAX_DRAFT) -> tuple[float, int]:
    """(S, the draft length that gives it) for acceptance `alpha` and a drafted token's `cost`, in whole passes."""
    best, best_depth, expected, power = 0.0, 1, 1.0, 1.0
    for depth in range(1, max_draft + 1):
        power *= alpha
        expected += power
        speedup = expected / (1 + depth * cost)
        if speedup > best:
            best, best_depth = speedup, depth
    return best, best_depth


@dataclass(frozen=True)
class Budget:
    """When a search ends. `is_over` is asked before every measurement; a clock in it lets time decide the result."""

    max_measurements: int = 400
    is_over: Callable[[], bool] = lambda: False


def search(
    sizes: Mapping[str, int],
    total: int,
    measure: Callable[[Skip], Agreement],
    seed: int,
    budget: Budget,
) -> Found | None:
    """The best set that was measured, None when nothing was. Same answers and seed, same result.

    sizes    sub-layers that may be left out, with the bytes of weights they read
    total    bytes of weights that the whole model reads, the output matrix included
    measure  agreement of the model without a set of sub-layers
    """
    trials = _Trials(sizes, total, measure, budget)
    _grow(trials)
    _swap(trials, random.Random(seed))
    return trials.best


class _Trials:
    """Measurements so far, and the best of them."""

    def __init__(
        self, sizes: Mapping[str, int], total: int, measure: Callable[[Skip], Agreement], budget: Budget
    ) -> None:
        self.sizes = sizes
        self.best: Found | None = None
        self._total, self._measure, self._budget = total, measure, budget
        self._known: dict[Skip, Found] = {}

    @property
    def has_budget(self) -> bool:
        return len(self._known) < self._budget.max_measurements and not self._budget.is_over()

    def is_known(self, skip: Skip) -> bool:
        return skip in self._known

    def found(self, skip: Skip) -> Found:
        """Measure a set, once."""
        known = self._known.get(skip)
        if known is None:
            agreement = self._measure(skip)
            cost = 1 - sum(self.sizes[name] for name in skip) / self._total
            known = Found(skip, agreement, cost, *expected_speedup(agreement.alpha, cost))
            self._known[skip] = known
            if self.best is None or known.speedup > self.best.speedup:
                self.best = known
        return known


def _grow(trials: _Trials) -> None:
    """Leave out one sub-layer after the other, always the one that costs least agreement for its bytes."""
    skip: Skip = frozenset()
    alpha = 1.0
    queue: list[tuple[float, str]] = []

    def loss(name: str) -> tuple[float, float]:
        left = trials.found(skip | {name}).agreement.alpha
        return (alpha - left) / trials.sizes[name], left

    for name in trials.sizes:
        if not trials.has_budget:
            return
        heapq.heappush(queue, (loss(name)[0], name))
    while queue and alpha >= MIN_ALPHA and trials.has_budget:
        _, name = heapq.heappop(queue)
        fresh, left = loss(name)
        if queue and fresh > queue[0][0]:
            heapq.heappush(queue, (fresh, name))
        else:
            skip |= {name}
            alpha = left


def _swap(trials: _Trials, rng: random.Random) -> None:
    """From the best set: take a sub-layer in, leave another out, or both, and keep what is better."""
    names = sorted(trials.sizes)
    misses = 0
    while trials.best is not None and trials.has_budget and misses < 20 * len(names):
        skip = set(trials.best.skip)
        inside, outside = sorted(skip), [name for name in names if name not in skip]
        move = rng.choice(("add", "drop", "swap"))
        if move in ("drop", "swap") and inside:
            skip.discard(rng.choice(inside))
        if move in ("add", "swap") and outside:
            skip.add(rng.choice(outside))
        if not skip or trials.is_known(frozenset(skip)):
            misses += 1  # few sets are left near the best one
            continue
        trials.found(frozenset(skip))
