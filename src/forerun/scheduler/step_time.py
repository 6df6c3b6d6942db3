"""StepTime: predicts how long a step takes, so that prefill can be limited by time instead of by token count.

    plain     t = now * (base + per_row * rows + per_key * keys)        keys: visible keys summed over the rows
    prompts   add prompts * (per_row * rows + per_key * keys)

The three coefficients are learned from plain steps by recursive least squares with forgetting, kept non-negative. `now`
and `prompts` are what was measured lately over what the coefficients say. A long prompt takes hundreds of steps that
are nearly alike, from which least squares would soon learn anything for what a plain step takes; a ratio can only
follow. So that it has something to follow, one step among many beside a long prompt stays plain.

The prediction decides only how prompts are cut into chunks, which never changes a result.
"""

from collections.abc import Sequence

FORGETTING = 0.98  # about the last 50 steps count
MAX_TRACE = 1e3  # of the covariance
ROW_SCALE, KEY_SCALE = 1e-2, 1e-5  # bring the three features to a similar size
PLAIN_EVERY = 16  # steps, when prompts are limited by time
OUTLIER = 1.5  # a plain step that takes more times what was predicted counts as this: the machine was busy elsewhere
LEARNED = 10.0  # the same for the coefficients, which may have been far off
SHORTEST_S = 1e-3  # what a step may always count as, so that little is predicted of nothing


class StepTime:
    """Online model of a step's seconds.

    Plain floats: it runs right after the weights have passed through the caches, when what a step calls first is slow.
    """

    def __init__(self, base_s: float = 5e-3, per_row_s: float = 3e-4, per_key_s: float = 1e-8) -> None:
        self._theta = [base_s, per_row_s / ROW_SCALE, per_key_s / KEY_SCALE]
        self._covariance = [[10.0, 0.0, 0.0], [0.0, 10.0, 0.0], [0.0, 0.0, 10.0]]
        self._now, self._prompts = _Ratio(0.8), _Ratio(0.95)
        self._since_plain = 0

    def predict(self, rows: int, keys: int) -> float:
        """Seconds of a plain step with `rows` rows that look at `keys` keys in all."""
        return self._now.value * _dot(_features(rows, keys), self._coefficients)

    @property
    def wants_plain(self) -> bool:
        """True when the next step should have no prompts: too long ago is the last such one."""
        return self._since_plain >= PLAIN_EVERY

    def observe(self, rows: int, keys: int, seconds: float, prompt_rows: int = 0, prompt_keys: int = 0) -> None:
        """Learn from one measured step: of rows that decode, and of prompts' rows if it had some."""
        if not prompt_rows:
            self._since_plain = 0
            predicted = _dot(_features(rows, keys), self._coefficients)
            self._now.observe(min(seconds, max(OUTLIER * self._now.value * predicted, SHORTEST_S)), predicted)
            self._learn(_features(rows, keys), min(seconds, max(LEARNED * predicted, SHORTEST_S)))
        elif rows:
            self._since_plain += 1
            row, key = self._row_and_key
            # Not bounded: to believe that prompts cost little would fill the steps with them.
            self._prompts.observe(seconds - self.predict(rows, keys), row * prompt_rows + key * prompt_keys)

    def rows_within(self, seconds: float, context: int, limit: int) -> int:
        """Most rows of one prompt's chunk that starts at `context` so that they add at most `seconds`."""
        per_row, per_key = (self._prompts.value * each for each in self._row_and_key)
        if seconds <= 0:
            return 0
        # seconds = a n^2 + b n, since row i of the chunk sees context + i keys. Solved without a difference, which
        # would cancel to nothing for a small a.
        a, b = per_key / 2, per_row + per_key * (context + 0.5)
        denominator = b + (b * b + 4 * a * seconds) ** 0.5
        return int(min(limit, 2 * seconds / denominator)) if denominator > 0 else limit

    @property
    def _coefficients(self) -> list[float]:
        return [max(value, 0.0) for value in self._theta]

    @property
    def _row_and_key(self) -> tuple[float, float]:
        _, row, key = self._coefficients
        return row * ROW_SCALE, key * KEY_SCALE

    def _learn(self, x: Sequence[float], seconds: float) -> None:
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


class _Ratio:
    """Measured over predicted, of the last steps together."""

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self._measured = self._predicted = SHORTEST_S

    @property
    def value(self) -> float:
        """1 before anything was measured; at least 0.1."""
        return max(self._measured, 0.1 * self._predicted) / self._predicted

    def observe(self, measured: float, predicted: float) -> None:
        self._measured = self._forgetting * self._measured + measured
        self._predicted = max(self._forgetting * self._predicted + predicted, 1e-9)


def _features(rows: int, keys: int) -> tuple[float, float, float]:
    return 1.0, rows * ROW_SCALE, keys * KEY_SCALE


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
