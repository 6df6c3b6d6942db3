"""The search on made-up models whose best set is known."""

import pytest

from forerun.speculation.drafting.layer_skip_search import Agreement, Budget, Skip, expected_speedup, search

SIZES = {f"layers.{index}.{part}": size for index in range(6) for part, size in (("attn", 10), ("mlp", 30))}
TOTAL = 400


def additive(losses: dict[str, float], default: float = 0.2):
    """Every sub-layer that is left out costs its own share of agreement."""

    def measure(skip: Skip) -> Agreement:
        overlap = max(0.0, 1 - sum(losses.get(name, default) for name in skip))
        return Agreement(overlap, overlap)

    return measure


def test_expected_speedup() -> None:
    assert expected_speedup(1.0, 1.0) == (1.0, 1)
    assert expected_speedup(0.5, 0.5) == (1.0, 1)  # the break-even point is alpha = c
    assert expected_speedup(1.0, 0.5) == (16 / 8.5, 15)
    # By hand: (1 + .8 + .64 + .512) / (1 + 3 * .3) is the largest.
    assert expected_speedup(0.8, 0.3) == (pytest.approx(2.952 / 1.9), 3)
    assert expected_speedup(0.2, 0.9)[0] < 1


def test_alpha_lies_between_greedy_and_sampled() -> None:
    assert Agreement(0.9, 0.7).alpha == pytest.approx(0.8)
    found = search({"layers.2.mlp": 100}, TOTAL, lambda skip: Agreement(0.9, 0.7), 0, Budget(1))
    assert found is not None
    assert (found.speedup, found.depth) == expected_speedup(Agreement(0.9, 0.7).alpha, 0.75)


def test_a_useless_sub_layer_is_found() -> None:
    found = search(SIZES, TOTAL, additive({"layers.4.mlp": 0.0, "layers.1.attn": 0.0}), 0, Budget())
    assert found is not None
    assert found.skip == {"layers.4.mlp", "layers.1.attn"}
    assert (found.agreement.overlap, found.cost) == (1.0, 0.9)
    assert found.speedup == pytest.approx(16 / (1 + 15 * 0.9))


def test_a_trap_of_the_greedy_start_is_left_by_swaps() -> None:
    """The greedy start takes the one harmless sub-layer, and then no other is harmless any more."""
    pair = {"layers.2.mlp", "layers.3.mlp"}
    asked: list[Skip] = []

    def measure(skip: Skip) -> Agreement:
        asked.append(skip)
        is_trap = "layers.0.mlp" in skip
        others = len(skip - pair - {"layers.0.mlp"})
        alpha = 1 - 0.001 * len(skip & pair) - 0.3 * others - 0.6 * (is_trap and len(skip) > 1)
        return Agreement(max(0.0, alpha), max(0.0, alpha))

    sizes = SIZES | {"layers.2.mlp": 60}
    found = search(sizes, TOTAL, measure, 3, Budget())
    assert found is not None
    assert found.skip == pair
    assert asked.index(frozenset(pair)) > 2 * len(SIZES)  # long after the greedy start had come to its end


def test_the_same_seed_gives_the_same_result() -> None:
    losses = {name: 0.01 * (index * 7 % 11) for index, name in enumerate(SIZES)}
    made = [search(SIZES, TOTAL, additive(losses), seed, Budget(150)) for seed in (5, 5)]
    assert made[0] == made[1]


def test_a_set_is_measured_once_and_never_beyond_the_budget() -> None:
    asked: list[Skip] = []

    def measure(skip: Skip) -> Agreement:
        asked.append(skip)
        return additive({}, 0.05)(skip)

    search(SIZES, TOTAL, measure, 0, Budget(max_measurements=40))
    assert len(asked) == len(set(asked)) == 40
    assert frozenset() not in asked


def test_nothing_measured_is_nothing_found() -> None:
    assert search(SIZES, TOTAL, additive({}), 0, Budget(is_over=lambda: True)) is None


def test_a_set_that_does_not_pay_says_so() -> None:
    found = search(SIZES, TOTAL, additive({}, 0.6), 0, Budget())
    assert found is not None
    assert found.speedup < 1
    assert len(found.skip) == 1
