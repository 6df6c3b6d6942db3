"""quantise: rows of float32 weights as GGUF blocks of 8 or 4 bits, for `--weights int8` and `int4`.

Eight bits are rounded to the nearest of 255 steps up to the largest weight: there a search for a better scale gains a
seventh of an error that is already two hundred times smaller. With four bits, steps from a group's least to its largest
weight are seldom the best. So ranges with an end moved a little in or out are tried, and scale and minimum are refitted
to the codes of each.

The sums that choose a range are of whole numbers and exact in float32: every machine stores the same bits.
"""

import numpy as np
import numpy.typing as npt

UInt8 = npt.NDArray[np.uint8]
Float16 = npt.NDArray[np.float16]
Float32 = npt.NDArray[np.float32]

GROUP = 32  # inputs with a scale of their own in int8 and int4
TOP = 15  # largest code of four bits
GRAIN = 1024  # parts of a step to which weights are rounded while a range is sought
MOVES = (-0.1, 0.4)  # steps by which an end of the range is moved inwards; finer grids gain 1 % more for 40 % more time
AT_ONCE = 2048  # groups: enough to hide the cost of a call, and scratch space that stays in the second-level cache
LARGEST = float(np.finfo(np.float16).max)
SMALLEST = float(np.finfo(np.float16).smallest_subnormal)


def quantise(values: Float32, kind: str) -> UInt8:
    """Finite rows [n, K] as blocks of Q8_0 or Q4_1, [n, bytes]; K a multiple of GROUP.

    The scales and minima stored are finite too, whatever the values. A group in Q4_1 is never further from its values,
    in squares, than with steps from its least to its largest value.
    """
    groups = values.reshape(-1, GROUP)
    blocks = _q8_0(groups) if kind == "Q8_0" else _q4_1(groups)
    return blocks.reshape(len(values), -1)


def _q8_0(groups: Float32) -> UInt8:
    scale = _half(np.abs(groups).max(axis=1) / 127)[:, None]
    codes = np.clip(np.rint(groups / _divisor(scale)), -127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)


def _q4_1(groups: Float32) -> UInt8:
    half = GROUP // 2
    blocks = np.empty((len(groups), 4 + half), np.uint8)
    scratch = np.empty((4, GROUP, min(AT_ONCE, len(groups))), np.float32)
    # Invalid: of constant groups and of huge weights come NaN and inf, which no comparison below prefers.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for first in range(0, len(groups), AT_ONCE):
            part = blocks[first : first + AT_ONCE]
            x, *space = scratch[:, :, : len(part)]  # a group is a column: all that follows runs along rows of x
            x[:] = groups[first : first + AT_ONCE].T
            scale, least, codes = _choose(x, space)
            part[:, 0:2], part[:, 2:4] = scale[:, None].view(np.uint8), least[:, None].view(np.uint8)
            codes[half:] *= 16
            codes[:half] += codes[half:]
            part[:, 4:] = codes[:half].T  # whole numbers up to 255
    return blocks


def _choose(x: Float32, space: list[Float32]) -> tuple[Float16, Float16, Float32]:
    """Scale [n], minimum [n] and codes of groups x [GROUP, n]: the fitted ones, or the plain ones if those err less."""
    low, high = x.min(axis=0), x.max(axis=0)
    fitted_codes, plain_codes, rest = space
    slope, offset = _fit(x, low, high, space[:2])
    step = (high - low) / TOP
    scale, least = _half(slope * step), _half(low + offset * step)
    error = _round(x, scale, least, fitted_codes, rest)
    plain_least = _half(low)
    plain_scale = _half((high - plain_least) / TOP)
    plain_error = _round(x, plain_scale, plain_least, plain_codes, rest)
    plain = ~(error < plain_error)
    np.copyto(fitted_codes, plain_codes, where=plain)
    return np.where(plain, plain_scale, scale), np.where(plain, plain_least, least), fitted_codes


def _fit(x: Float32, low: Float32, high: Float32, space: list[Float32]) -> tuple[Float32, Float32]:
    """Scale and minimum [n] of the best range, in steps from `low` to `high` and above `low`.

    Of a range's codes q, slope q + offset with the least squared distance from the weights y explains
    cov(q, y)^2 / var(q) of their variance: the range that explains most is the best.
    """
    y, q = space
    np.subtract(x, low, out=y)
    y *= (TOP * GRAIN) / np.maximum(high - low, np.float32(SMALLEST))
    np.rint(y, out=y)
    sum_y = y.sum(axis=0)
    slope, offset, most = np.ones_like(low), np.zeros_like(low), np.full_like(low, -1)
    ends = [(below, above) for below in MOVES for above in MOVES]
    ranges = [(np.full_like(low, 1 - (below + above) / TOP), np.full_like(low, below)) for below, above in ends]
    for scale, least in (*ranges, (slope, offset)):  # last the best fit so far, because new codes follow from it
        np.multiply(y, 1 / (GRAIN * scale), out=q)
        q -= least / scale
        np.rint(q, out=q)
        np.clip(q, 0, TOP, out=q)
        sum_q = q.sum(axis=0)
        var = GROUP * np.einsum("ij,ij->j", q, q) - sum_q * sum_q
        cov = (GROUP * np.einsum("ij,ij->j", q, y) - sum_q * sum_y) / GRAIN
        ratio = cov / var
        explained = cov * ratio
        better = explained > most
        np.copyto(most, explained, where=better)
        np.copyto(slope, ratio, where=better)
        np.copyto(offset, (sum_y / GRAIN - ratio * sum_q) / GROUP, where=better)
    return slope, offset


def _round(x: Float32, scale: Float16, least: Float16, codes: Float32, rest: Float32) -> Float32:
    """Fill `codes` with the nearest for the numbers that are stored; their squared errors [n]. rest  scratch space"""
    minimum = least.astype(np.float32)  # once, not for every row
    np.subtract(x, minimum, out=codes)
    codes *= 1 / _divisor(scale)
    np.rint(codes, out=codes)
    np.clip(codes, 0, TOP, out=codes)
    np.multiply(codes, scale.astype(np.float32), out=rest)
    rest += minimum
    rest -= x
    rest *= rest
    errors: Float32 = rest.sum(axis=0)
    return errors


def _half(numbers: Float32) -> Float16:
    return np.clip(numbers, -LARGEST, LARGEST).astype(np.float16)


def _divisor(scale: Float16) -> Float32:
    return np.maximum(scale.astype(np.float32), np.float32(SMALLEST))
