"""Paid drafters: what asking one costs, whom it is worth asking, and how deep.

The expected yield of asking comes from the drafter's acceptance by depth so far; its time from measurements by number
of sequences and depth. It is asked where that promises MIN_GAIN more than the step would yield without it.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from forerun.speculation.allocation.guard import Probe

MIN_GAIN = 1.03
DEPTHS = (1, 2, 3, 4, 5, 6, 8, 11, 15)  # tried
TIME_RATE = 0.15
TRIAL_DEPTHS = (1, 2, 4, 4)  # of the first drafts of a drafter, before its gain is predicted
MOST_TRIALS = 64  # asks for them: while it reads a prompt there is no draft
DEAR = 4.0  # plain steps for one level of a draft: not tried further
PLAN_EVERY = 8  # steps, where it does not pay
SHORT_READ = 32  # tokens that it may have to read first, for the time of a draft to count
MOST_ASKED = 0.8  # survival that is always enough to go on


class DraftTimes:
    """Seconds of asking a drafter, by number of sequences and depth."""

    def __init__(self) -> None:
        self._seconds: dict[tuple[int, int], float] = {}

    def observe(self, num_sequences: int, depth: int, seconds: float) -> None:
        """Learn from one call; a call that took far longer than usual counts as twice the usual."""
        key = (num_sequences, depth)
        known = self._seconds.get(key)
        if known is None:
            known = self.predict(num_sequences, depth)  # the first call warms up what later calls find warm
            self._seconds[key] = seconds if known is None else min(seconds, 2 * known)
        else:
            self._seconds[key] = known + TIME_RATE * (min(seconds, 2 * known) - known)

    def predict(self, num_sequences: int, depth: int) -> float | None:
        """Seconds of a call: measured, else from the nearest one measured, a deeper draft costing in proportion."""
        if not self._seconds:
            return None
        as_deep = [seconds for (num, most), seconds in self._seconds.items() if num == num_sequences and most >= depth]
        if (num_sequences, depth) in self._seconds:
            return min(as_deep)  # a shallower draft is no dearer: it may have been measured cold, or reading a prompt
        near = min(self._seconds, key=lambda key: (abs(key[0] - num_sequences), abs(key[1] - depth)))
        deeper = max(1.0, depth / near[1]) if depth > near[1] else 0.5 + 0.5 * depth / near[1]
        more = max(1.0, (num_sequences / near[0]) ** 0.5)
        return float(self._seconds[near] * deeper * more)


@dataclass
class PaidDrafter:
    """What is known of one paid drafter. num_trials  times that it drafted, of those that it was asked"""

    times: DraftTimes = field(default_factory=DraftTimes)
    probe: Probe = field(default_factory=Probe)
    num_trials: int = 0
    num_asked: int = 0
    rest: int = 0  # steps before its gain is predicted again

    def rests(self) -> bool:
        """A step in which its gain is not predicted, since it lately was too small: predicting takes part of a step."""
        if self.rest == 0:
            return False
        self.rest -= 1
        self.probe.wait()
        return True

    def trial(self, price: float) -> int:
        """Depth to try it at, 0 when its gain can be predicted. price  of a level, in plain steps"""
        is_known = self.num_trials >= len(TRIAL_DEPTHS) or self.num_asked >= MOST_TRIALS
        return 0 if is_known or price >= DEAR else TRIAL_DEPTHS[self.num_trials]

    def drafted(self, num_sequences: int, depth: int, seconds: float, unread: int) -> None:
        """It was asked. What reading a prompt takes first says nothing of later drafts."""
        self.num_asked += 1
        self.num_trials += depth > 0
        if depth and unread <= SHORT_READ:
            self.times.observe(num_sequences, depth, seconds)


@dataclass(frozen=True)
class PaidPlan:
    """Ask the first `num_sequences`, `depth` deep.

    gain            predicted speed over that without, 1 is equal
    least_survival  what a path must at least promise to be continued: one more level costs a pass of the drafter and a
                    row of the target's, and in that time so many tokens come anyway. 0: not known
    """

    num_sequences: int
    depth: int
    gain: float
    least_survival: float = 0.0


def plan_paid(
    yields: Seq[Seq[float]],
    limits: tuple[int, int],
    seconds: Callable[[int], float],
    times: DraftTimes,
    without: tuple[float, float],
) -> PaidPlan:
    """Whom to ask for how deep a chain so that the step yields most a second.

    yields   for every sequence, best first: entry d is the tokens expected of a chain of depth d beyond what others
             have drafted for it
    limits   (deepest chain, most nodes of all)
    seconds  of a step with so many draft nodes
    without  (tokens, seconds) expected of the step without the drafter
    """
    base_tokens, base_s = without
    speed = base_tokens / base_s
    best = PaidPlan(0, 0, 1.0)
    counts = sorted({len(yields), -(-len(yields) // 2), -(-len(yields) // 4), 1}) if yields else []
    for depth in (d for d in DEPTHS if d <= limits[0]):
        for count in (c for c in counts if c * depth <= limits[1]):
            draft_s = times.predict(count, depth)
            if draft_s is None:
                continue
            tokens = base_tokens + sum(chain[min(depth, len(chain) - 1)] for chain in yields[:count])
            gain = tokens / (base_s + draft_s + seconds(count * depth) - seconds(0)) / speed
            if gain > best.gain:
                level_s = draft_s / depth + (seconds(count * depth) - seconds(0)) / depth
                best = PaidPlan(count, depth, gain, min(MOST_ASKED, level_s / count * gain * speed))
    return best
