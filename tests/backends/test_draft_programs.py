"""Programs beside the target: they share its weights or bring their own, its KV store or one of their own, and matrices
whose rows change are read again."""

import gc
from dataclasses import replace

import numpy as np
import pytest

from forerun.backends.base import Backend, Limits, LoadedModel, ProgramSpec, SlotMove
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
    return backend_of(request.param, "fp32", "fp32")


def backend_of(name: str, target: str, draft: str) -> Backend:
    """A backend with two stacks in these formats."""
    made = {
        "cpu": lambda: CpuBackend(threads=1),
        "portable": lambda: CpuBackend(threads=1, isa="portable"),
        "reference": ReferenceBackend,
    }[name]()
    made.load(a_model(0), LIMITS)
    made.allocate_kv(KvLayout(4, 16, (kv_stack("target", SPEC, target), kv_stack("draft", SPEC, draft))))
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


@pytest.mark.parametrize("formats", [("bf16", "fp32"), ("fp32", "bf16")])
@pytest.mark.parametrize("name", ["cpu", "portable", "reference"])
def test_each_stack_has_its_own_format(name: str, formats: tuple[str, str]) -> None:
    """Both passes compute, to the bit, what they compute where all stacks have their format; so after copies and moves
    of blocks and slots, whose sizes differ between the stacks."""

    def run(target: str, draft: str) -> list[np.ndarray]:
        made = backend_of(name, target, draft)
        program = made.add_program(program_of(a_model(1), first_kv_layer=SPEC.num_layers))
        first = make_batch([Rows(range(5, 30), 0, [3, 1])], 16)
        found = [logits(one, first) for one in (made, program)]
        made.copy_blocks([(3, 0)])
        made.clear_blocks([3])
        made.move_kv([SlotMove(16 + slot, 32 + slot) for slot in range(9)])
        made.clear_blocks([1])
        last = make_batch([Rows([7], 25, [0, 2])], 16)
        return [*found, logits(made, last), logits(program, last)]

    mixed, same = run(*formats), [run(codec, codec) for codec in formats]
    for index, got in enumerate(mixed):
        assert np.array_equal(got, same[index % 2][index])
    assert not np.array_equal(same[0][3], same[1][3])  # the formats can be told apart


def test_a_cleared_block_is_empty_in_every_format() -> None:
    made = backend_of("cpu", "bf16", "fp32")
    program = made.add_program(program_of(a_model(1), first_kv_layer=SPEC.num_layers))
    batch, last = make_batch([Rows(range(5, 25), 0, [3, 1])], 16), make_batch([Rows([7], 20, [3, 1])], 16)
    before = [(one.forward(batch), logits(one, last))[1] for one in (made, program)]
    made.clear_blocks([3])
    assert not any(np.array_equal(logits(one, last), old) for one, old in zip((made, program), before, strict=True))
    fresh = backend_of("cpu", "bf16", "fp32")
    beside = fresh.add_program(program_of(a_model(1), first_kv_layer=SPEC.num_layers))
    tail = make_batch([Rows(range(21, 25), 16, [3, 1])], 16)  # the first block was never written
    for one in (made, program, fresh, beside):
        one.forward(tail)
    assert all(np.array_equal(logits(a, last), logits(b, last)) for a, b in ((made, fresh), (program, beside)))


def test_numerics_name_the_target_s_format_alone() -> None:
    ids = {draft: backend_of("cpu", "bf16", draft).numerics_id for draft in ("bf16", "fp32")}
    assert ids["bf16"] == ids["fp32"]
    assert ids["bf16"].endswith("kv-bf16")


def test_a_store_of_its_own(backend: Backend) -> None:
    """The same numbers as in the target's store, which is not touched."""
    last = make_batch([Rows([7], 40, BLOCKS)], 16)
    model = a_model(1)
    beside = backend.add_program(program_of(model, first_kv_layer=SPEC.num_layers))
    layout = KvLayout(8, 16, (kv_stack("own", SPEC, "fp32"),))
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
    backend.allocate_kv(KvLayout(4, 16, (kv_stack("target", SPEC, "fp32"),)))
    layout = KvLayout(64, 16, (kv_stack("own", SPEC, "fp32"),))
    beside, apart = (backend.add_program(program_of(a_model(1), kv=kv)) for kv in (None, layout))
    assert apart.num_bytes - beside.num_bytes >= layout.total_bytes
    monkeypatch.setattr("forerun.backends.cpu.available_memory", lambda: 10_000_000)
    with pytest.raises(CapacityError, match=r"lower draft-model.sequences"):
        backend.add_program(program_of(a_model(1), kv=replace(layout, num_blocks=1 << 20)))


def test_programs_count_as_drafts_while_they_are_there(backend: Backend) -> None:
    before = backend.memory()
    assert before.drafts == 0
    own = KvLayout(4, 16, (kv_stack("own", SPEC, "fp32"),))
    programs = [backend.add_program(program_of(a_model(1), kv=kv)) for kv in (None, own)]
    assert backend.memory() == replace(before, drafts=sum(program.num_bytes for program in programs))
    del programs
    gc.collect()
    assert backend.memory() == before


def test_programs_follow_to_a_new_store(backend: Backend) -> None:
    """One with a store of its own keeps that, and what is in it."""
    model, own = a_model(1), KvLayout(8, 16, (kv_stack("own", SPEC, "fp32"),))
    beside = backend.add_program(program_of(model, first_kv_layer=SPEC.num_layers))
    apart = backend.add_program(program_of(model, kv=own))
    last = make_batch([Rows([7], 40, BLOCKS)], 16)
    logits(apart)
    wanted = logits(apart, last)
    stacks = (kv_stack("target", SPEC, "fp32"), kv_stack("draft", SPEC, "fp32"))
    backend.allocate_kv(KvLayout(32, 16, stacks))
    high = [20, 31, 25, 22]  # blocks that only the new store has
    logits(beside, make_batch([Rows(range(5, 45), 0, high)], 16))
    assert np.array_equal(logits(beside, make_batch([Rows([7], 40, high)], 16)), wanted)
    assert np.array_equal(logits(apart, last), wanted)


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
