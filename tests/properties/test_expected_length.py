"""Accepted lengths follow their formula: with every token right with probability a, independently, a step of a draft
of k tokens yields (1 - a^(k+1)) / (1 - a) of them on average.

Every mean is of at least 3 000 drafts and must lie within 4 standard errors of the formula (a sound engine fails one
run in 16 000, and seeds are fixed); a rate wrong by 0.03 lies further out.
"""

import itertools
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest

from forerun import engine as engine_module
from forerun.speculation.tree import DraftTree
from tests.fakes import FakeBackend, Setup, Stateless, path_logits, request, run
from tests.sampling_drafter import SamplingDrafter, chain_shape

VOCAB = 4
REQUESTS, TOKENS = 60, 240
LEAST_DRAFTS = 3000


BY_TOKEN = np.stack([path_logits((token,), VOCAB) for token in range(VOCAB)])
TARGET = np.log(np.array([0.4, 0.3, 0.2, 0.1])).astype(np.float32)
P = np.exp(TARGET.astype(float))
P /= P.sum()


class TokenModel(FakeBackend):
    """Logits from the row's own token; the KV store is tested elsewhere and costs time. logits  [V, V]"""

    def __init__(self, logits):
        super().__init__()
        self._rows = logits

    def forward(self, batch):
        rows = [self._rows[batch.tokens[row]] for row in batch.output_rows]
        return SimpleNamespace(rows=rows, logits=lambda outputs: np.stack([rows[output] for output in outputs]))


class Counting(Stateless):
    """Another drafter's full drafts, and how many tokens each of them brought."""

    name = "counting"

    def __init__(self, tree, depth):
        self._tree, self._depth, self.lengths = tree, depth, []

    def tree(self, ask):
        return self._tree(ask) if ask.max_depth >= self._depth else None

    def observe(self, seen):
        self.lengths += [len(one.outcome.tokens) for one in seen if one.outcome.tree.num_nodes == self._depth]


def lengths(tree, depth, verification, logits, **options):
    """Tokens that each draft of `depth` brought."""
    drafter, vocab = Counting(tree, depth), len(logits)
    setup = Setup(
        drafter=drafter,
        max_depth=depth,
        prefill_slowdown=1e9,  # how much is drafted does not depend on time
        num_blocks=400,
        max_num_seqs=8,
        max_model_len=TOKENS + 10,
        prefix_caching=False,
        backend=TokenModel(logits),
        vocab=vocab,
        verification=verification,
    )
    engine = setup.engine()
    engine.check = lambda: None  # tested elsewhere
    options = {"ignore_eos": True, "logits_hash": False, "seed": None, **options}
    requests = [request((1, number % vocab), max_tokens=TOKENS, **options) for number in range(REQUESTS)]
    run(engine, requests, max_steps=10**6)
    assert len(drafter.lengths) >= LEAST_DRAFTS
    return np.array(drafter.lengths)


@pytest.fixture(autouse=True)
def repeatable_seeds(monkeypatch):
    monkeypatch.setattr(engine_module, "random_seed", itertools.count().__next__)


def moments(rate, depth):
    """Mean and standard deviation of the tokens that a draft brings."""
    probabilities = np.array([*(rate**n * (1 - rate) for n in range(depth)), rate**depth])
    values = np.arange(1, depth + 2)
    mean = float((probabilities * values).sum())
    assert math.isclose(mean, (1 - rate ** (depth + 1)) / (1 - rate))
    return mean, math.sqrt(float((probabilities * (values - mean) ** 2).sum()))


def is_near(found, mean, deviation):
    return abs(found.mean() - mean) < 4 * deviation / math.sqrt(len(found))


def scripted(rate, depth, seed):
    """Drafts the greedy continuation, every token spoilt with probability 1 - rate."""
    coins = random.Random(seed)

    def tree(ask):
        path = list(ask.sequence.tokens)
        for _ in range(depth):
            right = int(BY_TOKEN[path[-1]].argmax())
            path.append(right if coins.random() < rate else (right + 1) % VOCAB)
        return DraftTree.chain(ask.sequence.tokens[-1], path[-depth:])

    return tree


@pytest.mark.parametrize("verification", ["coupled", "rejection", "block", "typical"])
@pytest.mark.parametrize(("rate", "depth"), [(0.8, 4), (0.5, 2)])
def test_scripted_drafts_of_greedy_requests(rate, depth, verification):
    found = lengths(scripted(rate, depth, 1), depth, verification, BY_TOKEN)
    assert is_near(found, *moments(rate, depth))
    assert not is_near(found, *moments(rate - 0.03, depth))


def overlapping(rate):
    """A draft distribution that overlaps with the target's by `rate`."""
    q = P.copy()
    q[0] -= 1 - rate
    q[3] += 1 - rate
    assert math.isclose(np.minimum(P, q).sum(), rate)
    return q


@pytest.mark.parametrize(("rate", "depth"), [(0.75, 3), (0.9, 5)])
def test_drawn_drafts_under_rejection(rate, depth):
    q = overlapping(rate)
    drafter = SamplingDrafter(lambda path: q, chain_shape(depth))
    found = lengths(drafter.tree, depth, "rejection", np.tile(TARGET, (VOCAB, 1)), temperature=1.0)
    assert is_near(found, *moments(rate, depth))
    assert not is_near(found, *moments(rate - 0.03, depth))


def test_blocks_accept_more_by_the_exact_amount():
    """p = (1/3, 2/3), q = (2/3, 1/3), two tokens: 11/9 accepted where rejection accepts 10/9."""
    target, draft = np.log(np.array([1, 2]) / 3).astype(np.float32), np.array([2, 1]) / 3
    drafter = SamplingDrafter(lambda path: draft, chain_shape(2))
    found = lengths(drafter.tree, 2, "block", np.tile(target, (2, 1)), temperature=1.0)
    deviation = float(found.std())
    assert is_near(found, 1 + 11 / 9, deviation)
    assert not is_near(found, 1 + 10 / 9, deviation)
