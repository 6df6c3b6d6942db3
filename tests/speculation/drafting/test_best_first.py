"""best_first against every tree there is, and what heads take for successors under each verification."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.drafting.best_first import best_first
from forerun.speculation.drafting.candidates import Candidates
from forerun.speculation.drafting.chooser import Chooser


def random_expand(seed, width=3):
    """Successors of any path, scores falling."""

    def expand(path):
        rng = np.random.default_rng([seed, *path])
        scores = np.sort(rng.dirichlet(np.ones(width)))[::-1]
        return Candidates(tuple(rng.permutation(10)[:width].tolist()), tuple(scores.tolist()))

    return expand


def pairs_of(found):
    return zip(found.tokens, found.scores, strict=True)


def every_value(expand, max_depth):
    """Values of all nodes down to a depth."""
    values, level = [], [((), 1.0)]
    for _ in range(max_depth):
        level = [((*path, token), value * score) for path, value in level for token, score in pairs_of(expand(path))]
        values += [value for _, value in level]
    return sorted(values, reverse=True)


@pytest.mark.parametrize(("seed", "max_nodes", "max_depth"), [*itertools.product(range(6), (1, 4, 11), (1, 2, 4))])
def test_the_tree_holds_the_most_likely_nodes(seed, max_nodes, max_depth):
    expand = random_expand(seed)
    tree = best_first(7, max_nodes, max_depth, expand, "head")
    want = every_value(expand, max_depth)[:max_nodes]
    np.testing.assert_allclose(sorted(tree.survival[1:], reverse=True), want)
    assert max(tree.depths) <= max_depth
    assert tree.source == "head"
    assert tree.tokens[0] == 7


def test_each_path_is_expanded_once_and_only_where_it_may_go_on():
    asked = []

    def expand(path):
        asked.append(tuple(path))
        return random_expand(1)(path)

    tree = best_first(7, 6, 3, expand, "head")
    assert len(asked) == len(set(asked)) <= 6
    assert all(len(path) < 3 for path in asked)
    assert tree.num_nodes == 6


def test_nothing_to_propose():
    assert best_first(7, 6, 3, lambda path: Candidates((), ()), "head") is None


def chooser(verification, temperature, width=4):
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=9)
    sequence = Sequence(0, Request("r", (1, 2), params), 0, 1, (5, 6), [1, 2], 2)
    spec = SimpleNamespace(vocab_size=20)
    host = SimpleNamespace(verification=verification, target=SimpleNamespace(model=SimpleNamespace(spec=spec)))
    return Chooser(sequence, np.where(np.arange(24) < 20, np.arange(24), -1).astype(np.int32), width, host)


ROW = np.random.default_rng(3).standard_normal(24).astype(np.float32)


@pytest.mark.parametrize(
    ("verification", "temperature", "is_drawn"),
    [("coupled", 0.8, False), ("coupled", 0.0, False), ("rejection", 0.0, False), ("rejection", 0.8, True)],
)
def test_only_rejection_of_sampled_requests_draws(verification, temperature, is_drawn):
    found = chooser(verification, temperature).successors(ROW, ())
    assert len(found.tokens) == (1 if is_drawn else 4)
    assert (found.probs is not None) == is_drawn
    assert all(token < 20 for token in found.tokens)


def test_drawn_nodes_form_a_chain_with_what_they_were_drawn_from():
    chosen = chooser("rejection", 0.8)
    tree = best_first(2, 8, 3, lambda path: chosen.successors(ROW, path), "head")
    assert tree.is_chain
    assert tree.num_nodes == 3
    assert sorted(tree.draft_probs) == [0, 1, 2]
    for row, probs in tree.draft_probs.items():
        assert probs.sum() == pytest.approx(1.0)
        assert probs[tree.tokens[row + 1]] > 0
