"""The brakes of the allocator: SpeedGuard for everything, Probe for what does not pay, Nap for asking at all.

SpeedGuard compares what a step yields with what plain decoding is predicted to yield in its time. It catches what the
allocator does not know: costs that it predicts wrongly, time that is spent elsewhere.
"""

WINDOW = 64  # steps that an average spans
LOWEST = 0.98  # of plain speed
OUTLIER = 3.0  # times the predicted time: what is longer counts as that
FIRST_PAUSE, LAST_PAUSE = 32, 1024  # steps
PROBE_SHARE = 50
FEW = 2  # sequences


class SpeedGuard:
    """Speculation off for a while when it has been slower than plain decoding; longer each time it happens again."""

    def __init__(self) -> None:
        self._tokens = self._seconds = self._plain_tokens = self._plain_s = 0.0
        self._num_seen = 0
        self._pause = FIRST_PAUSE
        self._left = 0
        self._bias = 1.0
        self.num_trips = 0

    @property
    def is_off(self) -> bool:
        """Speculation rests."""
        return self._left > 0

    @property
    def ratio(self) -> float:
        """Measured over plain speed, averaged; 1 before anything was measured."""
        if not (self._seconds and self._plain_tokens):
            return 1.0
        return (self._tokens / self._seconds) / (self._plain_tokens / self._plain_s)

    def rest(self) -> None:
        """One step without speculation has passed."""
        self._left = max(0, self._left - 1)

    def observe_plain(self, seconds: float, predicted_s: float) -> None:
        """A step without drafts. Predictions follow the median of steps, tokens per second the mean: what lies between
        is learned here, from plain steps, so that a noisy machine is not taken for a slow draft."""
        ratio = min(OUTLIER, seconds / predicted_s)
        self._bias += (ratio - self._bias) / WINDOW

    def observe(self, tokens: int, seconds: float, plain_tokens: int, plain_s: float) -> None:
        """One step with speculation: what it yielded in which time, and what plain decoding would.

        The time counts up to OUTLIER times that of the plain steps for as many tokens: a process that was put to sleep
        proves nothing.
        """
        keep = 1 - 1 / WINDOW
        seconds = min(seconds, OUTLIER * plain_s * max(1.0, tokens / max(1, plain_tokens)))
        plain_s *= self._bias
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self._plain_tokens = keep * self._plain_tokens + plain_tokens
        self._plain_s = keep * self._plain_s + plain_s
        self._num_seen += 1
        if self._num_seen < WINDOW:
            return
        if self.ratio < LOWEST:
            self._left = self._pause
            self._pause = min(LAST_PAUSE, 2 * self._pause)
            self.num_trips += 1
            self._forget()
        elif self._num_seen >= 4 * WINDOW:  # it has paid for long enough
            self._pause = FIRST_PAUSE

    def _forget(self) -> None:
        self._tokens = self._seconds = self._plain_tokens = self._plain_s = 0.0
        self._num_seen = 0


class Probe:
    """When what does not pay is tried again: after `first` steps, then twice as many, and so on up to LAST_PAUSE."""

    def __init__(self, first: int = FIRST_PAUSE) -> None:
        self._first = self._pause = first
        self._left = 0

    def is_due(self, price: float = 0.0) -> bool:
        """Count a step in which the drafter does not pay; True when it shall be tried all the same.

        price  of asking it, in plain steps: trying shall cost no more than one step in PROBE_SHARE
        """
        if self._left > 0:
            self._left -= 1
            return False
        self._left = max(self._pause, int(PROBE_SHARE * price)) - 1
        self._pause = min(LAST_PAUSE, 2 * self._pause)
        return True

    def wait(self) -> None:
        """A step has passed in which nobody asked whether it is due."""
        self._left = max(0, self._left - 1)

    def paid(self) -> None:
        """It pays: begin anew when it stops to."""
        self._pause, self._left = self._first, self._first - 1


class Nap:
    """Nobody is asked for a while after steps in which nothing was worth verifying.

    Asking costs time for every sequence, and what it brings is shared by all of them: a large batch naps at once, a
    few sequences after some patience. Two such steps more double the nap, up to `longest` steps.
    """

    def __init__(self, patience: int, longest: int) -> None:
        self._patience, self._longest = patience, longest
        self._num_fruitless = self._left = 0
        self._num_sequences = 1

    def begins(self, num_sequences: int) -> bool:
        """The next step, of so many sequences, needs no draft. Once a step."""
        self._num_sequences = num_sequences
        if self._left <= 0:
            return False
        self._left -= 1
        return True

    def fruitless(self) -> None:
        """Sequences were asked, and nothing was worth verifying."""
        self._num_fruitless += 1
        doublings = (self._num_fruitless - self._patience // self._num_sequences) // 2
        self._left = min(self._longest, 1 << max(0, min(doublings, 30))) - 1

    def wake(self) -> None:
        """Something was worth verifying."""
        self._num_fruitless = self._left = 0

    def stir(self) -> None:
        """A sequence has ended or guessed right: of a few that says a lot about those to come, of many nothing."""
        if self._num_sequences <= FEW:
            self.wake()
