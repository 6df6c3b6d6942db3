"""Quantisation while loading: never worse than plain rounding, always finite, the same bits in any piece."""

import gguf
import numpy as np
import pytest

from forerun.backends.quantisation import AT_ONCE, quantise
from forerun.models.files.dequantise import dequantise

KINDS = gguf.GGMLQuantizationType


def restored(blocks: np.ndarray, kind: str, count: int) -> np.ndarray:
    return dequantise(blocks.reshape(-1), KINDS[kind], count).reshape(-1, 32)


def halves(blocks: np.ndarray, kind: str) -> np.ndarray:
    """[groups, 1 or 2] float16: scales, and minima where the format has them."""
    size, count = (34, 1) if kind == "Q8_0" else (20, 2)
    return np.ascontiguousarray(blocks.reshape(-1, size)[:, : 2 * count]).view(np.float16)


def plainly(groups: np.ndarray) -> np.ndarray:
    """Groups [n, 32] in 15 steps from the least to the largest, both numbers rounded to float16."""
    least = np.clip(groups.min(axis=1, keepdims=True), -65504, 65504).astype(np.float16).astype(np.float32)
    scale = np.clip((groups.max(axis=1, keepdims=True) - least) / 15, 0, 65504).astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint((groups - least) / np.maximum(scale, np.float32(2**-24))), 0, 15)
    return codes * scale + least


def squared(errors: np.ndarray) -> np.ndarray:
    return (errors.astype(np.float64) ** 2).sum(axis=1)


def weights(name: str) -> np.ndarray:
    """[n, 32] float32 groups of a kind."""
    rng = np.random.default_rng(3)
    normal = rng.standard_normal((500, 32), np.float32)
    return {
        "normal": normal,
        "heavy tails": rng.standard_t(2, (500, 32)).astype(np.float32),
        "one sided": np.abs(normal) + np.float32(3),
        "small": normal * np.float32(1e-3),
        "subnormal halves": normal * np.float32(1e-6),
        "below halves": normal * np.float32(1e-12),
        "subnormal floats": normal * np.float32(1e-40),
        "large": normal * np.float32(1e4),
        "far above halves": normal * np.float32(1e30),
        "largest floats": np.sign(normal) * np.float32(3.4e38),
        "far from zero": normal * np.float32(1e-3) + np.float32(100),
        "of five bits": rng.integers(-16, 16, (500, 32)).astype(np.float32) * np.float32(0.01),
        "two values": np.where(normal > 1, np.float32(0.7), np.float32(-0.2)),
        "one outlier": normal * np.float32(0.01) + np.eye(32, dtype=np.float32)[rng.integers(0, 32, 500)],
    }[name]


NAMES = ("normal", "heavy tails", "one sided", "small", "subnormal halves", "below halves", "subnormal floats", "large")
NAMES += ("far above halves", "largest floats", "far from zero", "of five bits", "two values", "one outlier")


@pytest.mark.parametrize("name", NAMES)
def test_four_bits_are_never_worse_than_steps_from_least_to_largest(name):
    groups = weights(name)
    blocks = quantise(groups, "Q4_1")
    got = restored(blocks, "Q4_1", groups.size)
    assert np.isfinite(halves(blocks, "Q4_1")).all()
    assert np.isfinite(got).all()
    assert (squared(got - groups) <= squared(plainly(groups) - groups) * (1 + 1e-4)).all()  # sums in float32


@pytest.mark.parametrize(("name", "share"), [("normal", 0.88), ("heavy tails", 0.85), ("of five bits", 0.8)])
def test_four_bits_are_clearly_better_on_the_whole(name, share):
    groups = weights(name)
    got = restored(quantise(groups, "Q4_1"), "Q4_1", groups.size)
    assert squared(got - groups).sum() < share * squared(plainly(groups) - groups).sum()


@pytest.mark.parametrize("name", NAMES)
def test_eight_bits_are_within_half_a_step(name):
    groups = weights(name)
    blocks = quantise(groups, "Q8_0")
    got = restored(blocks, "Q8_0", groups.size)
    assert np.isfinite(halves(blocks, "Q8_0")).all()
    largest = np.abs(groups).max(axis=1)
    held = largest < 127 * 65504
    bound = largest / 127 * 0.51 + 127 * 2**-25 + largest * 2**-11  # half a step, and float16's rounding of the scale
    assert (np.abs(got - groups).max(axis=1) <= bound)[held].all()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("value", [0.0, 1.0, -0.375, 6e-8, -1e-30, 65504.0, 1e30])
def test_constant_groups(kind, value):
    groups = np.full((3, 32), value, np.float32)
    blocks = quantise(groups, kind)
    largest = 65504 * (127 if kind == "Q8_0" else 16)
    expected = np.clip(groups, -largest, largest)
    np.testing.assert_allclose(restored(blocks, kind, groups.size), expected, rtol=1e-3, atol=127 * 2**-25)
    assert np.isfinite(halves(blocks, kind)).all()


def test_what_four_bits_hold_exactly_stays_exact():
    codes = np.random.default_rng(1).integers(0, 16, (400, 32)).astype(np.float32)
    codes[:, 0], codes[:, 1] = 0, 15
    groups = codes * np.float32(0.125) - np.float32(0.75)
    np.testing.assert_array_equal(restored(quantise(groups, "Q4_1"), "Q4_1", groups.size), groups)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_rows_have_the_same_bits_in_any_piece(kind):
    rows = np.random.default_rng(2).standard_t(4, (AT_ONCE // 2 + 9, 96)).astype(np.float32)  # more than one pass
    whole = quantise(rows, kind)
    assert whole.shape == (len(rows), 3 * (34 if kind == "Q8_0" else 20))
    pieces = [quantise(rows[start : start + 7], kind) for start in range(0, len(rows), 7)]
    assert np.concatenate(pieces).tobytes() == whole.tobytes()
