"""The thread pool when cores are short: more threads than cores and pauses of every length, and no step is lost."""

import threading
import time

import numpy as np
import pytest

from forerun import _native
from forerun.backends.cpu import CpuBackend
from tests.backends.test_cpu_backend import SPECS, prepared, tokens
from tests.steps import Rows, make_batch

SPEC = SPECS["llama, grouped, tied"]


@pytest.mark.parametrize("threads", [2, 16])
def test_every_step_ends_with_the_same_bits_however_late_threads_are(threads):
    batch = make_batch([Rows(tokens(SPEC, 40), 0, [3, 1, 0])], 16)
    expected = prepared(CpuBackend(1), SPEC).forward(batch).logits(range(40))
    backend = prepared(CpuBackend(threads), SPEC)
    for step in range(60):
        np.testing.assert_array_equal(backend.forward(batch).logits(range(40)), expected)
        time.sleep(step % 4 * 1e-4)  # workers still spin, or have just gone to sleep, or sleep


def test_pools_work_beside_each_other():
    batch = make_batch([Rows(tokens(SPEC, 40), 0, [3, 1, 0])], 16)
    backends = [prepared(CpuBackend(3), SPEC) for _ in range(3)]
    expected = backends[0].forward(batch).logits(range(40))
    equal = []

    def steps(backend):
        equal.extend(np.array_equal(backend.forward(batch).logits(range(40)), expected) for _ in range(20))

    threads = [threading.Thread(target=steps, args=(backend,)) for backend in backends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive(), "a step hangs"
    assert equal == [True] * 60


def test_a_pool_ends_whether_its_workers_spin_or_sleep():
    for pause in (0.0, 0.0, 0.01):
        pool = _native.ThreadPool(8)
        time.sleep(pause)
        del pool
