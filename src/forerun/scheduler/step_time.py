"""StepTime: predicts how long a step takes, so that prefill can be limited by time instead of by token count.

    plain     t = now * (base + per_row * rows + per_key * keys)        keys: visible keys summed over the rows
    prompts   add prompts * (per_row * rows + per_key * keys)

The three coefficients are learned from plain steps by recursive least squares with forgetting, kept non-negative. `now`
and `prompts` are what was measured lately over what the coefficients say. A long prompt takes hundreds of steps that
are nearly alike, from which least squares would soon learn anything for what a plain step takes; a ratio can only
follow. So that it has something to follow, one step among many beside a long prompt stays plain.

Rows and keys grow together while sequences decode, so what one of them costs is known badly, and one slow step can
shift much from one to the other. Three things keep that harmless: no step counts for more than a few times what was
predicted, and what came before the first ordinary steps is forgotten, since the first ones find the caches cold; a row
costs a part of the base at least, so that no chunk looks free; and prompts that got the least for many steps get a few
rows more in one, because only that shows whether more is cheap.

The prediction decides only how prompts are cut into chunks, which never changes a result.
"""

from collections.abc import Sequence

FORGETTING = 0.98  # about the last 50 steps count
MAX_TRACE = 1e3  # of the covariance
ROW_SCALE, KEY_SCALE = 1e-2, 1e-5  # bring the three features to a similar size
PLAIN_EVERY = 16  # steps, when prompts are limited by time
OUTLIER = 1.5  # a plain step that takes more times what was predicted counts as this: the machine was busy elsewhere
DEAREST = 3.0  # times a decoded row, which a prompt's row will not cost
LEARNED = 2.0  # as OUTLIER, for the coefficients
FIRST_STEPS, FIRST_LEARNED = 8, 10.0  # plain ones, and the same for those, when the coefficients may be far off
COLD = 3.0  # so many times too long was predicted after the first steps: they were cold, and are forgotten
LEAST_ROW = 0.01  # of the base that a row costs at least
TRY_EVERY, TRY_ROWS = 16, 7  # selections that gave prompts the least, after which one gives so many rows more
SHORTEST_S = 1e-3  # what a step may always count as, so that little is predicted of nothing


class StepTime:
    """Online model of a step's seconds.

    Plain floats: it runs right after the weights have passed through the caches, when what a step calls first is slow.
    """

    def __init__(self, base_s: float = 5e-3, per_row_s: float = 3e-4, per_key_s: float = 1e-8) -> None:
        self._prior = (base_s, per_row_s / ROW_SCALE, per_key_s / KEY_SCALE)
        self._begin()
        self._prompts = _Ratio(0.95)
        self._num_plain = self._since_plain = self._since_tried = 0

    def _begin(self) -> None:
        """Know nothing about plain steps."""
        self._theta = list(self._prior)
        self._covariance = [[10.0, 0.0, 0.0], [0.0, 10.0, 0.0], [0.0, 0.0, 10.0]]
        self._now = _Ratio(0.8)

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
            self._num_plain += 1
            is_first = self._num_plain <= FIRST_STEPS
            if is_first and self._num_plain > 1 and self.predict(rows, keys) > COLD * max(seconds, SHORTEST_S):
                self._begin()
            predicted = _dot(_features(rows, keys), self._coefficients)
            bound_s = (FIRST_LEARNED if is_first else LEARNED) * predicted
            self._now.observe(min(seconds, max(OUTLIER * self._now.value * predicted, SHORTEST_S)), predicted)
            self._learn(_features(rows, keys), min(seconds, max(bound_s, SHORTEST_S)))
        elif rows:
            self._since_plain += 1
            plain_s, row, key = self.predict(rows, keys), *self._row_and_key
            predicted = row * prompt_rows + key * prompt_keys
            # Bounded by what many rows may cost, not by what is believed: that they cost little must be unlearned fast.
            self._prompts.observe(min(seconds - plain_s, plain_s + DEAREST * predicted), predicted)

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

    def at_least(self, rows: int, least: int) -> int:
        """Rows of prompts that a step takes when `rows` are predicted to fit: `least` where those are not more, and now
        and then a few beyond it, so that a wrong prediction shows."""
        if rows > least:
            self._since_tried = 0
            return rows
        self._since_tried += 1
        if self._since_tried <= TRY_EVERY:
            return least
        self._since_tried = 0
        return least + TRY_ROWS

    @property
    def _coefficients(self) -> list[float]:
        return [max(value, 0.0) for value in self._theta]

    @property
    def _row_and_key(self) -> tuple[float, float]:
        base, row, key = self._coefficients
        return max(row * ROW_SCALE, LEAST_ROW * base), key * KEY_SCALE

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
