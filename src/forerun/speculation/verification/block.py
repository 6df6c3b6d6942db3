"""Block verification of a chain: the target's distribution again, and the longest drafts that any such rule accepts.

Where rejection judges token by token, this judges prefixes: `weight` is how likely a prefix of the draft is under the
target compared with the draft, capped at 1 at every token, and a prefix of length i is kept when its own coin says so,
whatever the coins of shorter ones said. The longest kept prefix is accepted, and the token behind it comes from what
of weight * p exceeds q there.

    weight_0 = 1       weight_i = min(1, weight_{i-1} * p_{i-1}(x_i) / q_{i-1}(x_i))
    excess_i = sum over x of max(weight_i * p_i(x) - q_i(x), 0)
    kept_i with probability excess_i / (excess_i + 1 - weight_i); at the last node with probability weight_i

Needs the distributions of all rows, since a later prefix may be kept when an earlier one was not.

A tree is a chain up to its first fork. That much is verified so, and when all of it is accepted the rest goes through
rejection. (To ask whether the whole tree is a chain would not do: tokens drawn far down may decide that.)

Source: Sun et al., "Block Verification Accelerates Speculative Decoding", arXiv:2403.10444.
Differs: trees, see above. A chain with a row that is not finite is taken to end there.
"""

from typing import Any, NamedTuple

import numpy as np

from forerun.sampling.chance import Chance
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.rejection import reject_from
from forerun.speculation.verification.rule import Probs, ProbsOf, Verdict, excess


def verify_block(tree: DraftTree, probs: ProbsOf, chance: Chance) -> Verdict:
    """Accepted path and the token behind it."""
    stem = _stem(tree)
    kept = _keep(stem, tree, probs, chance) if probs(0) is not None else _Kept(0, None)
    accepted = stem[: kept.depth]
    if kept.leftover is not None:
        return Verdict(accepted, chance.pick(kept.leftover))
    below = reject_from(accepted[-1] if accepted else 0, tree, probs, chance)
    return Verdict((*accepted, *below.accepted), below.last)


class _Kept(NamedTuple):
    """depth     kept rows of the stem
    leftover  weights of the token behind them; None when all of the stem is kept, or all that is finite
    """

    depth: int
    leftover: Probs | None


def _stem(tree: DraftTree) -> tuple[int, ...]:
    """Rows below the root down to the first fork, the root left out."""
    stem: list[int] = []
    children = tree.children(0)
    while len(children) == 1:
        stem.append(children[0])
        children = tree.children(children[0])
    return tuple(stem)


def _keep(stem: tuple[int, ...], tree: DraftTree, probs: ProbsOf, chance: Chance) -> _Kept:
    """The longest prefix of the stem whose coin says so."""
    kept = _Kept(0, None)
    weight: Any = 1
    for depth, (row, child) in enumerate(zip((0, *stem), stem, strict=False)):
        p = probs(row)
        if p is None:
            return _Kept(depth, None) if depth == 0 or chance.accept(weight, 1) else kept
        q = _draft(tree, row, child, p)
        mass = np.maximum(weight * p - q, 0).sum()
        whole = mass + (1 - weight)
        if depth == 0 or whole == 0 or chance.accept(mass, whole):
            kept = _Kept(depth, excess(weight * p, q))
        token = tree.tokens[child]
        weight = _capped(weight * p[token], q[token])
        if not weight > 0:  # the target says nothing that begins so
            return kept
    return _Kept(len(stem), None) if chance.accept(weight, 1) else kept


def _draft(tree: DraftTree, row: int, child: int, like: Probs) -> Probs:
    """The distribution that `child` of `row` was drawn from; all on it when it was chosen."""
    q = tree.draft_probs.get(row)
    if q is None:
        q = np.zeros_like(like)
        q[tree.tokens[child]] = 1
    return q


def _capped(part: Any, whole: Any) -> Any:
    """min(1, part / whole), 0 when `part` is."""
    return part / whole if part < whole else (1 if part > 0 else 0)
