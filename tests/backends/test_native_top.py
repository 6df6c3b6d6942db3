"""The native top ids are those of sampling/top.py, ties, NaN and infinities included."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import _native
from forerun.backends.cpu_program import CpuResult
from forerun.sampling.flatten import pack_draws
from forerun.sampling.top import top_ids

VALUES = st.sampled_from([0.0, -0.0, 1.0, 2.0, -3.5, 1e-30, np.inf, -np.inf, np.nan])


def result_of(logits):
    return CpuResult(logits, pack_draws((), len(logits)))


@pytest.mark.parametrize("width", [1, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 49_152])
@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_sizes(width, count):
    count = min(count, width)
    logits = np.random.default_rng(width).standard_normal((5, width)).astype(np.float32)
    rows = [4, 0, 0, 2]
    assert np.array_equal(result_of(logits).top(rows, count), top_ids(logits, rows, count))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.lists(VALUES, min_size=1, max_size=200))
def test_ties_and_what_is_no_number(data, values):
    logits = np.array([values], np.float32)
    count = data.draw(st.integers(1, min(len(values), 32)))
    assert result_of(logits).top([0], count).tolist() == top_ids(logits, [0], count).tolist()


@pytest.mark.parametrize("values", [np.arange(4096), -np.arange(4096), np.zeros(4096), np.arange(4096) % 7])
def test_order_of_the_row_does_not_matter(values):
    logits = values.astype(np.float32)[None]
    assert np.array_equal(result_of(logits).top([0], 32), top_ids(logits, [0], 32))


def test_no_rows():
    assert result_of(np.zeros((2, 8), np.float32)).top([], 3).shape == (0, 3)


@pytest.mark.parametrize("count", [0, -1, 9])
def test_impossible_counts_are_refused(count):
    with pytest.raises(ValueError, match="between 1 and 8"):
        result_of(np.zeros((2, 8), np.float32)).top([0], count)


@pytest.mark.parametrize("row", [-1, 2])
def test_rows_that_are_not_there_are_refused(row):
    with pytest.raises(IndexError):
        result_of(np.zeros((2, 8), np.float32)).top([row], 3)
    with pytest.raises(ValueError, match="one row for each"):
        _native.top_ids(np.zeros((2, 8), np.float32), [0], np.zeros((2, 3), np.int32))
