"""A model of three tokens whose pairs of tokens have a known joint distribution, and the test of what an engine draws.

At even positions tokens come from one row, at odd positions from a row that the token before chooses. So a request of
2k tokens is k independent pairs with a known joint distribution of 9 cells.

Power: 36 000 pairs at a false-alarm rate of 1e-3 find a total variation of 0.02 with probability above .99;
test_distribution.py measures that. Seeds are fixed, so a pass or a failure repeats.
"""

import itertools
from functools import lru_cache
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np

from forerun import engine as engine_module
from forerun.sampling import noise
from tests.fakes import FakeBackend, Setup, request, run

V = 3
PAIRS_PER_REQUEST = 150
REQUESTS = 240
NUM_PAIRS = PAIRS_PER_REQUEST * REQUESTS
CONTROL_REQUESTS = 40  # the controls are coarse
PROMPT = (1, 2)
CRITICAL = 26.12  # chi-squared, 8 degrees of freedom, 1e-3

EVEN = np.log(np.array([0.5, 0.3, 0.2])).astype(np.float32)
ODD = np.log(np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1], [0.15, 0.25, 0.6]])).astype(np.float32)
JOINT = (np.exp(EVEN.astype(float))[:, None] * np.exp(ODD.astype(float))).ravel()
JOINT /= JOINT.sum()


class PairModel(FakeBackend):
    """Logits from the row's own token and position; the KV store is tested elsewhere and costs time."""

    def forward(self, batch):
        rows = [ODD[batch.tokens[r]] if batch.positions[r] % 2 == 0 else EVEN for r in batch.output_rows]
        return SimpleNamespace(rows=rows, logits=lambda outputs: np.stack([rows[output] for output in outputs]))


@lru_cache(maxsize=1000)
def gumbel_table(key):
    """All noise of one sequence at once: the same numbers, a hundred times faster."""
    positions = np.arange(2 * PAIRS_PER_REQUEST + 20)[:, None]
    return noise.gumbel(key, positions, np.broadcast_to(np.arange(V), (len(positions), V)))


@lru_cache(maxsize=1000)
def decision_table(key):
    """The first numbers that verification decides with, of every step of one sequence at once: [steps, numbers]."""
    steps = np.arange(2 * PAIRS_PER_REQUEST + 20)[:, None]
    return noise.uniform(key, 0, np.arange(32), noise.DECISIONS, steps)


def g_statistic(counts, probs=JOINT):
    expected = probs * counts.sum()
    seen = counts > 0
    return 2 * float((counts[seen] * np.log(counts[seen] / expected[seen])).sum())


def pair_counts(drafter, num_requests, verification="coupled", max_depth=4, max_num_seqs=16, **options):
    """Counts [9] of the pairs that the engine draws. Verifications that refuse seeds get the same ones as random ones.

    max_depth, max_num_seqs  what a draft may hold: the fake engine shares 48 draft rows among its sequences
    """
    setup = Setup(
        prefill_slowdown=1e9,
        drafter=drafter,
        max_depth=max_depth,
        num_blocks=400,
        max_rows=256,
        max_outputs=256,
        max_num_seqs=max_num_seqs,
        max_model_len=2 * PAIRS_PER_REQUEST + 10,
        prefix_caching=False,
        backend=PairModel(),
        vocab=V,
        verification=verification,
    )
    engine = setup.engine()
    engine.check = lambda: None  # tested elsewhere
    options = {"temperature": 1.0, "ignore_eos": True, "logits_hash": False, **options}
    seeds = range(num_requests) if verification == "coupled" else [None] * num_requests
    requests = [request(PROMPT, max_tokens=2 * PAIRS_PER_REQUEST, seed=seed, **options) for seed in seeds]
    with patch.object(engine_module, "random_seed", itertools.count().__next__):
        outputs = np.array([choices[0].output for choices in run(engine, requests, max_steps=10**6)])
    pairs = outputs.reshape(-1, 2)
    if drafter is not None:
        assert engine.speculator.stats.accepted > len(pairs) / 4, "too little was accepted to test anything"
    return np.bincount(pairs[:, 0] * V + pairs[:, 1], minlength=V * V)
