"""The adversaries propose what they promise; that they change nothing is what tests/lossless_real is about."""

from collections.abc import Callable

import pytest

from forerun.bench.drafters import ADVERSARIES, DRAFTERS, adversary, registered_drafters
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation import drafter as registry
from forerun.speculation.drafter import Ask
from forerun.speculation.drafters.ngram import NgramDrafter
from forerun.speculation.tree import DraftTree

VOCAB = 50
ANSWERS = {"r": tuple(range(20, 44))}
MAX_NODES, MAX_DEPTH = 12, 6


def ask_after(num_output: int) -> Ask:
    prompt = (1, 2, 3)
    request = Request("r", prompt, SamplingParams())
    tokens = [*prompt, *ANSWERS["r"][:num_output]]
    sequence = Sequence(id=0, request=request, choice=0, seed=0, key=(0, 0), tokens=tokens, num_prompt=len(prompt))
    return Ask(sequence, MAX_NODES, MAX_DEPTH)


def trees_of(name: str, count: int = 50) -> list[tuple[Ask, DraftTree]]:
    drafter = adversary(name, ANSWERS, VOCAB)
    assert drafter is not None
    drafter.begin(ask_after(0).sequence)
    asks = [ask_after(index % 15) for index in range(count)]
    trees = drafter.propose(asks)
    drafter.end(0)
    return [(ask, tree) for ask, tree in zip(asks, trees, strict=True) if tree is not None]


def accepted(ask: Ask, tree: DraftTree) -> int:
    """How many drafted tokens plain decoding would accept."""
    row: int | None = 0
    for depth, token in enumerate(ANSWERS["r"][ask.sequence.num_output :]):
        row = tree.child(row or 0, token)
        if row is None:
            return depth
    return len(ANSWERS["r"]) - ask.sequence.num_output


def fits(ask: Ask, tree: DraftTree) -> bool:
    return tree.tokens[0] == ask.sequence.tokens[-1] and tree.num_nodes <= MAX_NODES


def test_names() -> None:
    assert adversary("off", {}, VOCAB) is None
    assert adversary("ngram", {}, VOCAB) is None  # a registered drafter, no adversary
    assert all(adversary(name, {}, VOCAB) is not None for name in ADVERSARIES)
    assert {"off", "ngram", *ADVERSARIES} <= set(DRAFTERS)


def test_registered_drafters_are_checked_when_they_need_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Paid(NgramDrafter):
        is_paid = True

    def needs_a_model(model: str) -> NgramDrafter:
        raise AssertionError

    monkeypatch.setattr(registry, "_FACTORIES", {"free": NgramDrafter, "paid": Paid, "other": needs_a_model})
    assert registered_drafters() == ("free", "paid")
    assert registered_drafters(free=True) == ("free",)


def test_the_oracle_is_right_as_deep_as_it_may() -> None:
    for ask, tree in trees_of("oracle"):
        assert tree.is_chain
        assert accepted(ask, tree) == tree.num_nodes == min(MAX_DEPTH, 24 - ask.sequence.num_output)


def test_branches_hide_the_right_path_and_break_it_half_of_the_time() -> None:
    made = trees_of("branches")
    assert not any(tree.is_chain for _, tree in made)
    assert all(fits(ask, tree) for ask, tree in made)
    depths = {accepted(ask, tree) for ask, tree in made}
    assert {0, MAX_DEPTH} <= depths


@pytest.mark.parametrize("shape", [lambda tree: tree.is_chain, lambda tree: not tree.is_chain])
def test_random_trees_have_all_shapes(shape: Callable[[DraftTree], bool]) -> None:
    made = trees_of("random")
    assert any(shape(tree) for _, tree in made)
    assert all(fits(ask, tree) for ask, tree in made)
    assert all(0 <= token < VOCAB for _, tree in made for token in tree.tokens)


def test_garbage_is_garbage() -> None:
    made = trees_of("garbage")
    assert any(not 0 <= token < VOCAB for _, tree in made for token in tree.tokens[1:])
    assert any(tree.num_nodes > MAX_NODES for _, tree in made)
    assert any(tree.tokens[0] != ask.sequence.tokens[-1] for ask, tree in made)
