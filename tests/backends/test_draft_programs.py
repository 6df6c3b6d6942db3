"""Programs beside the target: they share its weights or bring their own, its KV store or one of their own, and matrices
whose rows change are read again."""

from dataclasses import replace

import numpy as np
import pytest

from forerun.backends.base import Backend, Limits, LoadedModel, ProgramSpec
from forerun.backends.cpu import CpuBackend
from forerun.backends.reference import ReferenceBackend
from forerun.cache.layout import KvLayout
from forerun.errors import CapacityError
from forerun.models import decoder
from forerun.models.kv import kv_stack
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights, tiny_spec

LIMITS = Limits(64, 64, 256)
SPEC = tiny_spec(tied=False, vocab=96)
BLOCKS = [3, 1, 2, 0]
BATCH = make_batch([Rows(range(5, 45), 0, BLOCKS)], 16)


def a_model(seed: int) -> LoadedModel:
    return LoadedModel(SPEC, RandomWeights(SPEC, seed))


@pytest.fixture(params=["cpu", "portable", "reference"])
def backend(request: pytest.FixtureRequest) -> Backend:
    made = {
        "cpu": lambda: CpuBackend(threads=1),
        "portable": lambda: CpuBackend(threads=1, isa="portable"),
        "reference": ReferenceBackend,
    }[request.param]()
    made.load(a_model(0), LIMITS)
    made.allocate_kv(KvLayout(4, 16, "fp32", (kv_stack("target", SPEC), kv_stack("draft", SPEC))))
    return made


def program_of(model: LoadedModel, first_kv_layer: int = 0, **options) -> ProgramSpec:
    return ProgramSpec(
        "draft-model", model, lambda ops: decoder.logits(SPEC, ops, first_kv_layer=first_kv_layer), LIMITS, **options
    )


def logits(program, batch=BATCH) -> np.ndarray:
    return program.forward(batch).logits(range(len(batch.output_rows)))


def test_a_second_stack_leaves_the_first_alone(backend: Backend) -> None:
    last = make_batch([Rows([7], 40, BLOCKS)], 16)
    backend.forward(BATCH)
    alone = logits(backend, last)
    backend.forward(BATCH)
    program = backend.add_program(program_of(a_model(1), first_kv_layer=SPEC.num_layers))
    program.forward(BATCH)
    assert np.array_equal(logits(backend, last), alone)


def test_a_store_of_its_own(backend: Backend) -> None:
    """The same numbers as in the target's store, which is not touched."""
    last = make_batch([Rows([7], 40, BLOCKS)], 16)
    model = a_model(1)
    beside = backend.add_program(program_of(model, first_kv_layer=SPEC.num_layers))
    layout = KvLayout(8, 16, "fp32", (kv_stack("own", SPEC),))
    apart = backend.add_program(program_of(model, kv=layout))
    other_blocks = [7, 5, 6, 4]
    backend.forward(BATCH)
    alone = logits(backend, last)
    backend.forward(BATCH)
    assert np.array_equal(logits(beside), logits(apart, make_batch([Rows(range(5, 45), 0, other_blocks)], 16)))
    assert np.array_equal(logits(beside, last), logits(apart, make_batch([Rows([7], 40, other_blocks)], 16)))
    assert np.array_equal(logits(backend, last), alone)


def test_a_store_of_its_own_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = CpuBackend(threads=1)
    backend.load(a_model(0), LIMITS)
    backend.allocate_kv(KvLayout(4, 16, "fp32", (kv_stack("target", SPEC),)))
    layout = KvLayout(64, 16, "fp32", (kv_stack("own", SPEC),))
    beside, apart = (backend.add_program(program_of(a_model(1), kv=kv)) for kv in (None, layout))
    assert apart.num_bytes - beside.num_bytes >= layout.total_bytes
    monkeypatch.setattr("forerun.backends.cpu.available_memory", lambda: 10_000_000)
    with pytest.raises(CapacityError, match=r"lower draft-model.sequences"):
        backend.add_program(program_of(a_model(1), kv=replace(layout, num_blocks=1 << 20)))


@pytest.mark.parametrize("weights", ["bf16", "int8", "int4"])
def test_rows_are_read_again(backend: Backend, weights: str) -> None:
    """After a reload the program computes what one that was loaded with the new rows computes."""

    class Changing(RandomWeights):
        seed_of_rows = 1

        def read(self, name, start=0, stop=None):
            rows = super().read(name)
            if name == "output":
                rows[32:48] = RandomWeights(SPEC, self.seed_of_rows).read(name)[32:48]
            return np.ascontiguousarray(rows[start:stop])

    changing = Changing(SPEC, 1)
    options = {"first_kv_layer": SPEC.num_layers, "weights": weights}
    program = backend.add_program(program_of(LoadedModel(SPEC, changing), **options))
    before = logits(program)
    changing.seed_of_rows = 2
    assert np.array_equal(logits(program), before)
    program.reload("output", 32, 48)
    after = logits(program)
    assert np.array_equal(after, logits(backend.add_program(program_of(LoadedModel(SPEC, changing), **options))))
    changed = (after != before).any(axis=0)
    assert changed[32:48].all()
    assert not changed[:32].any()
    assert not changed[48:].any()
