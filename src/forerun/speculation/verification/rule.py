"""Rule: a way to verify a draft that needs distributions, not only the target's draws.

A rule is a function of a tree, the target's distribution on its rows, and a Chance. It computes with whatever numbers
the distributions hold, float64 in the engine and fractions in the tests, so the code that runs is the code whose
outcomes are added up exactly.

Stop-rule law: which nodes are verified may depend on the context, on the distributions that nodes were drawn from and
on earlier tokens, never on what was drawn at the node itself. So drawn trees are cut in the order of their rows
(DraftTree.prune), and the tokens of a drawn tree must not have decided how many rows it has. With two equally likely
tokens, "do not submit token 1" would make three answers of four token 0. Chosen nodes are free of this law.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from forerun.sampling.chance import Chance
from forerun.speculation.tree import DraftTree

Probs = npt.NDArray[Any]  # [V] non-negative, float64 or fractions
ProbsOf = Callable[[int], Probs | None]  # row -> the target's distribution there, None when the row is not finite


class Verdict(NamedTuple):
    """accepted  rows on the accepted path, in depth order
    last      the token behind them; None when the row it would come from is not finite
    """

    accepted: tuple[int, ...]
    last: int | None


class Rule(Protocol):
    """Decides which path of a tree is accepted and what follows it. Asks for rows whose parents it has asked for."""

    def __call__(self, tree: DraftTree, probs: ProbsOf, chance: Chance, /) -> Verdict: ...


def excess(p: Probs, q: Probs) -> Probs:
    """What of `p` exceeds `q`, not normalised: [V]. `p` itself where nothing does, which only rounding can cause."""
    left = np.maximum(p - q, 0)
    return left if left.sum() > 0 else p


def has_sound_probs(tree: DraftTree, vocab_size: int) -> bool:
    """True when every draft distribution is one, over the target's ids, and can have yielded the children."""
    return all(_is_sound(tree, row, q, vocab_size) for row, q in tree.draft_probs.items())


def _is_sound(tree: DraftTree, row: int, q: npt.NDArray[np.float64], vocab_size: int) -> bool:
    if q.dtype != np.float64 or q.shape != (vocab_size,) or not 0 <= row < len(tree):
        return False
    is_distribution = bool(q.min() >= 0.0) and abs(float(q.sum()) - 1.0) < 1e-6  # NaN fails both
    tokens = [tree.tokens[child] for child in tree.children(row)]
    return is_distribution and all(0 <= token < vocab_size and q[token] > 0.0 for token in tokens)
