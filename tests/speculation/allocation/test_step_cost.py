"""StepCost: learns any rising curve, and is not led astray by steps that the system disturbed."""

import json
import random

import pytest

from forerun.speculation.allocation.step_cost import MAX_ROWS, StepCost
from forerun.speculation.allocation.step_cost_file import StepCostFile
from tests.speculation.simulated import cost_of, flat, linear

ROWS = range(1, MAX_ROWS + 1)


def rises(cost):
    return all(a <= b for a, b in zip(cost.table[1:], cost.table[2:], strict=False))


class TestPrior:
    def test_without_tiles_every_row_costs_its_price(self):
        cost = StepCost.prior(1, base_s=1e-3)
        assert cost.seconds(10) == pytest.approx(10e-3)

    def test_rows_of_a_tile_cost_less_than_those_behind_it(self):
        cost = StepCost.prior(16, base_s=1e-3)
        assert rises(cost)
        assert cost.seconds(16) < 16 * cost.seconds(1)

    def test_points_are_joined_by_lines(self):
        cost = StepCost.from_points({1: 2e-3, 8: 9e-3, 16: 33e-3})
        assert [round(1e3 * cost.seconds(rows), 6) for rows in (1, 4, 8, 12, 16, 20)] == [2, 5, 9, 21, 33, 45]

    def test_a_point_above_one_of_more_rows_was_disturbed(self):
        cost = StepCost.from_points({1: 3e-3, 2: 7e-3, 4: 4e-3, 8: 9e-3})
        assert rises(cost)
        assert [cost.seconds(rows) for rows in (1, 2, 4)] == pytest.approx([3e-3, 4e-3, 4e-3])

    def test_beyond_the_table_the_line_goes_on(self):
        cost = cost_of(linear(2, 1))
        assert cost.seconds(500) == pytest.approx(502e-3)

    @pytest.mark.parametrize("table", [[0.0], [0.0, *[1.0] * (MAX_ROWS - 1)], [0.0, *[-1.0] * MAX_ROWS]])
    def test_what_is_no_table_is_refused(self, table):
        with pytest.raises(ValueError, match="positive entries"):
            StepCost(table)


class TestLearning:
    @pytest.mark.parametrize("curve", [flat(8), flat(16), linear(5, 0.2), linear(2, 1.5)])
    def test_a_wrong_prior_becomes_the_truth_where_it_is_used(self, curve):
        cost, chance = StepCost.prior(1, base_s=1e-1), random.Random(0)
        for _ in range(600):
            rows = chance.choice((1, 2, 4, 8, 9, 16))
            cost.observe(rows, 0, curve(rows))
        assert rises(cost)
        for rows in (1, 2, 4, 8, 9, 16):
            assert cost.seconds(rows) == pytest.approx(curve(rows), rel=0.1), rows

    def test_neighbours_learn_too(self):
        cost = cost_of(linear(2, 1))
        before = cost.seconds(9) / cost.seconds(8)
        for _ in range(40):
            cost.observe(8, 0, 20e-3)
        assert cost.seconds(9) >= cost.seconds(8) == pytest.approx(20e-3, rel=0.05)
        assert cost.seconds(9) / cost.seconds(8) < before * 1.1
        assert cost.seconds(2) < 10e-3

    def test_a_machine_that_slows_down_slows_every_entry(self):
        cost = cost_of(linear(2, 1))
        before = cost.seconds(32)
        for _ in range(100):
            cost.observe(1, 0, 6e-3)
        assert cost.seconds(1) == pytest.approx(6e-3, rel=0.05)
        assert cost.seconds(32) > 1.3 * before

    def test_steps_that_were_put_to_sleep_do_not_count(self):
        """One step in ten takes twenty times as long. The mean would triple."""
        cost, chance, curve = cost_of(linear(2, 1)), random.Random(1), linear(2, 1)
        for _ in range(1000):
            rows = chance.choice((1, 2, 4, 8))
            cost.observe(rows, 0, curve(rows) * (20 if chance.random() < 0.1 else 1))
        for rows in (1, 2, 4, 8):
            assert cost.seconds(rows) == pytest.approx(curve(rows), rel=0.12), rows

    def test_the_first_step_may_be_cold(self):
        cost = StepCost.from_points({1: 5e-3, 8: 8e-3})
        cost.observe(1, 0, 50e-3)
        for _ in range(20):
            cost.observe(1, 0, 5e-3)
        assert cost.seconds(1) == pytest.approx(5e-3, rel=0.15)
        assert cost.seconds(8) / cost.seconds(1) == pytest.approx(1.6, rel=0.25)

    @pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (MAX_ROWS + 1, 1.0), (512, 3.0), (4, 0.0), (4, -1.0)])
    def test_what_is_no_decoding_step_is_ignored(self, rows, seconds):
        cost = cost_of(linear(2, 1))
        before = list(cost.table)
        cost.observe(rows, 0, seconds)
        assert cost.table == before

    def test_an_entry_seen_once_does_not_overrule_one_seen_often(self):
        cost = cost_of(linear(2, 1))
        for _ in range(50):
            cost.observe(8, 0, 10e-3)
        cost.observe(7, 0, 30e-3)
        assert cost.seconds(8) == pytest.approx(10e-3, rel=0.1)
        assert rises(cost)

    def test_keys_are_told_from_rows(self):
        """Steps of one row over short and long contexts, and a prior that is half of the truth."""
        cost, chance = StepCost.from_points({1: 5e-3, 8: 8e-3}, per_key=1e-6), random.Random(2)
        for _ in range(3000):
            keys = chance.choice((100, 2000, 4000))
            cost.observe(1, keys, 5e-3 + 2e-6 * keys)
        assert cost.per_key == pytest.approx(2e-6, rel=0.1)
        assert cost.seconds(1, 4000) == pytest.approx(13e-3, rel=0.05)

    def test_keys_that_never_vary_leave_the_prior(self):
        cost = StepCost.from_points({1: 5e-3, 8: 8e-3}, per_key=1e-6)
        for _ in range(500):
            cost.observe(1, 100, 5e-3)
        assert cost.per_key == pytest.approx(1e-6)


class TestFile:
    IDENTITY = ("model", "cpu", "avx512/k4")

    def test_what_was_learned_comes_back(self, tmp_path):
        cost = cost_of(flat(8))
        cost.observe(3, 0, 7e-3)
        StepCostFile(tmp_path / "a" / "b", self.IDENTITY).keep(cost)
        kept = StepCostFile(tmp_path / "a" / "b", self.IDENTITY).load()
        assert kept.table == cost.table
        assert len(list((tmp_path / "a" / "b").iterdir())) == 1  # nothing unfinished lies about

    def test_another_model_or_machine_has_a_file_of_its_own(self, tmp_path):
        StepCostFile(tmp_path, self.IDENTITY).keep(cost_of(flat(8)))
        assert StepCostFile(tmp_path, (*self.IDENTITY[:2], "avx2/k4")).load() is None

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[]", "null", "{}", '{"format": 1}', "\x00\xff", '{"format": "forerun-step-cost-2", "identity": []}'],
    )
    def test_a_damaged_file_is_ignored(self, tmp_path, text):
        file = StepCostFile(tmp_path, self.IDENTITY)
        file.path.write_text(text, encoding="utf-8")
        assert file.load() is None

    @pytest.mark.parametrize(
        "change",
        [
            {"table": [1.0]},
            {"table": ["a"] * MAX_ROWS},
            {"table": [float("nan")] * MAX_ROWS},
            {"table": [-1.0] * MAX_ROWS},
            {"per_key": "x"},
            {"per_key": -1.0},
            {"seen": None},
            {"seen": [0.0]},
        ],
    )
    def test_numbers_that_make_no_sense_are_ignored(self, tmp_path, change):
        file = StepCostFile(tmp_path, self.IDENTITY)
        file.keep(cost_of(flat(8)))
        assert file.load() is not None
        document = json.loads(file.path.read_text(encoding="utf-8"))
        document["content"] |= change
        file.path.write_text(json.dumps(document), encoding="utf-8")
        assert file.load() is None

    def test_a_folder_that_cannot_be_written_to_costs_nothing(self, tmp_path):
        (tmp_path / "file").write_text("no folder", encoding="utf-8")
        file = StepCostFile(tmp_path / "file" / "drafters", self.IDENTITY)
        file.keep(cost_of(flat(8)))
        file.keep(cost_of(flat(8)))
        assert file.load() is None
