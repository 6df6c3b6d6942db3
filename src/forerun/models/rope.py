"""Rotary tables: the one place where a position becomes an angle.

Every backend takes its rotation from `rope_table`, computed once at load. Angles are computed in float64 and their
cosine and sine rounded to float32, so that a token's rotation depends on its position and the model alone, not on a
machine's float32 libm.
"""

import math

import numpy as np
import numpy.typing as npt

from forerun.models.spec import RopeSpec


def rope_table(spec: RopeSpec, max_positions: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosine and sine of every position and pair: two [max_positions, rotary_dim / 2] float32 arrays.

    angle[p, i] = (p / linear_factor) * theta ** (-2 i / rotary_dim) / freq_factors[i]
    """
    frequencies = base_frequencies(spec.theta, spec.rotary_dim)
    if spec.freq_factors is not None:
        frequencies = frequencies / np.asarray(spec.freq_factors, np.float64)
    positions = np.arange(max_positions, dtype=np.float64) / spec.linear_factor
    angles = np.outer(positions, frequencies)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def base_frequencies(theta: float, rotary_dim: int) -> npt.NDArray[np.float64]:
    """[rotary_dim / 2] float64 angles per position of unscaled RoPE, highest frequency first."""
    return np.power(float(theta), -np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)


def llama3_freq_factors(
    theta: float,
    rotary_dim: int,
    *,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    original_context: int,
) -> tuple[float, ...]:
    """[rotary_dim / 2] divisors of the base frequencies under Llama 3.1's scaling ("rope_type": "llama3").

    Wavelengths shorter than original_context / high_freq_factor stay, those longer than
    original_context / low_freq_factor are stretched by `factor`, and those between move linearly from one to the other.
    """
    factors = []
    for frequency in base_frequencies(theta, rotary_dim):
        turns = original_context * float(frequency) / (2.0 * math.pi)  # rotations within the original context
        if turns >= high_freq_factor:
            factors.append(1.0)
        elif turns <= low_freq_factor:
            factors.append(factor)
        else:
            keep = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
            factors.append(1.0 / (keep + (1.0 - keep) / factor))
    return tuple(factors)
