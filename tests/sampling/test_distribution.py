"""Draws follow the processed distribution: G-tests with stated power, and negative controls that must fail.

N = 12 000 draws over at most 32 bins find a total variation of 0.05 with probability above .999 at a false-alarm rate
of 1e-6 (tests/backends does it with more draws of the native walk). Keys are fixed, so a pass or a failure repeats.
"""

import math

import numpy as np
import pytest

from forerun.sampling.noise import make_key
from forerun.sampling.processors import History, processed_probs
from forerun.sampling.walk import draw_row

V = 32
N = 12_000
ROW = (np.random.default_rng(5).normal(size=V) * 1.5).astype(np.float32)
CASES = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_k": 12},
    {"temperature": 1.3, "top_p": 0.9},
    {"temperature": 1.0, "min_p": 0.05, "repetition_penalty": 1.4, "presence_penalty": 0.5, "history": {3: 1, 8: 0}},
]


def g_test_passes(counts, probs, alpha_z=4.753):
    """Whether counts agree with probs; bins below 10 expected are merged. alpha_z 4.753 is a one-sided 1e-6."""
    expected = np.asarray(probs).ravel() * np.sum(counts)
    observed = np.asarray(counts).ravel()
    if observed[expected == 0].any():
        return False
    small = (expected < 10) & (expected > 0)
    observed = np.append(observed[expected >= 10], observed[small].sum())
    expected = np.append(expected[expected >= 10], expected[small].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    g = 2 * sum(o * math.log(o / e) for o, e in zip(observed, expected, strict=True) if o)
    df = len(observed) - 1
    critical = df * (1 - 2 / (9 * df) + alpha_z * math.sqrt(2 / (9 * df))) ** 3  # Wilson-Hilferty
    return g < critical


def draw_many(request, places, row=ROW):
    history = History(request)
    return np.array([draw_row(row, request, position, history) for position in places])


@pytest.mark.parametrize("options", CASES)
def test_draws_follow_the_processed_distribution(make_request, options):
    request = make_request(**options, key=make_key(11, 0))
    tokens = draw_many(request, range(N))
    probs = processed_probs(ROW, request, 0, History(request))
    assert g_test_passes(np.bincount(tokens, minlength=V), probs)


def test_control_a_slightly_wrong_temperature_is_found(make_request):
    right, wrong = make_request(temperature=1.0), make_request(temperature=1.12, key=make_key(11, 0))
    tokens = draw_many(wrong, range(N))
    probs = processed_probs(ROW, right, 0, History(right))
    assert 0.5 * np.abs(probs - processed_probs(ROW, wrong, 0, History(wrong))).sum() < 0.06
    assert not g_test_passes(np.bincount(tokens, minlength=V), probs)


def joint_counts(first, second):
    return np.bincount(first * 4 + second, minlength=16)


def test_positions_and_choices_draw_independently_and_the_control_is_found(make_request):
    row = np.array([0.5, 0.0, -0.5, 0.2], np.float32)
    request = make_request(temperature=1.0, key=make_key(3, 0))
    other = make_request(temperature=1.0, key=make_key(3, 1))
    probs = processed_probs(row, request, 0, History(request))
    joint = np.outer(probs, probs)
    places = range(N // 2)
    tokens = draw_many(request, places, row)
    choice = draw_many(other, places, row)
    assert g_test_passes(joint_counts(tokens[::2], tokens[1::2]), joint)
    assert g_test_passes(joint_counts(tokens, choice), joint)
    reused = draw_many(request, [p // 2 for p in places], row)  # two positions share their noise
    assert g_test_passes(np.bincount(reused[::2], minlength=4), probs)  # each position alone looks right
    assert not g_test_passes(joint_counts(reused[::2], reused[1::2]), joint)
