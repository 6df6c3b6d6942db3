"""The recording of a forward pass, and the laws of its buffer plan."""

import pytest

from forerun.backends.recorder import Recorder, plan_buffers
from forerun.models import decoder
from tests.tiny import tiny_spec


def recorded(spec):
    recorder = Recorder(spec.weight_shapes())
    return recorder, decoder.logits(spec, recorder)


def test_the_steps_of_a_layer_in_order():
    recorder, result = recorded(tiny_spec(layers=1))
    assert [step.kind for step in recorder.steps] == [
        *("embed", "rms_norm", "linear", "rope", "rope", "write_kv", "attention", "linear", "add"),
        *("rms_norm", "linear", "silu_mul", "linear", "add", "select_outputs", "rms_norm", "linear"),
    ]
    assert recorder.steps[-1].writes == result
    assert result.width == 97


def test_matrices_are_listed_once_and_stacked():
    assert recorded(tiny_spec(layers=1))[0].matrices() == [
        ("embed",),
        ("layers.0.attn.q", "layers.0.attn.k", "layers.0.attn.v"),
        ("layers.0.attn.o",),
        ("layers.0.mlp.gate", "layers.0.mlp.up"),
        ("layers.0.mlp.down",),
    ]
    assert recorded(tiny_spec(layers=1, tied=False))[0].matrices()[-1] == ("output",)


def test_split_gives_consecutive_columns():
    recorder, _ = recorded(tiny_spec(layers=1))
    q, k = recorder.steps[3].reads[0], recorder.steps[4].reads[0]
    v = recorder.steps[5].reads[1]
    assert q.id == k.id == v.id
    assert [(x.column, x.width) for x in (q, k, v)] == [(0, 64), (64, 32), (96, 32)]


@pytest.mark.parametrize("spec", [tiny_spec(layers=1), tiny_spec("qwen2", layers=7, intermediate=200)])
def test_buffers_hold_a_value_until_its_last_read(spec):
    recorder, result = recorded(spec)
    plan = plan_buffers(recorder, result)
    holder: dict[int, int] = {}
    for step in recorder.steps:
        for value in step.reads:
            assert holder[plan.buffer_of[value.id]] == value.id
        if step.writes is not None:
            buffer = plan.buffer_of[step.writes.id]
            assert buffer not in [plan.buffer_of[value.id] for value in step.reads]
            assert plan.widths[buffer] >= step.writes.width
            assert plan.on_outputs[buffer] == recorder.on_outputs[step.writes.id]
            holder[buffer] = step.writes.id
    assert list(plan.buffer_of.values()).count(plan.buffer_of[result.id]) == 1
    assert plan.widths[plan.buffer_of[result.id]] == result.width


def test_the_number_of_buffers_does_not_depend_on_the_number_of_layers():
    plans = [plan_buffers(*recorded(tiny_spec(layers=n))) for n in (2, 20)]
    assert plans[0].widths == plans[1].widths
    assert len(plans[0].widths) <= 8
