"""Allocator: never slower than plain decoding, near the best fixed length, whatever drafts and steps cost."""

import random

import numpy as np
import pytest

from forerun.config import SpeculationConfig
from forerun.speculation.allocation import allocator as reasons
from forerun.speculation.allocation.best_nodes import best_nodes
from forerun.speculation.allocation.paid import DraftTimes, PaidDrafter, plan_paid
from forerun.speculation.allocation.step_cost import MAX_ROWS, StepCost
from forerun.speculation.budget import FixedBudget
from forerun.speculation.drafter import Ask
from forerun.speculation.tree import DraftTree
from tests.speculation.simulated import (
    RIGHT,
    FakeDrafter,
    allocator,
    best_fixed_speed,
    cost_of,
    flat,
    linear,
    outcome_of,
    sequence_of,
    simulate,
)

CURVES = {
    "flat to 8 rows": flat(8),
    "flat to 16 rows": flat(16),
    "cheap rows": linear(5, 0.2),
    "dear rows": linear(2, 1.5),
    "every row its price": linear(0, 3),
}
ACCEPTANCES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def chosen(trees, curve, rooms=None, limit=63, spent_s=0.0):
    rooms = rooms or [63] * len(trees)
    return best_nodes(trees, rooms, limit, lambda nodes, last: curve(len(trees) + nodes), spent_s)


def chain(*scores, root=1):
    return DraftTree.chain(root, list(range(2, 2 + len(scores))), list(scores), "d")


class TestBestNodes:
    def test_a_flat_tile_is_filled_and_not_exceeded(self):
        assert chosen([chain(*[0.6] * 15)], flat(8)).rows == [[1, 2, 3, 4, 5, 6, 7]]

    def test_a_second_tile_is_begun_only_for_all_that_it_brings(self):
        """The ninth row alone never pays, the next eight together do: no stop at the first peak."""
        assert chosen([chain(*[0.99] * 15)], lambda rows: 4 + -(-rows // 8)).num_nodes == 15

    def test_dear_rows_and_doubtful_drafts_mean_none(self):
        choice = chosen([chain(*[0.3] * 15)], linear(2, 1.5))
        assert (choice.rows, choice.num_nodes) == ([[]], 0)
        assert choice.speed == choice.plain_speed == pytest.approx(1 / 3.5e-3)

    def test_a_large_batch_keeps_only_what_is_nearly_sure(self):
        trees = [chain(0.95) if i % 2 == 0 else chain(0.7) for i in range(64)]
        choice = chosen(trees, linear(5, 0.3))
        assert [len(rows) for rows in choice.rows] == [1 if i % 2 == 0 else 0 for i in range(64)]

    def test_the_likeliest_nodes_of_all_sequences_share_the_rows(self):
        trees = [chain(0.9, 0.9, 0.9), chain(0.5, 0.5), chain(0.99, 0.2)]
        assert chosen(trees, flat(7)).rows == [[1, 2, 3], [], [1]]

    def test_ancestors_come_with_their_descendants(self):
        chance = random.Random(0)
        for _ in range(200):
            parents = [-1, *(chance.randrange(row) for row in range(1, 12))]
            scores = (1.0, *(chance.choice((0.3, 0.8, 1.0)) for _ in range(11)))
            tree = DraftTree.of(range(12), parents, scores, "d")
            (rows,) = chosen([tree], linear(5, chance.random()), limit=chance.randrange(1, 12)).rows
            assert all(parents[row] in (0, *rows) for row in rows)

    def test_the_choice_is_the_best_of_all(self):
        """Against every number of nodes tried one by one."""
        chance = random.Random(1)
        for _ in range(100):
            trees = [chain(*(chance.random() for _ in range(4))) for _ in range(3)]
            steps = [chance.random() + row for row in range(20)]
            choice = chosen(trees, lambda rows, steps=steps: steps[rows])
            alive = sorted((s for tree in trees for s in tree.survival[1:]), reverse=True)
            speeds = [(3 + sum(alive[:count])) / steps[3 + count] for count in range(13)]
            assert choice.speed == pytest.approx(max(speeds) if max(speeds) >= 1.03 * speeds[0] else speeds[0])

    def test_rooms_and_limit_hold(self):
        choice = chosen([chain(*[0.99] * 8), chain(*[0.99] * 8)], flat(64), rooms=[2, 5], limit=6)
        assert [len(rows) for rows in choice.rows] == [2, 4]

    def test_drawn_nodes_are_taken_in_the_order_of_their_rows(self):
        drawn = DraftTree((0, 1, 2), (-1, 0, 0), (1.0, 0.1, 0.9), ("", "d", "d"), {0: np.ones(4) / 4})
        (rows,) = chosen([drawn], flat(2)).rows
        assert rows in ([], [1])
        assert chosen([drawn], flat(64)).rows == [[1, 2]]

    def test_time_spent_makes_nodes_cheaper(self):
        """A draft that took long is worth more rows: the step is long in any case."""
        curve = linear(2, 1.5)
        assert chosen([chain(0.4)], curve).num_nodes == 0
        assert chosen([chain(0.4)], curve, spent_s=2e-3).num_nodes == 1


class TestNeverSlower:
    @pytest.mark.parametrize("batch", [1, 4, 16])
    @pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES.keys())
    @pytest.mark.parametrize("acceptance", ACCEPTANCES)
    def test_than_plain_and_nearly_as_fast_as_the_best_length(self, acceptance, curve, batch):
        speed = simulate(allocator(cost_of(curve)), [FakeDrafter(acceptance)], curve, batch, 400).speed
        assert speed >= 0.98 * batch / curve(batch)
        assert speed >= 0.95 * best_fixed_speed(acceptance, curve, batch)

    @pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.9])
    @pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES.keys())
    def test_once_costs_were_learned_on_a_noisy_machine(self, acceptance, curve):
        """From a guess that is far off, without probes; the first 500 steps do not count."""
        chance = random.Random(0)

        def noise():
            return chance.choice((1.0, 1.0, 1.0, 1.05, 0.95, 1.1, 3.0 if chance.random() < 0.1 else 1.0))

        budget = allocator(StepCost.prior(8, base_s=20e-3))
        simulate(budget, [FakeDrafter(acceptance)], curve, 4, 500, noise)
        speed = simulate(budget, [FakeDrafter(acceptance)], curve, 4, 1500, noise).speed
        plain = simulate(allocator(cost_of(curve)), [], curve, 4, 1500, noise).speed
        assert speed >= 0.97 * plain

    def test_rows_that_are_thought_too_dear_are_tried_again(self):
        """All but one row are believed to cost ten times as much as they do."""
        curve = linear(5, 0.2)
        cost = StepCost([0.0, curve(1), *(10 * curve(rows) for rows in range(2, MAX_ROWS + 1))])
        assert simulate(allocator(cost), [FakeDrafter(0.9)], curve, 1, 500).speed > 2 / curve(1)

    def test_a_fixed_length_is_slower(self):
        """The negative control: the grid above has cells where drafting loses."""
        budget = FixedBudget(SpeculationConfig(max_depth=7), 1 << 20)
        curve = CURVES["dear rows"]
        assert simulate(budget, [FakeDrafter(0.3)], curve, 4).speed < 0.8 * 4 / curve(4)

    def test_text_that_begins_to_repeat_is_noticed(self):
        budget, drafter, curve = allocator(cost_of(flat(8))), FakeDrafter(0.0), flat(8)
        simulate(budget, [drafter], curve, 1, 500)
        drafter.acceptance = 1.0
        assert simulate(budget, [drafter], curve, 1, 200).speed > 0.7 * 8 / curve(8)


class LyingCost(StepCost):
    """Says for ever that rows are free."""

    def observe(self, rows, keys, seconds, count=1):
        pass


class TestGuard:
    def run(self, guarded):
        curve = linear(2, 1.5)
        budget = allocator(LyingCost([0.0, *[curve(1)] * MAX_ROWS]))
        if not guarded:
            budget.guard.observe = lambda *args: None
        return budget, simulate(budget, [FakeDrafter(0.3)], curve, 1, 6000).speed * curve(1)

    def test_a_cost_model_that_lies_is_found_out(self):
        budget, ratio = self.run(guarded=True)
        assert budget.guard.num_trips > 3
        assert budget.decisions[reasons.GUARD] > 2000
        assert ratio > 0.9

    def test_without_the_guard_it_would_not_be(self):
        _, ratio = self.run(guarded=False)
        assert ratio < 0.8


class TestPaid:
    """Drafters that cost time."""

    def run(self, acceptance, seconds, steps=3000, batch=1):
        budget, drafter = allocator(cost_of(flat(8))), FakeDrafter(acceptance, is_paid=True, seconds=seconds)
        totals = simulate(budget, [drafter], flat(8), batch, steps)
        return budget, totals, totals.speed / (batch / flat(8)(batch))

    def test_one_that_pays_is_asked(self):
        _, totals, ratio = self.run(0.8, 0.3e-3)
        assert totals.asked > 2900
        assert ratio > 2.5

    @pytest.mark.parametrize("batch", [1, 4])
    @pytest.mark.parametrize(("acceptance", "seconds"), [(0.0, 1e-3), (0.3, 4e-3), (0.9, 50e-3)])
    def test_one_that_does_not_is_tried_ever_more_rarely(self, acceptance, seconds, batch):
        budget, totals, ratio = self.run(acceptance, seconds, batch=batch)
        assert totals.asked < 20
        assert budget.decisions[reasons.PAID_SKIPPED] > 2000
        assert ratio > 0.96

    def test_one_that_becomes_better_is_asked_again(self):
        budget, drafter = allocator(cost_of(flat(8))), FakeDrafter(0.0, is_paid=True, seconds=0.3e-3)
        simulate(budget, [drafter], flat(8), 1, 200)
        drafter.acceptance = 0.9
        assert simulate(budget, [drafter], flat(8), 1, 4000).asked > 1000

    def test_it_is_not_asked_where_a_free_one_does_as_well(self):
        free, paid = FakeDrafter(1.0, name="free"), FakeDrafter(0.9, name="paid", is_paid=True, seconds=1e-3)
        totals = simulate(allocator(cost_of(flat(8))), [free, paid], flat(8), 1, 1000)
        assert totals.asked < 1000 + 100  # every step the free one, the paid one hardly ever

    def test_depth_follows_acceptance(self):
        times = DraftTimes()
        for depth in (1, 4, 15):
            times.observe(1, depth, depth * 1e-3)

        def plan(acceptance):
            yields = [[sum(acceptance**j for j in range(1, d + 1)) for d in range(16)]]
            return plan_paid(yields, (15, 31), lambda nodes: flat(16)(1 + nodes), times, (1.0, flat(16)(1)))

        assert plan(0.95).depth > plan(0.6).depth > 0
        assert plan(0.05).gain < 1.03

    def test_times_are_predicted_from_the_nearest_measured(self):
        times = DraftTimes()
        assert times.predict(1, 4) is None
        times.observe(1, 4, 4e-3)
        assert times.predict(1, 4) == 4e-3
        assert times.predict(1, 8) == pytest.approx(8e-3)
        assert 2e-3 < times.predict(1, 1) < 4e-3
        assert times.predict(4, 4) > 4e-3
        for _ in range(50):
            times.observe(1, 4, 2e-3)
        assert times.predict(1, 4) == pytest.approx(2e-3, rel=0.05)


class TestClamps:
    def test_nothing_beyond_max_tokens(self):
        budget = allocator(cost_of(flat(64)))
        sequence = sequence_of(max_tokens=5)
        sequence.tokens += [RIGHT] * 3
        assert budget.room(sequence, 1) == 1
        sequence.tokens += [RIGHT]
        assert budget.room(sequence, 1) == 0
        assert budget.decisions[reasons.NO_ROOM] == 1

    def test_max_depth_and_max_draft_rows(self):
        budget = allocator(cost_of(flat(64)), max_depth=3, max_draft_rows=9)
        totals = simulate(budget, [FakeDrafter(1.0)], flat(64), 1, 300)
        assert max(totals.drafted, 1) <= 3 * 300
        budget = allocator(cost_of(flat(64)), max_draft_rows=9)
        totals = simulate(budget, [FakeDrafter(1.0)], flat(64), 4, 300)
        assert 7 * 300 < totals.drafted <= 9 * 300

    def test_a_batch_that_fills_the_table_is_decoded_plainly(self):
        totals = simulate(allocator(cost_of(flat(64))), [FakeDrafter(1.0)], flat(64), MAX_ROWS, 20)
        assert totals.drafted == 0

    def test_few_slots_where_little_is_expected(self):
        budget = allocator(cost_of(linear(2, 1.5)))
        simulate(budget, [FakeDrafter(0.1)], linear(2, 1.5), 1, 100)
        assert max(budget.room(sequence_of(), 1) for _ in range(10)) <= 2

    def test_prompts_in_the_step_do_not_stop_drafting_and_teach_nothing(self):
        budget = allocator(cost_of(flat(8)))
        simulate(budget, [FakeDrafter(1.0)], flat(8), 1, 100)
        table = list(budget.cost.table)
        sequence, drafter = sequence_of(), FakeDrafter(1.0)
        for _ in range(50):
            budget.room(sequence, 1)
            tree = budget.calibrate(drafter, sequence, drafter.chain(RIGHT, Ask(sequence, 4, 4)))
            (tree,) = budget.choose([sequence], [4], [tree], 512)
            outcome = outcome_of(tree)
            facts = reasons.StepFacts(512 + len(tree), 10_000, 0.0, 2.0, 2.0)
            budget.observe([sequence], [outcome], facts)
        assert tree.num_nodes == 4
        assert budget.cost.table == table


def test_drawn_nodes_are_judged_by_depth_alone():
    """The decision to verify a node must not depend on what was drawn there: the same for every score and token."""
    budget, sequence, drafter = allocator(cost_of(flat(8))), sequence_of(), FakeDrafter(0.5)
    probs = {0: np.ones(40) / 40, 1: np.ones(40) / 40}

    def scores(tokens, raw):
        tree = DraftTree((RIGHT, *tokens), (-1, 0, 0, 1), (1.0, *raw), ("", "d", "d", "d"), probs)
        return budget.calibrate(drafter, sequence, tree).score

    first = scores((3, 4, 5), (0.9, 0.05, 0.4))
    assert first == scores((30, 20, 10), (0.1, 0.8, 0.99))
    assert first[1] > first[2]


def test_every_decision_has_a_reason():
    budget = allocator(cost_of(linear(5, 0.2)))
    simulate(budget, [FakeDrafter(0.5)], linear(5, 0.2), 4, 200)
    assert sum(budget.decisions.values()) == 4 * 200
    assert budget.decisions[reasons.WORTH] > 0


def test_a_sequence_that_ends_leaves_nothing_behind():
    budget = allocator(cost_of(flat(8)))
    simulate(budget, [FakeDrafter(0.5)], flat(8), 4, 50)
    assert len(budget._requests) == 4
    for number in range(4):
        budget.end(number)
    assert not budget._requests
    budget.end(99)


def test_what_was_learned_is_kept_now_and_then():
    kept = []
    curve = flat(8)
    budget = reasons.Allocator(SpeculationConfig(), 1 << 20, cost_of(curve), kept.append)
    simulate(budget, [FakeDrafter(0.5)], curve, 1, 5000)
    assert 3 <= len(kept) <= 6


def test_asks_of_a_free_drafter_never_exceed_room_or_depth():
    budget = allocator(cost_of(flat(64)), max_depth=2)
    sequences = [sequence_of(number) for number in range(2)]
    roots = [DraftTree.root_only(RIGHT)] * 2
    asks = budget.asks(FakeDrafter(1.0), [0, 1], sequences, [1, 9], roots)
    assert asks == {0: Ask(sequences[0], 1, 1), 1: Ask(sequences[1], 9, 2)}


def test_unlikely_nodes_of_another_drafter_do_not_keep_a_sure_draft_short():
    """Room doubles where a draft fills it with likely nodes, whatever was merged in beside them."""
    budget, sequence = allocator(cost_of(flat(16))), sequence_of()
    room = budget.room(sequence, 1)
    sure = DraftTree.chain(RIGHT, [RIGHT] * room, [0.9] * room, "sure")
    doubtful = DraftTree.chain(RIGHT, [RIGHT + 1], [0.1], "doubtful")
    budget.choose([sequence], [2 * room], [sure.merge(doubtful)], 0)
    assert budget.room(sequence, 1) == 2 * room


def test_reading_a_prompt_does_not_make_a_drafter_dear():
    """Its first draft takes as long as ten steps, since it reads the prompt; it is asked again all the same."""
    paid = PaidDrafter()
    assert paid.trial(0.0) == 1
    paid.drafted(1, 1, seconds=0.2, unread=500)
    assert paid.times.predict(1, 1) is None
    paid.drafted(1, 2, seconds=0.002, unread=3)
    assert paid.times.predict(1, 2) == 0.002


def test_what_a_drafter_has_read_is_known_by_sequence():
    budget, sequence = allocator(cost_of(flat(16))), sequence_of(length=40)
    request = budget._request(sequence.id)
    assert request.unread("fake", sequence) == 40, "it has not drafted in this step"
    request.proposals.append(("fake", chain(0.9)))
    assert request.unread("fake", sequence) == 40
    sequence.tokens += [RIGHT] * 3
    assert request.unread("fake", sequence) == 3


def test_what_does_not_pay_is_not_even_predicted_in_every_step(monkeypatch):
    budget, predicted = allocator(cost_of(flat(8))), []
    plan = budget._plan
    monkeypatch.setattr(budget, "_plan", lambda *args: predicted.append(1) or plan(*args))
    simulate(budget, [FakeDrafter(0.0, is_paid=True, seconds=1e-3)], flat(8), 1, 800)
    assert 50 < len(predicted) < 200
