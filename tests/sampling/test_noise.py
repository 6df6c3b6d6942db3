"""Noise: published vectors of Philox, independence of how it is computed, and a sane distribution."""

import numpy as np
import pytest

from forerun.sampling.noise import gumbel, make_key, philox, random_seed, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, want):
    assert tuple(int(word) for word in philox(counter, key)) == want


def test_a_tokens_words_are_the_halves_of_its_counters_words():
    x0, x1, x2, x3 = (int(word) for word in philox((77, 5, 0, 0), (3, 4)))
    bits = [(x0 << 32 | x1) >> 12, (x2 << 32 | x3) >> 12]
    assert uniform((3, 4), 77, [10, 11]).tolist() == [(b + 0.5) / 2**52 for b in bits]


def test_each_value_can_be_computed_alone_and_in_any_order():
    ids = np.random.default_rng(0).permutation(1000)
    together = gumbel((9, 8), 123456, ids)
    alone = [gumbel((9, 8), 123456, [i])[0] for i in ids[:50]]
    assert together[:50].tolist() == alone
    assert np.array_equal(together[np.argsort(ids)], gumbel((9, 8), 123456, np.arange(1000)))


def test_noise_is_finite_at_the_ends_of_the_unit_interval():
    smallest, largest = 0.5 / 2**52, (2**52 - 0.5) / 2**52
    assert smallest > 0.0
    assert largest < 1.0
    assert np.isfinite(-np.log(-np.log1p(-np.array([smallest, largest])))).all()


@pytest.mark.parametrize("axis", ["token", "position", "key"])
def test_uniform_along_every_axis(axis):
    n, bins = 64_000, 64
    if axis == "token":
        u = uniform((1, 2), 3, np.arange(n))
    elif axis == "position":
        u = np.array([uniform((1, 2), p, [40, 41, 42, 43]) for p in range(n // 4)]).ravel()
    else:
        u = np.array([uniform(make_key(7, c), 3, np.arange(16)) for c in range(n // 16)]).ravel()
    counts = np.bincount((u * bins).astype(int), minlength=bins)
    chi2 = ((counts - n / bins) ** 2 / (n / bins)).sum()
    assert 25.0 < chi2 < 125.0  # 63 degrees of freedom: outside with probability below 1e-5
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 5 / np.sqrt(n)


def test_gumbel_has_the_moments_of_a_standard_gumbel():
    g = gumbel((5, 6), 0, np.arange(200_000))
    assert abs(g.mean() - 0.5772157) < 5 * 1.2825 / np.sqrt(len(g))
    assert abs(g.var() - np.pi**2 / 6) < 0.03


def test_keys_depend_on_seed_and_choice_for_any_int():
    seeds = [0, 1, -1, 12, 2**64, 2**127 + 1, -(10**30)]
    keys = {make_key(seed, choice) for seed in seeds for choice in (0, 1, 2, 12)}
    assert len(keys) == len(seeds) * 4
    assert all(0 <= word < 2**32 for key in keys for word in key)
    assert make_key(1, 23) != make_key(12, 3)
    assert make_key(42, 0) == make_key(42, 0)


def test_random_seeds_differ_and_survive_json():
    seeds = {random_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**53 for seed in seeds)
