"""Kernels against limits: the work of each operation, how operations are added up, and real times of a tiny model."""

from dataclasses import replace
from pathlib import Path

import pytest

from forerun.backends.measure import Op, op_seconds, program_ops, timed_ops
from forerun.bench.kernels import OpTimes, StepShape, kernels_of, settings, summarise, time_settings
from forerun.bench.limits import Bandwidth, Limits, Peak
from forerun.bench.rig import Rig, wanted_kv_bytes
from forerun.bench.sitting import options_for
from forerun.bench.steps import check_equality, measure_draws, measure_engine, measure_steps, num_step_groups
from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.models.spec import ModelSpec
from tests.tiny import tiny_spec

ID = "amx_bf16/k1/w-bf16/a-bf16/kv-bf16"
LIMITS = Limits(
    2, (Bandwidth(1000, 50.0, 100.0, "x"), Bandwidth(10**9, 5.0, 10.0, "x")), (Peak("amx_bf16", 1.0, 1000.0),), 1, 1.0
)
STEP = StepShape(rows=3, outputs=2, context=10, head_dim=16, kv_bytes_per_token=256.0, num_layers=2)


def op(kind: str, inputs: int = 64, outputs: int = 64, **changes: object) -> Op:
    """An operation with the fields that matter."""
    return replace(Op(kind, 0, inputs, outputs, 0, 0, 0, False), **changes)  # type: ignore[arg-type]


def load(path: Path, **options: object) -> tuple[LLM, EngineOptions]:
    chosen = replace(options_for(EngineOptions()), **options)  # type: ignore[arg-type]
    spec = tiny_spec(vocab=1, max_context=1024)
    num_bytes = wanted_kv_bytes(spec, "bf16", chosen.block_size, True)
    return LLM(str(path), speculation="off", threads=2, kv_cache_bytes=num_bytes, options=chosen), chosen


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> tuple[LLM, EngineOptions]:
    return load(tiny_model)


@pytest.fixture(scope="module")
def rig(loaded: tuple[LLM, EngineOptions]) -> Rig:
    return Rig(loaded[0])


# ---- work ----


def test_a_matrix_is_read_once_and_multiplied_for_every_row() -> None:
    work = STEP.work(op("linear", 64, 128, weight_bytes=5000))
    assert (work.num_bytes, work.operations, work.streams) == (5000 + 4 * 3 * (64 + 128), 2 * 3 * 64 * 128, True)
    on_outputs = STEP.work(op("linear", 64, 128, weight_bytes=5000, on_outputs=True))
    assert on_outputs.operations == 2 * 2 * 64 * 128


def test_attention_sees_the_context_and_the_rows_before() -> None:
    work = STEP.work(op("attention", 64, 64, num_heads=4))
    pairs = sum(10 + row + 1 for row in range(3))
    assert work.operations == 2 * 2 * 4 * 16 * pairs  # q.k and p.v
    assert work.num_bytes == 13 * 256 / 2 + 4 * 3 * 128


def test_other_operations_move_their_values() -> None:
    assert STEP.work(op("add", 128, 64)).num_bytes == 4 * 3 * (128 + 64)
    assert STEP.work(op("rope", 64, 0)).num_bytes == 4 * 3 * (64 + 64)  # in place
    assert STEP.work(op("embed", 0, 64, weight_bytes=99999)).num_bytes == 3 * 64 * 6  # the rows it takes, not the table
    assert not STEP.work(op("embed", 0, 64, weight_bytes=99999)).streams


# ---- adding up ----


def test_operations_of_one_shape_are_added_up() -> None:
    ops = [op("linear", 64, 128, weight_bytes=5000), op("add", 128, 64), op("linear", 64, 128, weight_bytes=5000)]
    kernels = summarise(ops, OpTimes(128, STEP, (10.0, 5.0, 30.0)), LIMITS, ID)
    assert [(kernel.kind, kernel.count, kernel.seconds) for kernel in kernels] == [("linear", 2, 20.0), ("add", 1, 5.0)]
    assert [kernel.share for kernel in kernels] == [40 / 45, 5 / 45]
    linear = kernels[0]
    assert linear.memory_s == pytest.approx(linear.num_bytes / LIMITS.bandwidth(2 * linear.num_bytes))
    assert linear.compute_s == pytest.approx(2 * 3 * 64 * 128 / 1000)
    assert linear.fraction == pytest.approx(max(linear.memory_s, linear.compute_s) / 20.0)
    assert linear.bound == ("compute" if linear.compute_s > linear.memory_s else "bandwidth")
    assert kernels[1].memory_s == pytest.approx(kernels[1].num_bytes / LIMITS.bandwidth(kernels[1].num_bytes))


def test_further_contexts_add_attention_only() -> None:
    ops = [op("linear", weight_bytes=10), op("attention", num_heads=4)]
    times = [OpTimes(128, STEP, (1.0, 1.0)), OpTimes(2048, STEP, (1.0, 1.0))]
    found = [(kernel.kind, kernel.context) for kernel in kernels_of(ops, times, LIMITS, ID)]
    assert found == [("linear", 128), ("attention", 128), ("attention", 2048)]


# ---- a real program ----


def test_the_program_tells_its_operations(rig: Rig, loaded: tuple[LLM, EngineOptions]) -> None:
    spec: ModelSpec = loaded[0].model.spec
    ops = program_ops(rig.backend)
    kinds = [one.kind for one in ops]
    first = ["linear", "rope+write_kv", "attention", "round", "linear", "add+rms_norm+round"]
    layer = [*first, "linear", "silu_mul+round", "linear", "add+rms_norm+round"]
    layers = (layer * spec.num_layers)[:-1]
    assert kinds == ["embed+rms_norm+round", *layers, "add", "select_outputs+rms_norm+round", "linear"]
    linear = [(one.inputs, one.outputs) for one in ops if one.kind == "linear"]
    assert linear[:4] == [(64, 128), (64, 64), (64, 192), (96, 64)]
    assert linear[-1] == (64, spec.vocab_size)
    assert [one.layer for one in ops if one.kind == "attention"] == [0, 1]
    assert all(one.weight_bytes >= 2 * one.inputs * one.outputs for one in ops if one.kind == "linear")
    assert [one.kind for one in ops if one.on_outputs] == ["select_outputs+rms_norm+round", "linear"]
    columns = {one.kind: (one.inputs, one.outputs) for one in ops if "+" in one.kind}
    hidden, intermediate = 64, 96
    q, kv = 64, 32
    assert columns == {  # values as bfloat16 count half
        "embed+rms_norm+round": (hidden // 2, hidden + hidden // 2),
        "rope+write_kv": (q + 2 * kv, q + kv + 2 * kv),
        "add+rms_norm+round": (2 * hidden, hidden + hidden // 2),
        "silu_mul+round": (2 * intermediate, intermediate // 2),
        "select_outputs+rms_norm+round": (hidden, hidden + hidden // 2),
    }


def test_timing_operations_changes_no_bit(rig: Rig) -> None:
    batch = rig.chain(128, 5)
    plain = rig.hashes(batch)
    with timed_ops(rig.backend):
        assert rig.hashes(batch) == plain
        seconds = op_seconds(rig.backend)
    assert len(seconds) == len(program_ops(rig.backend))
    assert min(seconds) >= 0
    assert 0 < sum(seconds) < 10
    assert op_seconds(rig.backend) == []
    assert rig.hashes(batch) == plain


def test_every_setting_is_timed(rig: Rig, loaded: tuple[LLM, EngineOptions]) -> None:
    turns: list[int] = []
    times = time_settings(rig, loaded[0].model.spec, 2, True, lambda: turns.append(1))
    assert [(one.context, one.step.rows) for one in times] == settings(rig, True)
    assert len(turns) == 3 * len(times)
    shares = [kernel.share for kernel in summarise(program_ops(rig.backend), times[0], LIMITS, ID)]
    assert sum(shares) == pytest.approx(1)


# ---- the rig and whole steps ----


def test_lanes_have_memory_of_their_own(rig: Rig) -> None:
    batch = rig.lanes(128, 5)
    blocks = batch.block_table.ravel().tolist()
    chain = rig.chain(128, 5)
    assert len(set(blocks)) == len(blocks)
    assert not set(blocks) & set(chain.block_table.ravel().tolist())
    assert batch.positions.tolist() == [128] * 5
    assert chain.positions.tolist() == [128, 129, 130, 131, 132]
    assert rig.max_lanes(128) >= 64


def test_lanes_are_alike_whatever_ran_before(rig: Rig) -> None:
    rig.backend.forward(rig.lanes(128, 33))
    rig.fill_lanes(128)
    assert len(set(rig.hashes(rig.lanes(128, 7)))) == 1


def test_contexts_that_do_not_fit_are_left_out(rig: Rig) -> None:
    assert rig.contexts(False) == [128]  # the tiny model holds 1024 tokens


def test_step_costs(rig: Rig) -> None:
    groups: list[int] = []
    costs = measure_steps(rig, True, lambda: groups.append(1))
    assert len(groups) == num_step_groups(rig, True)
    assert [(cost.kind, cost.rows) for cost in costs] == [
        *(("chain", rows) for rows in (1, 4, 16, 64)),
        *(("sequences", rows) for rows in (1, 4, 16, 64)),
        ("prefill", 512),
    ]
    assert all(cost.seconds > 0 for cost in costs)
    assert all(cost.ratio == 1.0 for cost in costs if cost.rows in (1, 512))


def test_draws_and_engine(rig: Rig, loaded: tuple[LLM, EngineOptions]) -> None:
    draws = measure_draws(rig, True)
    assert len(draws) == 6
    assert [cost.over_greedy for cost in draws if cost.method == "greedy"] == [0.0, 0.0]
    assert all(cost.seconds > 0 and cost.vocab_size == loaded[0].model.spec.vocab_size for cost in draws)
    engine = measure_engine(loaded[0], rig, loaded[1], True)
    assert [cost.batch for cost in engine] == [1, 16]
    assert all(0 < cost.outside_s < cost.step_s for cost in engine)
    assert engine[1].tokens_per_s == 16 / engine[1].step_s


def test_logits_are_equal(rig: Rig) -> None:
    found = check_equality(rig, True)
    assert (found.rows, found.difference) == (33, None)


def test_a_kernel_that_is_not_row_invariant_is_found(tiny_model: Path) -> None:
    faulty, _ = load(tiny_model, fault="row_ulp")
    found = check_equality(Rig(faulty), True)
    assert found.difference == "row of a chain alone and in it: logits of row 0 differ"


def test_what_cannot_be_measured_is_refused(tiny_model: Path) -> None:
    reference = LLM(str(tiny_model), speculation="off", options=EngineOptions(backend="reference"))
    with pytest.raises(UsageError, match="only the cpu backend"):
        Rig(reference)
