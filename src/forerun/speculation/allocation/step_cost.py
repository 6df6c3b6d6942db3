"""StepCost: seconds of a step by its rows and keys, from a prior, from probes, and learned while serving.

    t(rows, keys) = table[rows] + per_key * keys

Every number of rows has an entry of its own, because kernels work on tiles of rows: the ninth row may cost as much as
the eight before it, and the tenth nothing. The table never falls.

What is measured corrects the entry by a part of the ratio of measured to predicted time, its neighbours by less, and
the whole table a little (the machine has become slower or faster). The ratio is clipped, so a step that the system put
to sleep moves the table no further than one that was a little slow: the table follows the median.

`keys` are effective: the context of every sequence once, and SHARED_KEY of it for each further row of that sequence,
whose attention finds the same keys in the caches.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from statistics import median_low

MAX_ROWS = 128  # the table's length; beyond it the cost is a straight line
SHARED_KEY = 0.3  # of a key's cost, for a further row of the same sequence
CLIP = 0.25  # largest logarithm of measured over predicted that counts; more where little has been measured
FIRST = 5  # steps that set the height of the table
MIN_RATE, GLOBAL_RATE = 0.06, 0.03
LEAST_DRIFT = 0.02  # of the whole table: it changes no decision, since all decisions compare its entries
TRUSTED = 12.0  # observations after which an entry moves at MIN_RATE
SPREAD = 1.25  # entries within this factor are neighbours
KEY_MEMORY = 0.999


class StepCost:
    """A table that learns. Plain floats: it runs when the caches are full of weights.

    table    [MAX_ROWS + 1] seconds of a step with so many rows and no keys; entry 0 is not used
    per_key  seconds for an effective key
    seen     observations that the table stands for at each entry, up to TRUSTED
    """

    def __init__(self, table: Seq[float], per_key: float = 0.0, seen: Seq[float] | None = None) -> None:
        if len(table) != MAX_ROWS + 1 or not all(math.isfinite(t) and t > 0 for t in table[1:]):
            raise ValueError(f"a table of step costs has {MAX_ROWS} positive entries")
        if not (math.isfinite(per_key) and per_key >= 0):
            raise ValueError("a key cannot cost less than nothing")
        self.table = list(table)
        self.per_key = per_key
        self.seen = list(seen) if seen is not None else [0.0] * len(self.table)
        if len(self.seen) != len(self.table):
            raise ValueError("every entry has a number of observations")
        self.num_observed = 0
        self._first: list[float] = []  # logarithms of measured over predicted time, of the first steps
        self._drift = 0.0  # logarithm of a factor of the whole table that is not worth applying yet
        self._keys: dict[int, list[float]] = {}  # rows -> [mean keys, mean seconds, observations]
        self._key_prior = per_key
        self._covariance = self._variance = 0.0
        for rows in range(2, len(self.table)):
            self.table[rows] = max(self.table[rows], self.table[rows - 1])

    # ---- before anything ran ----

    @classmethod
    def prior(cls, row_tile: int, per_key: float = 0.0, base_s: float = 5e-3) -> "StepCost":
        """What is likely before anything was measured: rows inside a tile cost a part of a step, whole tiles add up.

        Only the shape matters: the first observation scales all of it.
        """
        tile = max(1, row_tile)
        inside = 0.2 if tile > 1 else 0.0
        steps = [1 + inside * (min(rows, tile) - 1) + 1.0 * max(0, rows - tile) / tile for rows in range(MAX_ROWS + 1)]
        return cls([base_s * step for step in steps], per_key)

    @classmethod
    def from_points(cls, points: Mapping[int, float], per_key: float = 0.0) -> "StepCost":
        """Straight lines between measured numbers of rows. points  rows -> seconds, at least two of them"""
        rows = sorted(points)
        if len(rows) < 2:
            raise ValueError("a line needs two points")
        # What disturbs a step makes it longer: a point above one of more rows is lowered, not the other raised.
        points = {n: min(points[more] for more in rows if more >= n) for n in rows}
        table = [points[rows[0]]]
        for n in range(1, MAX_ROWS + 1):
            right = min(max(1, bisect_left(rows, n)), len(rows) - 1)
            a, b = rows[right - 1], rows[right]
            slope = (points[b] - points[a]) / (b - a)
            table.append(max(points[a] + slope * (n - a), 0.2 * points[rows[0]], 1e-9))
        return cls(table, per_key)

    # ---- what a step costs ----

    def seconds(self, rows: int, keys: float = 0.0) -> float:
        """Predicted seconds of a step."""
        if rows <= MAX_ROWS:
            return self.table[rows] + self.per_key * keys
        return self.table[MAX_ROWS] + self.per_row * (rows - MAX_ROWS) + self.per_key * keys

    @property
    def per_row(self) -> float:
        """Seconds of one more row where there are many."""
        return (self.table[MAX_ROWS] - self.table[MAX_ROWS // 2]) / (MAX_ROWS - MAX_ROWS // 2)

    # ---- learning ----

    def observe(self, rows: int, keys: float, seconds: float, count: int = 1) -> None:
        """Learn from the median of `count` measured steps of 1 to MAX_ROWS rows; others are ignored."""
        if not (0 < rows <= MAX_ROWS and seconds > 0):
            return
        table, seen = self.table, self.seen
        error = math.log(seconds / (table[rows] + self.per_key * keys)) - self._drift
        self.num_observed += count
        if len(self._first) < FIRST:
            self._rescale(error, count)
            return
        clip = CLIP * (1 + 6 / (1 + seen[rows]))
        own = min(clip, max(-clip, error))
        error = min(CLIP, max(-CLIP, error))
        common = min(0.3, count * GLOBAL_RATE)
        self._drift += common * error
        if abs(self._drift) > LEAST_DRIFT:
            factor = math.exp(self._drift)
            table[:] = [entry * factor for entry in table]
            self._drift = 0.0
        rate = max(min(0.4, count * MIN_RATE), count / (1 + count + seen[rows]))
        seen[rows] = min(TRUSTED, seen[rows] + count)
        table[rows] *= math.exp((1 - common) * rate * own)
        low, high = int(rows / SPREAD), min(MAX_ROWS, int(rows * SPREAD))
        for n in range(max(1, low), high + 1):
            if n != rows:  # what has been measured itself moves little
                near = 1 - abs(n - rows) / (high - low)
                table[n] *= math.exp(0.7 * near * rate * own / (1 + seen[n]))
        self._keep_rising(rows)
        self._learn_keys(rows, keys, seconds)

    def _rescale(self, error: float, count: int) -> None:
        """The shape of the table is better known than its height: the machine may be faster or slower today. So the
        first steps set the height, by their median, because the very first ones are often cold."""
        before = median_low(self._first) if self._first else 0.0
        self._first += [error + before] * count
        factor = math.exp(median_low(self._first) - before)
        self.table[:] = [entry * factor for entry in self.table]

    def _keep_rising(self, rows: int) -> None:
        """Make the table rise again after entry `rows` and its neighbours have moved.

        Of two entries that contradict each other the one that has been observed less gives way.
        """
        table, seen = self.table, self.seen
        low, high = int(rows / SPREAD), min(MAX_ROWS, int(rows * SPREAD) + 1)
        for n in range(max(2, low), rows + 1):  # below: what is less known than the entry is lowered
            if table[n] < table[n - 1]:
                table[n] = table[n - 1] if seen[n - 1] > seen[n] else table[n]
        for n in range(rows - 1, 0, -1):
            if table[n] <= table[n + 1]:
                if n < low:
                    break
                continue
            table[n] = table[n + 1]
        for n in range(rows + 1, len(table)):
            if table[n] >= table[n - 1]:
                if n > high:
                    break
                continue
            if seen[n] > seen[n - 1]:
                self._lower(n)
            else:
                table[n] = table[n - 1]

    def _lower(self, rows: int) -> None:
        """No entry below `rows` costs more."""
        table = self.table
        for n in range(rows - 1, 0, -1):
            if table[n] <= table[rows]:
                return
            table[n] = table[rows]

    def _learn_keys(self, rows: int, keys: float, seconds: float) -> None:
        """Regression of seconds on keys among steps of as many rows, drawn towards where it began."""
        known = self._keys.setdefault(rows, [keys, seconds, 0.0])
        more_keys, more_s = keys - known[0], seconds - known[1]
        known[2] += 1
        rate = max(0.05, 1 / known[2])
        known[0] += rate * more_keys
        known[1] += rate * more_s
        if known[2] < 4 or abs(more_s) > 0.5 * known[1]:
            return
        self._covariance = KEY_MEMORY * self._covariance + more_keys * more_s
        self._variance = KEY_MEMORY * self._variance + more_keys * more_keys
        weight = 3e7  # about ten steps with 1,700 keys more than usual weigh as much as the prior
        slope = (self._covariance + weight * self._key_prior) / (self._variance + weight)
        self.per_key = min(max(slope, 0.25 * self._key_prior), 4 * self._key_prior)

    # ---- keeping ----

    def to_json(self) -> dict[str, object]:
        """JSON values that `from_json` reads."""
        return {"table": self.table[1:], "per_key": self.per_key, "seen": self.seen[1:]}

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> "StepCost":
        """The inverse of `to_json`. Raises ValueError, TypeError or KeyError for anything else."""
        table, seen, per_key = values["table"], values["seen"], values["per_key"]
        if not (isinstance(table, list) and isinstance(seen, list) and isinstance(per_key, int | float)):
            raise TypeError("a table of step costs is made of numbers")
        return cls([0.0, *map(float, table)], float(per_key), [0.0, *(min(4.0, float(count)) for count in seen)])
