"""ProfiledCpuBackend: same bits as without, and times that fit each other."""

import time

import numpy as np
import pytest

from forerun import _native
from forerun.backends.cpu import CpuBackend
from forerun.backends.profiled import ProfiledCpuBackend
from forerun.profile import Profile
from tests.backends.test_cpu_backend import SPECS, prepared, tokens
from tests.steps import Rows, make_batch

SPEC = SPECS["llama, grouped, tied"]


class Recorded(Profile):
    """Keeps the arguments of every call."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def record_ops(self, names, spans):
        self.calls.append((list(names), spans))
        super().record_ops(names, spans)


@pytest.mark.parametrize("threads", [1, 3])
def test_spans_fit_each_other_and_bits_are_the_same(threads):
    profile = Recorded()
    profiled, plain = prepared(ProfiledCpuBackend(profile, threads), SPEC), prepared(CpuBackend(threads), SPEC)
    batch = make_batch([Rows(tokens(SPEC, 70), 0, [3, 1, 0, 2, 5])], 16)
    begin = time.perf_counter_ns()
    result = profiled.forward(batch)
    end = time.perf_counter_ns()
    np.testing.assert_array_equal(result.logits(range(70)), plain.forward(batch).logits(range(70)))
    names, spans = profile.calls[0]
    assert spans.shape == (1 + threads, len(names), 2)
    whole = spans[0].ravel()
    assert (np.diff(whole) >= 0).all(), "operations follow each other"
    assert begin <= whole[0] <= whole[-1] <= end
    for part in spans[1:]:
        took_part = part[:, 1] > 0
        assert (part[took_part, 0] >= spans[0, took_part, 0]).all()
        assert (part[took_part, 1] <= spans[0, took_part, 1]).all()
    linear = [index for index, name in enumerate(names) if name.startswith("linear")]
    assert (spans[1:, linear, 1] > 0).any(axis=0).all(), "somebody worked on every matrix"


def test_operations_are_named_by_kind_shape_and_format():
    profile = Recorded()
    backend = prepared(ProfiledCpuBackend(profile, 1), SPEC)
    backend.forward(make_batch([Rows(tokens(SPEC, 2), 0, [0])], 16))
    kinds = {name.split()[0] for name in profile.operations}
    together = {"embed+norm+round", "rope+write_kv", "add+norm+round", "silu+round", "select+norm+round"}
    assert kinds == {"linear", "attention", "round", "add", *together}
    assert any(name.startswith(f"linear {SPEC.hidden} x {SPEC.vocab_size}, ") for name in profile.operations)
    assert profile.operations["attention"].calls == SPEC.num_layers


def test_timing_can_be_stopped_by_others_and_goes_on():
    profile = Recorded()
    backend = prepared(ProfiledCpuBackend(profile, 1), SPEC)
    for _ in range(2):
        backend.forward(make_batch([Rows([1], 0, [0])], 16))
        _native.time_ops(backend.program, False)
    assert len(profile.calls) == 2
    with pytest.raises(ValueError, match="call time_ops first"):
        _native.op_spans(backend.program)
