"""StepTime: predicts how long a step takes, so that prefill can be limited by time instead of by token count.

    t = base + per_row * rows + per_key * keys         keys: visible keys summed over the rows (attention work)

The three coefficients are learned while running by recursive least squares with forgetting, kept non-negative. The
prediction decides only how prompts are cut into chunks, which never changes a result.
"""

import numpy as np
import numpy.typing as npt

FORGETTING = 0.98  # about the last 50 steps count


class StepTime:
    """Online linear model of a step's seconds."""

    def __init__(self, base_s: float = 5e-3, per_row_s: float = 3e-4, per_key_s: float = 1e-8) -> None:
        self._scale = np.array([1.0, 1e-2, 1e-5])  # brings the three features to a similar size
        self._theta = np.array([base_s, per_row_s, per_key_s]) / self._scale
        self._covariance = np.eye(3) * 10.0

    def predict(self, rows: int, keys: int) -> float:
        """Seconds of a step with `rows` rows that look at `keys` keys in all."""
        return float(self._features(rows, keys) @ np.maximum(self._theta, 0.0))

    def observe(self, rows: int, keys: int, seconds: float) -> None:
        """Learn from one measured step."""
        x = self._features(rows, keys)
        px = self._covariance @ x
        gain = px / (FORGETTING + x @ px)
        self._theta = self._theta + gain * (seconds - x @ self._theta)
        self._covariance = (self._covariance - np.outer(gain, px)) / FORGETTING
        # Steps that are all alike would let the covariance grow without bound along directions never seen.
        trace = float(np.trace(self._covariance))
        if trace > 1e3:
            self._covariance *= 1e3 / trace

    def rows_within(self, seconds: float, context: int, limit: int) -> int:
        """Most rows of one chunk that starts at `context` so that they add at most `seconds`."""
        _, per_row, per_key = np.maximum(self._theta, 0.0) * self._scale
        if seconds <= 0:
            return 0
        # seconds = a n^2 + b n, since row i of the chunk sees context + i keys. Solved without a difference, which
        # would cancel to nothing for a small a.
        a, b = per_key / 2, per_row + per_key * (context + 0.5)
        denominator = b + (b * b + 4 * a * seconds) ** 0.5
        return int(min(limit, 2 * seconds / denominator)) if denominator > 0 else limit

    def _features(self, rows: int, keys: int) -> npt.NDArray[np.float64]:
        features: npt.NDArray[np.float64] = np.array([1.0, rows, keys], np.float64) * self._scale
        return features
