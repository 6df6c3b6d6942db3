"""StepTime: predicts how long a step takes, so that prefill can be limited by time instead of by token count.

    t = base + per_row * rows + per_key * keys         keys: visible keys summed over the rows (attention work)

The three coefficients are learned while running by recursive least squares with forgetting, kept non-negative. The
prediction decides only how prompts are cut into chunks, which never changes a result.
"""

from collections.abc import Sequence

FORGETTING = 0.98  # about the last 50 steps count
MAX_TRACE = 1e3  # of the covariance
ROW_SCALE, KEY_SCALE = 1e-2, 1e-5  # bring the three features to a similar size


class StepTime:
    """Online linear model of a step's seconds.

    Plain floats: it runs right after the weights have passed through the caches, when what a step calls first is slow.
    """

    def __init__(self, base_s: float = 5e-3, per_row_s: float = 3e-4, per_key_s: float = 1e-8) -> None:
        self._theta = [base_s, per_row_s / ROW_SCALE, per_key_s / KEY_SCALE]
        self._covariance = [[10.0, 0.0, 0.0], [0.0, 10.0, 0.0], [0.0, 0.0, 10.0]]

    def predict(self, rows: int, keys: int) -> float:
        """Seconds of a step with `rows` rows that look at `keys` keys in all."""
        return _dot(_features(rows, keys), [max(value, 0.0) for value in self._theta])

    def observe(self, rows: int, keys: int, seconds: float) -> None:
        """Learn from one measured step."""
        x = _features(rows, keys)
        px = [_dot(row, x) for row in self._covariance]
        scale = 1 / (FORGETTING + _dot(x, px))
        error = seconds - _dot(self._theta, x)
        self._theta = [value + scale * p * error for value, p in zip(self._theta, px, strict=True)]
        updated = [
            [(c - scale * p * q) / FORGETTING for c, q in zip(row, px, strict=True)]
            for row, p in zip(self._covariance, px, strict=True)
        ]
        # Steps that are all alike would let the covariance grow without bound along directions never seen.
        shrink = min(1.0, MAX_TRACE / (updated[0][0] + updated[1][1] + updated[2][2]))
        self._covariance = [[shrink * c for c in row] for row in updated]

    def rows_within(self, seconds: float, context: int, limit: int) -> int:
        """Most rows of one chunk that starts at `context` so that they add at most `seconds`."""
        per_row, per_key = max(self._theta[1], 0.0) * ROW_SCALE, max(self._theta[2], 0.0) * KEY_SCALE
        if seconds <= 0:
            return 0
        # seconds = a n^2 + b n, since row i of the chunk sees context + i keys. Solved without a difference, which
        # would cancel to nothing for a small a.
        a, b = per_key / 2, per_row + per_key * (context + 0.5)
        denominator = b + (b * b + 4 * a * seconds) ** 0.5
        return int(min(limit, 2 * seconds / denominator)) if denominator > 0 else limit


def _features(rows: int, keys: int) -> tuple[float, float, float]:
    return 1.0, rows * ROW_SCALE, keys * KEY_SCALE


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
