"""Typical acceptance: LOSSY. Keeps drafted tokens that the target finds likely enough, whatever it would have drawn.

A node is accepted when its parent is and p(x) > min(epsilon, delta * exp(-H(p))): in an uncertain place (large entropy
H) less is asked of it. The deepest accepted node wins, among equals the path that the target finds most likely. The
token behind it, the root of the next draft, is the most likely one, so every step yields at least one token of greedy
decoding. What comes out is neither a sample of the target nor its greedy text.

Source: Cai et al., "Medusa", arXiv:2401.10774, section 2.3.1.
Differs: works on the distribution after temperature and filters.
"""

import math

import numpy as np

from forerun.sampling.chance import Chance
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.rule import Probs, ProbsOf, Verdict

EPSILON, DELTA = 0.09, 0.3


def accept_typical(tree: DraftTree, probs: ProbsOf, chance: Chance) -> Verdict:
    """The deepest path of typical tokens and the most likely token behind it. Makes no random decision."""
    best = (0, 0.0, 0)  # depth, log-probability of the path, -row: the lowest row among equals
    path_logprob = {0: 0.0}
    for row in range(1, len(tree)):
        parent = tree.parents[row]
        if parent not in path_logprob:
            continue
        p = probs(parent)
        if p is None or not p[tree.tokens[row]] > threshold(p):
            continue
        path_logprob[row] = path_logprob[parent] + math.log(p[tree.tokens[row]])
        best = max(best, (tree.depths[row], path_logprob[row], -row))
    deepest = -best[2]
    p = probs(deepest)
    return Verdict(tree.path(deepest), None if p is None else int(p.argmax()))


def threshold(p: Probs) -> float:
    """The probability that a token must exceed."""
    some = p[p > 0]
    entropy = -float((some * np.log(some)).sum())
    return min(EPSILON, DELTA * math.exp(-entropy))
