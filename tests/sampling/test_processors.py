"""The processors against a slow definition in plain Python lists, and the edges one by one."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.sampling.processors import History, process, processed_probs


def slow_process(row, options, position):
    """Survivors as {id: weight} by the words of the definition, or None when the row is not finite."""
    z = [float(x) for x in row]
    if any(math.isnan(x) or x == math.inf for x in z) or all(x == -math.inf for x in z):
        return None
    for token, count in options.get("history", {}).items():
        if not 0 <= token < len(z):
            continue
        penalty = options.get("repetition_penalty", 1.0)
        z[token] = z[token] / penalty if z[token] > 0 else z[token] * penalty
        if count > 0:
            z[token] -= options.get("frequency_penalty", 0.0) * count + options.get("presence_penalty", 0.0)
    for token, bias in options.get("bias", {}).items():
        if 0 <= token < len(z):
            z[token] += bias
    if position < options.get("banned_until", 0):
        for token in options.get("banned", []):
            if 0 <= token < len(z):
                z[token] = -math.inf
    if "allowed" in options:
        z = [value if token in options["allowed"] else -math.inf for token, value in enumerate(z)]
    best = max(z)
    if best == -math.inf:
        return None
    temperature = options.get("temperature", 0.0)
    if temperature == 0.0:
        return {z.index(best): 1.0}
    order = sorted((i for i in range(len(z)) if z[i] > -math.inf), key=lambda i: (-z[i], i))
    weight = {i: math.exp((z[i] - best) / temperature) for i in order}
    if options.get("top_k", 0) > 0:
        order = order[: options["top_k"]]
    top_p = options.get("top_p", 1.0)
    if top_p < 1.0:
        total, cum, kept = math.fsum(weight[i] for i in order), 0.0, []
        for i in order:
            kept.append(i)
            cum += weight[i]
            if cum >= top_p * total:
                break
        order = kept
    return {i: weight[i] for i in order if weight[i] >= options.get("min_p", 0.0)}


logit = st.one_of(st.integers(-4, 4).map(float), st.floats(-30, 30, width=32), st.just(-math.inf))
token_map = st.integers(0, 14)  # two of these ids lie behind a vocabulary of 12
OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 1.7]),
        "top_k": st.integers(0, 15),
        "top_p": st.sampled_from([0.05, 0.25, 0.5, 0.77, 0.99, 1.0]),
        "min_p": st.sampled_from([0.0, 0.003, 0.11, 0.77]),
        "repetition_penalty": st.sampled_from([1.0, 0.7, 1.3]),
        "frequency_penalty": st.sampled_from([0.0, 0.5, -0.25]),
        "presence_penalty": st.sampled_from([0.0, 1.5, -0.5]),
        "history": st.dictionaries(token_map, st.integers(0, 3)),
        "bias": st.dictionaries(token_map, st.floats(-50, 50)),
        "banned": st.lists(token_map, unique=True),
        "banned_until": st.integers(8, 12),
        "allowed": st.lists(token_map, unique=True),
    },
)


@settings(max_examples=600, deadline=None, derandomize=True)
@given(st.lists(logit, min_size=1, max_size=12), OPTIONS)
def test_processors_match_the_plain_definition(make_request, row, options):
    want = slow_process(row, options, position=10)
    request = make_request(**options)
    got = process(np.array(row, np.float32), request, 10, History(request))
    if want is None:
        assert got is None
        return
    assert got is not None
    assert got.ids.tolist() == sorted(want)
    assert np.exp(got.log_weights) == pytest.approx([want[i] for i in sorted(want)], rel=1e-12)
    probs = processed_probs(np.array(row, np.float32), request, 10, History(request))
    assert probs is not None
    assert probs.sum() == pytest.approx(1.0, abs=1e-12)
    assert np.flatnonzero(probs).tolist() == [i for i in sorted(want) if want[i] > 0]


def survivors(make_request, row, **options):
    request = make_request(**{"temperature": 1.0, **options})
    result = process(np.array(row, np.float32), request, request.position, History(request))
    return None if result is None else result.ids.tolist()


def test_exactly_k_survive_a_tie_and_lower_ids_win(make_request):
    assert survivors(make_request, [0, 5, 5, 5, 1], top_k=2) == [1, 2]
    assert survivors(make_request, [3, 3, 3, 3], top_k=3) == [0, 1, 2]
    assert survivors(make_request, [1, 4, 4], top_k=1) == [1]
    assert survivors(make_request, [1, 2, 3], top_k=99) == [0, 1, 2]


def test_top_p_takes_the_shortest_prefix_and_at_least_one(make_request):
    assert survivors(make_request, [1, 1, 1, 1], top_p=0.5) == [0, 1]  # 2 of 4 equal weights reach it exactly
    assert survivors(make_request, [1, 1, 1, 1], top_p=0.51) == [0, 1, 2]
    assert survivors(make_request, [0, 9, 1], top_p=1e-9) == [1]


def test_top_p_is_a_share_of_what_top_k_left(make_request):
    row = np.log([0.4, 0.3, 0.2, 0.1])
    assert survivors(make_request, row, top_p=0.6) == [0, 1]
    assert survivors(make_request, row, top_p=0.56, top_k=2) == [0]  # 0.4 of 0.7 is 0.571


def test_min_p_of_one_keeps_the_ties_of_the_largest(make_request):
    assert survivors(make_request, [2, 7, 7, 6.999], min_p=1.0) == [1, 2]


def test_greedy_ignores_filters_and_takes_the_lowest_id(make_request):
    assert survivors(make_request, [1, 6, 6], temperature=0.0, top_k=3, top_p=0.1) == [1]


def test_bans_end_at_their_position(make_request):
    options = {"temperature": 0.0, "banned": [1], "banned_until": 11}
    assert survivors(make_request, [0, 5, 1], position=10, **options) == [2]
    assert survivors(make_request, [0, 5, 1], position=11, **options) == [1]


def test_a_bias_cannot_lift_a_ban(make_request):
    assert survivors(make_request, [0, 5], temperature=0.0, bias={1: 1e30}, banned=[1], banned_until=99) == [0]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_one_bad_value_makes_the_row_not_finite(make_request, bad, temperature):
    for place in range(3):
        row = [1.0, 2.0, -math.inf]
        row[place] = bad
        assert survivors(make_request, row, temperature=temperature) is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_is_not_finite(make_request, temperature):
    assert survivors(make_request, [-math.inf] * 3, temperature=temperature) is None
    banned = {"banned": [0, 1], "banned_until": 99}
    assert survivors(make_request, [1, 2], temperature=temperature, **banned) is None
    overflow = {"history": {1: 0}, "repetition_penalty": 1e-308}
    assert survivors(make_request, [1, 2000], temperature=temperature, **overflow) is None


def test_a_tiny_temperature_leaves_the_largest(make_request):
    assert survivors(make_request, [1, 3, 3, 2], temperature=1e-320) == [1, 2]


@pytest.mark.parametrize("spread", [0.01, 3.0], ids=["flat", "peaked"])
@pytest.mark.parametrize("options", [{"top_p": 0.9}, {"top_k": 700}, {"top_k": 5, "top_p": 0.5}], ids=str)
def test_large_vocabularies_keep_what_a_full_sort_keeps(make_request, spread, options):
    """With ties: the quick selection must not depend on how a partial sort leaves them."""
    row = np.round(np.random.default_rng(1).standard_normal(4000) * spread, 2).astype(np.float32)
    request = make_request(temperature=1.0, **options)
    order = sorted(range(len(row)), key=lambda token: (-row[token], token))[: options.get("top_k", len(row))]
    z = row.astype(float)
    weights = np.exp(z[order] - z.max())
    enough = np.cumsum(weights) >= options.get("top_p", 1.0) * weights.sum() * (1 - 1e-12)
    expected = order[: int(enough.argmax()) + 1] if "top_p" in options else order
    assert process(row, request, 5, History(request)).ids.tolist() == sorted(expected)
