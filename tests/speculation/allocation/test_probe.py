"""Probes: a few forward passes within the time, and nothing left behind."""

import dataclasses

import numpy as np
import pytest

from forerun.cache.layout import KvLayout, KvStack
from forerun.config import SpeculationConfig
from forerun.llm import LLM
from forerun.speculation.allocation.allocator import Allocator
from forerun.speculation.allocation.probe import probe_rows, probe_steps
from forerun.speculation.budget import FixedBudget
from tests.fakes import FakeBackend, RandomDrafter
from tests.speculation.simulated import flat


class TimedBackend(FakeBackend):
    """A forward pass takes as long as a curve says, on a clock of its own."""

    row_tile = 8

    def __init__(self, curve):
        super().__init__()
        self.curve, self.now = curve, 0.0

    def forward(self, batch):
        self.now += self.curve(batch.num_rows)
        return super().forward(batch)


def probed(curve, max_rows=96, budget_s=0.3, num_blocks=8, block_size=16):
    backend = TimedBackend(curve)
    layout = KvLayout(num_blocks, block_size, (KvStack("target", 1, 1, 1, "fp32"),))
    backend.allocate_kv(layout)
    return backend, probe_steps(backend, layout, max_rows, budget_s, lambda: backend.now)


def test_both_sides_of_a_tile_are_measured():
    _, found = probed(flat(8))
    assert found == pytest.approx({rows: flat(8)(rows) for rows in (1, 2, 4, 8, 9, 16, 32)})
    assert probe_rows(8, 12) == [1, 8, 9, 4, 2]


def test_it_takes_no_longer_than_it_may():
    """A model of 100 ms a row has time for one row alone."""
    backend, found = probed(lambda rows: 0.1 * rows, max_rows=96)
    assert list(found) == [1]
    backend, found = probed(lambda rows: 10e-3 + 2e-3 * rows)
    assert backend.now < 0.3 + 0.05
    assert 8 in found


def test_nothing_is_left_in_the_kv_store():
    backend, _ = probed(flat(8))
    assert set(np.unique(backend._held)) <= {-1, -2}


@pytest.mark.parametrize(("max_rows", "num_blocks"), [(0, 8), (96, 1)])
def test_where_there_is_no_room_nothing_is_measured(max_rows, num_blocks):
    backend, found = probed(flat(8), max_rows, num_blocks=num_blocks)
    assert found == {}
    assert backend.batches == []


class TestInTheApi:
    """Which budget an LLM takes, and what it remembers."""

    def test_a_learned_budget_by_default_and_what_it_learned_survives(self, tiny_model):
        llm = LLM(str(tiny_model), kv_cache_bytes=1 << 22)
        budget = llm.engine.speculator.budget
        assert isinstance(budget, Allocator)
        llm.reconfigure(speculation="off")
        assert isinstance(llm.engine.speculator.budget, FixedBudget)
        llm.reconfigure(speculation="ngram")
        assert llm.engine.speculator.budget.cost is budget.cost

    def test_the_next_process_reads_the_table_and_does_not_probe(self, tiny_model, monkeypatch):
        first = LLM(str(tiny_model), kv_cache_bytes=1 << 22)
        monkeypatch.setattr("forerun.speculation.setup.probe_steps", lambda *args: pytest.fail("probed again"))
        second = LLM(str(tiny_model), kv_cache_bytes=1 << 22)
        tables = [llm.engine.speculator.budget.cost.table for llm in (first, second)]
        assert tables[0] == tables[1]

    def test_a_fixed_budget_where_it_is_wished_and_for_objects(self, tiny_model):
        llm = LLM(str(tiny_model), speculation=SpeculationConfig("ngram", budget="fixed"), kv_cache_bytes=1 << 22)
        assert isinstance(llm.engine.speculator.budget, FixedBudget)
        llm.reconfigure(speculation=RandomDrafter())
        assert isinstance(llm.engine.speculator.budget, FixedBudget)
        llm.reconfigure(speculation=dataclasses.replace(SpeculationConfig("ngram"), max_depth=3))
        assert isinstance(llm.engine.speculator.budget, Allocator)
