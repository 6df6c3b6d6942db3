"""From a row of logits to the tokens that may be drawn, with their log weights: one order, one function, float64.

    1  repetition penalty     tokens of prompt and output: positive logits divided by it, others multiplied
    2  frequency, presence    tokens of the output: z -= frequency * count + presence
    3  logit bias             z += bias
    4  forbidden ids          z = -inf for banned ones while position < banned_until, and where the row's mask is 0
       temperature 0          stop here: the largest z alone survives, the lowest id among equals
    5  temperature            log weight = (z - max z) / temperature, so the heaviest token has weight 1
    6  top-k                  exactly k tokens: z descending, id ascending
    7  top-p                  shortest prefix, in that order, whose weight reaches top_p of the weight that 6 left
    8  min-p                  log weight >= log(min_p)

Candidates are defined on values and ids, never on the state of a partial sort, so native code can select in any way.
Tokens whose log weight is -inf never survive. Ids outside the vocabulary are ignored; they are refused on arrival.
A row that holds NaN or +inf, before or after steps 1-4, or in which no finite value is left, is not finite: it yields
None, and the walk that met it stops there.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from forerun.batch import DrawRequest
from forerun.sampling.grammar import unpack

Float64 = npt.NDArray[np.float64]


class Survivors(NamedTuple):
    """Tokens that may be drawn.

    ids          [n] int64, ascending, n >= 1
    log_weights  [n] float64, finite, the largest is 0; not normalised
    """

    ids: npt.NDArray[np.int64]
    log_weights: Float64


class History:
    """What came before a row: the tree's row itself, distinct tokens, and how often the output holds each.

    node  row of the request's tree that the tokens lead to, whose mask holds; None off the tree
    """

    def __init__(self, request: DrawRequest) -> None:
        """Tokens before the root row's draw."""
        self.counts = dict(zip(request.history_ids.tolist(), request.history_counts.tolist(), strict=True))
        self.node: int | None = 0
        self._tree = request.tree

    def add(self, token: int) -> None:
        """Append one output token."""
        self.counts[token] = self.counts.get(token, 0) + 1
        self.node = None if self.node is None else self._tree.child(self.node, token)

    def copy(self) -> "History":
        """An independent copy, for another path."""
        other = History.__new__(History)
        other.counts, other.node, other._tree = dict(self.counts), self.node, self._tree
        return other


def is_finite(row: npt.NDArray[np.floating]) -> bool:
    """True when a row can be drawn from: no NaN, no +inf, and at least one value above -inf."""
    return bool(np.isfinite(row.max()))  # max propagates NaN


def adjust(row: npt.NDArray[np.float32], request: DrawRequest, position: int, history: History) -> Float64:
    """Steps 1-4 for the row whose token takes `position`: [V] float64."""
    z = row.astype(np.float64)
    if history.counts:
        ids = np.fromiter(history.counts.keys(), np.int64, len(history.counts))
        counts = np.fromiter(history.counts.values(), np.float64, len(history.counts))
        known = (ids >= 0) & (ids < len(z))
        ids, counts = ids[known], counts[known]
        before = z[ids]
        penalty = request.repetition_penalty
        penalised = np.where(before > 0, before / penalty, before * penalty)
        in_output = counts > 0
        z[ids] = penalised - (request.frequency_penalty * counts + request.presence_penalty * in_output)
    known = (request.bias_ids >= 0) & (request.bias_ids < len(z))
    z[request.bias_ids[known]] += request.bias_values[known]
    if position < request.banned_until:
        z[request.banned[(request.banned >= 0) & (request.banned < len(z))]] = -np.inf
    if request.masks is not None and history.node is not None:
        z[~unpack(request.masks[history.node], len(z))] = -np.inf
    return z


def process(row: npt.NDArray[np.float32], request: DrawRequest, position: int, history: History) -> Survivors | None:
    """Tokens that may be drawn from a row [V] for the token at `position`, or None when the row is not finite."""
    if not is_finite(row):
        return None
    with np.errstate(over="ignore", invalid="ignore"):  # an overflowing penalty is caught by the next line
        z = adjust(row, request, position, history)
    if not is_finite(z):
        return None
    if request.temperature == 0.0:
        return Survivors(np.array([int(z.argmax())], np.int64), np.zeros(1))
    with np.errstate(over="ignore"):  # a tiny temperature leaves only the largest
        log_weights = (z - z.max()) / request.temperature
    ids = np.flatnonzero(log_weights > -np.inf)
    for keep in (_top_k, _top_p, _min_p):
        kept = keep(z[ids], log_weights[ids], request)
        if kept is not None:
            ids = ids[np.sort(kept)]
    return Survivors(ids, log_weights[ids])


def processed_probs(
    row: npt.NDArray[np.float32], request: DrawRequest, position: int, history: History
) -> Float64 | None:
    """The distribution that a draw from the row follows: [V] float64 that sums to 1, or None when not finite."""
    survivors = process(row, request, position, history)
    if survivors is None:
        return None
    probs = np.zeros(len(row))
    weights = np.exp(survivors.log_weights)
    probs[survivors.ids] = weights / weights.sum()
    return probs


# ---- steps 6-8: indices of what stays among candidates in ascending id order, None when the filter is off ----

_Kept = npt.NDArray[np.intp] | None
_Filter = Callable[[Float64, Float64, DrawRequest], _Kept]
_MOST_PREFIXES = 512  # longer than most texts need for any usual top_p


def _heaviest(z: Float64, count: int) -> npt.NDArray[np.intp]:
    """Indices of the `count` largest and of all that equal the last of them: z descending, id ascending."""
    least = np.partition(z, len(z) - count)[len(z) - count] if count < len(z) else -np.inf
    kept = np.flatnonzero(z >= least)
    return kept[np.argsort(-z[kept], kind="stable")]  # stable: equal values stay in id order


def _top_k(z: Float64, log_weights: Float64, request: DrawRequest) -> _Kept:
    if not 0 < request.top_k < len(z):
        return None
    return _heaviest(z, request.top_k)[: request.top_k]


def _top_p(z: Float64, log_weights: Float64, request: DrawRequest) -> _Kept:
    if request.top_p >= 1.0:
        return None
    weights = np.exp(log_weights)
    wanted = request.top_p * weights.sum()
    for count in (_MOST_PREFIXES, len(z)):  # sorting everything is slow, and hardly ever needed
        order = _heaviest(z, count)
        reached = np.cumsum(weights[order]) >= wanted
        if reached.any():
            return order[: int(reached.argmax()) + 1]
    return order


def _min_p(z: Float64, log_weights: Float64, request: DrawRequest) -> _Kept:
    if request.min_p <= 0.0:
        return None
    return np.flatnonzero(log_weights >= math.log(request.min_p))
