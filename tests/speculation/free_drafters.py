"""What the tests of drafters without a model share: sequences, and runs on the fake engine against plain decoding."""

import itertools
from collections.abc import Callable

from forerun.engine import Engine
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.drafter import Ask, Drafter
from forerun.speculation.tree import DraftTree
from tests.fakes import FakeBackend, Setup, facts, plain_decode, prompt_of, repetitive_logits, request, run

SAMPLINGS = {"greedy": {}, "seeded": {"temperature": 0.8}}
CASES = list(itertools.product(("chain", "tree"), (1, 3, 8), SAMPLINGS))  # shape, batch, sampling


def sequence_of(tokens, number=0, salt="", num_prompt=None):
    """A sequence that nobody runs; its prompt is all of it unless `num_prompt` says otherwise."""
    length = len(tokens) if num_prompt is None else num_prompt
    wanted = Request("r", tuple(tokens[:length]), SamplingParams(seed=0), salt=salt)
    return Sequence(number, wanted, 0, 0, (0, 0), list(tokens), length)


def propose(drafter: Drafter, sequence: Sequence, max_nodes=16, max_depth=8) -> DraftTree | None:
    """What a drafter proposes for one sequence."""
    (tree,) = drafter.propose([Ask(sequence, max_nodes, max_depth)])
    return tree


class AsChain:
    """A drafter whose trees are cut down to the most likely path."""

    is_paid = False

    def __init__(self, drafter: Drafter) -> None:
        self._drafter, self.name = drafter, drafter.name
        self.begin, self.observe, self.end = drafter.begin, drafter.observe, drafter.end

    def propose(self, asks):
        trees = self._drafter.propose(asks)
        return [None if tree is None else _likeliest_path(tree) for tree in trees]


def _likeliest_path(tree: DraftTree) -> DraftTree:
    leaves = set(range(1, len(tree))) - set(tree.parents)
    return tree.keep(tree.path(max(leaves, key=lambda row: (tree.depths[row], tree.survival[row]))))


def run_like_plain(drafter: Drafter, shape: str, batch: int, sampling: str, **setup: object) -> Engine:
    """Run `batch` requests with a drafter and assert that every one says what plain decoding says."""
    shaped = AsChain(drafter) if shape == "chain" else drafter
    requests = [
        request(prompt_of(seed, 6 + seed), f"r{seed}", ignore_eos=True, max_tokens=40, **SAMPLINGS[sampling])
        for seed in range(batch)
    ]
    engine = Setup(prefill_slowdown=1e9, drafter=shaped, backend=FakeBackend(repetitive_logits), **setup).engine()
    for wanted, (sequence,) in zip(requests, run(engine, requests), strict=True):
        assert facts(sequence) == plain_decode(wanted, logits=repetitive_logits)
    stats = engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.dropped_nodes == 0
    assert stats.accepted > 0
    return engine


def accepted_with(make: Callable[[], Drafter], **setup: object) -> int:
    """Draft tokens accepted in one long greedy run of repetitive text."""
    return run_like_plain(make(), "tree", 1, "greedy", **setup).speculator.stats.accepted
