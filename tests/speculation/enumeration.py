"""Exact laws: every draft and every decision of a verification rule in turn, added up in fractions.

The rules that run in the engine are the ones enumerated here: only their numbers and their Chance differ.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction

import numpy as np

from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.rule import Rule, Verdict

Dist = np.ndarray  # [V] of Fraction
Model = Callable[[tuple[int, ...]], Dist]  # tokens since the root, the root left out -> what follows
Shape = tuple[int, ...]  # parents of all rows, the root included

ROOT = 0  # the root's own token, which no rule looks at


class Script:
    """A Chance that takes given branches, then the first of each, and notes the branches it left out."""

    def __init__(self, given: tuple[int, ...]) -> None:
        self._given = given
        self._taken: list[int] = []
        self.probability = Fraction(1)
        self.others: list[tuple[int, ...]] = []

    def _decide(self, options: list[tuple[object, Fraction]]) -> object:
        options = [option for option in options if option[1] > 0]
        at = len(self._taken)
        if at < len(self._given):
            choice = self._given[at]
        else:
            choice = 0
            self.others += [(*self._taken, other) for other in range(1, len(options))]
        self._taken.append(choice)
        self.probability *= options[choice][1]
        return options[choice][0]

    def accept(self, part: Fraction, whole: Fraction) -> bool:
        yes = Fraction(1) if part >= whole and part > 0 else (Fraction(part) / whole if part > 0 else Fraction(0))
        return bool(self._decide([(True, yes), (False, 1 - yes)]))

    def pick(self, weights: Dist) -> int:
        total = Fraction(sum(weights))
        assert total > 0, "a pick without weight"
        return int(self._decide([(i, w / total) for i, w in enumerate(weights)]))


def verdicts(rule: Rule, tree: DraftTree, p: Model) -> Iterator[tuple[Fraction, Verdict]]:
    """Every outcome of a rule on a tree, with its probability."""

    def probs(row: int) -> Dist:
        return p(tuple(tree.tokens[node] for node in tree.path(row)))

    pending: list[tuple[int, ...]] = [()]
    while pending:
        script = Script(pending.pop())
        yield_of = rule(tree, probs, script)
        pending += script.others
        yield script.probability, yield_of


def drafts(shape: Shape, q: Model, chosen: Mapping[int, tuple[int, ...]]) -> Iterator[tuple[Fraction, DraftTree]]:
    """Every tree of a shape with its probability: children drawn without replacement from q, row after row.

    chosen  rows whose children are not drawn but these tokens
    """

    def grow(probability: Fraction, tokens: list[int], rows: dict[int, int], parents: list[int]) -> Iterator:
        node = 1 + max(rows)  # rows: node of the shape -> row of the tree, -1 when nothing was left to draw
        if node == len(shape):
            yield probability, tokens, parents
            return
        parent = rows[shape[node]]
        siblings = [tokens[r] for r in range(1, len(tokens)) if parents[r] == parent] if parent >= 0 else []
        if parent in chosen:
            options = [(chosen[parent][len(siblings)], Fraction(1))]
        else:
            left = (
                [0 if t in siblings else w for t, w in enumerate(q(path(tokens, parents, parent)))]
                if parent >= 0
                else []
            )
            options = [(t, Fraction(w) / sum(left)) for t, w in enumerate(left) if w > 0]
        if not options:
            yield from grow(probability, tokens, {**rows, node: -1}, parents)
        for token, share in options:
            yield from grow(probability * share, [*tokens, token], {**rows, node: len(tokens)}, [*parents, parent])

    for probability, tokens, parents in grow(Fraction(1), [ROOT], {0: 0}, [-1]):
        drawn = sorted(set(parents[1:]) - set(chosen))
        probs = {row: q(path(tokens, parents, row)) for row in drawn}
        yield probability, DraftTree(tuple(tokens), tuple(parents), (1.0,) * len(tokens), draft_probs=probs)


def path(tokens: list[int], parents: list[int], row: int) -> tuple[int, ...]:
    """Tokens from the root's child down to a row."""
    found: list[int] = []
    while row > 0:
        found.append(tokens[row])
        row = parents[row]
    return tuple(reversed(found))


def said(tree: DraftTree, verdict: Verdict) -> tuple[int, ...]:
    """Tokens that a verdict emits."""
    assert verdict.last is not None
    return (*(tree.tokens[row] for row in verdict.accepted), verdict.last)


def output_law(
    rule: Rule,
    shape: Shape,
    p: Model,
    q: Model,
    length: int,
    cut: Callable[[DraftTree], DraftTree] = lambda tree: tree,
    chosen: Mapping[int, tuple[int, ...]] | None = None,
) -> dict[tuple[int, ...], Fraction]:
    """Law of the first `length` tokens: one verified draft, then the target by itself."""
    law: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    for draft_probability, whole in drafts(shape, q, chosen or {}):
        tree = cut(whole)
        for probability, verdict in verdicts(rule, tree, p):
            add(law, said(tree, verdict), draft_probability * probability, p, length)
    return {tokens: probability for tokens, probability in law.items() if probability}


def add(law: dict[tuple[int, ...], Fraction], tokens: tuple[int, ...], mass: Fraction, p: Model, length: int) -> None:
    """Add `mass` to the continuations of `tokens` that have `length` tokens."""
    if len(tokens) >= length:
        law[tokens[:length]] += mass
        return
    for token, share in enumerate(p(tokens)):
        if share:
            add(law, (*tokens, token), mass * share, p, length)


def target_law(p: Model, length: int) -> dict[tuple[int, ...], Fraction]:
    """Law of the target's first `length` tokens."""
    law: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    add(law, (), Fraction(1), p, length)
    return dict(law)


def mean_accepted(rule: Rule, shape: Shape, p: Model, q: Model) -> Fraction:
    """Expected number of accepted nodes."""
    return sum(
        (
            mass * probability * len(verdict.accepted)
            for mass, tree in drafts(shape, q, {})
            for probability, verdict in verdicts(rule, tree, p)
        ),
        Fraction(0),
    )


# ---- models ----


def dist(*weights: int) -> Dist:
    """Weights over their sum, as fractions."""
    total = sum(weights)
    return np.array([Fraction(weight, total) for weight in weights], object)


class RandomModel:
    """A distribution of its own for every context, from small whole weights; `zeros` makes about half of them 0."""

    def __init__(self, seed: int, vocab: int, zeros: bool = False, certain: bool = False) -> None:
        self._random, self._vocab, self._zeros, self._certain = random.Random(seed), vocab, zeros, certain
        self._rows: dict[tuple[int, ...], Dist] = {}

    def __call__(self, context: tuple[int, ...]) -> Dist:
        if context not in self._rows:
            weights = [self._random.randint(1, 5) for _ in range(self._vocab)]
            keep = self._random.randrange(self._vocab)
            for token in range(self._vocab):
                is_dropped = self._certain or (self._zeros and self._random.random() < 0.5)
                if token != keep and is_dropped:
                    weights[token] = 0
            self._rows[context] = dist(*weights)
        return self._rows[context]
