"""Verification by rejection: every token of the output has exactly the target's distribution.

Walks down from the root. A row whose children were drawn, without replacement in row order, from q: each child x in
turn is accepted with probability min(1, p(x) / q(x)); where it is not, p becomes what of p exceeds q, and q loses x.
When no child is left the token is drawn from what has become of p. A row whose children were chosen is the case of a
certain q, where this is: draw a token from p, and go on if a child holds it. Only rows on the walked path are used.

    p = (.5 .3 .2)   q = (.2 .6 .2)   child 1: accepted with probability .3 / .6, else p -> (.3 0 0) / .3: token 0

Nothing here is keyed by position, so the tokens of a seed depend on the drafts.

Source: Leviathan et al., arXiv:2211.17192 and Chen et al., arXiv:2302.01318 for chains; Sequoia, Chen et al.,
arXiv:2402.12374, for trees without replacement.
Differs: a residual without mass, which only rounding can cause, is replaced by the distribution that it came from.
"""

from typing import NamedTuple

from forerun.sampling.chance import Chance
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.rule import Probs, ProbsOf, Verdict, excess


def reject(tree: DraftTree, probs: ProbsOf, chance: Chance) -> Verdict:
    """Accepted path and the token behind it."""
    return reject_from(0, tree, probs, chance)


def reject_from(row: int, tree: DraftTree, probs: ProbsOf, chance: Chance) -> Verdict:
    """The walk below `row`: the accepted rows there and the token behind them."""
    accepted: list[int] = []
    while (p := probs(row)) is not None:
        place = _descend(tree, row, p, chance)
        if place.child is None:
            return Verdict(tuple(accepted), place.token)
        row = place.child
        accepted.append(row)
    return Verdict(tuple(accepted), None)


class _Place(NamedTuple):
    child: int | None
    token: int


def _descend(tree: DraftTree, row: int, p: Probs, chance: Chance) -> _Place:
    """The token that follows `row`, and the child that holds it."""
    q = tree.draft_probs.get(row)
    if q is None:
        token = chance.pick(p)
        return _Place(tree.child(row, token), token)
    for child in tree.children(row):
        token = tree.tokens[child]
        if chance.accept(p[token], q[token]):
            return _Place(child, token)
        p = excess(p, q)
        p = p / p.sum()
        q = q.copy()
        q[token] = 0
        left = q.sum()
        if not left > 0:  # everything that could be drawn was drawn
            break
        q = q / left
    return _Place(None, chance.pick(p))
