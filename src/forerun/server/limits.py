"""Allowance: what a key may still take, as token buckets that fill up by the minute.

A bucket holds a minute's worth and refills evenly. Output tokens that a request announces (max_tokens) are taken when
it is queued, and what it did not use comes back when it ends. One that announces nothing pays when it ends: the bucket
may then be in debt, and the key waits until that is paid, so that the average holds.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from forerun.server.errors import ApiError
from forerun.server.keys import ApiKey, KeyLimits, KeyRing

Clock = Callable[[], float]

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{unit}" for what in ("limit", "remaining", "reset") for unit in ("requests", "tokens")
)


class Bucket:
    """So many units a minute. limit: None takes anything."""

    def __init__(self, limit: int | None, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._limit = limit
        self._level = float(limit or 0)
        self._filled_s = clock()

    @property
    def limit(self) -> int | None:
        """Units a minute."""
        return self._limit

    def change_limit(self, limit: int | None) -> None:
        """Another limit from now on; what was used stays used."""
        self._fill()
        self._level += (limit or 0) - (self._limit or 0)
        self._limit = limit

    @property
    def remaining(self) -> int:
        """Whole units that can be taken now."""
        self._fill()
        return max(0, int(self._level))

    def take(self, units: int) -> None:
        """Take units, whether they are there or not."""
        self._fill()
        self._level = min(float(self._limit or 0), self._level - units)

    def wait_s(self, units: int) -> float:
        """Seconds until so many units are there; 0 when they are."""
        if self._limit is None:
            return 0.0
        self._fill()
        return max(0.0, units - self._level) * 60 / self._limit

    @property
    def reset_s(self) -> float:
        """Seconds until the bucket is full again."""
        return self.wait_s(self._limit or 0)

    def _fill(self) -> None:
        now = self._clock()
        if self._limit is not None:
            self._level = min(float(self._limit), self._level + (now - self._filled_s) * self._limit / 60)
        self._filled_s = now


class Allowance:
    """The buckets of one key, used from the event loop."""

    def __init__(self, limits: KeyLimits, clock: Clock = time.monotonic) -> None:
        self.limits = limits
        self.requests = Bucket(limits.requests_per_minute, clock)
        self.tokens = Bucket(limits.tokens_per_minute, clock)
        self.num_running = 0

    def change_limits(self, limits: KeyLimits) -> None:
        """Other limits from now on."""
        self.limits = limits
        self.requests.change_limit(limits.requests_per_minute)
        self.tokens.change_limit(limits.tokens_per_minute)

    def enter(self) -> None:
        """A request begins; `leave` must follow. Raises ApiError 429."""
        concurrent = self.limits.concurrent
        if concurrent is not None and self.num_running >= concurrent:
            raise RateLimited(
                f"{concurrent} requests of this key are under way, as many as it may have", 1.0, "concurrent"
            )
        if (wait := self.requests.wait_s(1)) > 0:
            raise RateLimited(f"this key may send {self.requests.limit} requests a minute", wait, "requests")
        self.requests.take(1)
        self.num_running += 1

    def leave(self) -> None:
        """A request that entered has been answered."""
        self.num_running -= 1

    def reserve(self, num_prompt: int, num_output: int) -> "Reservation":
        """Take the tokens of a generation. num_output: what it announces. Raises ApiError."""
        units, limit = num_prompt + num_output, self.tokens.limit
        if limit is not None and units > limit:
            raise ApiError(
                400,
                f"this key may use {limit} tokens a minute and the request asks for {units} "
                f"({num_prompt} of the prompt, {num_output} of answers): shorten it or lower max_tokens",
                param="max_tokens" if num_output else "prompt",
                code="tokens_limit_exceeded",
            )
        if (wait := self.tokens.wait_s(units)) > 0:
            raise RateLimited(
                f"this key may use {limit} tokens a minute and the request asks for {units}", wait, "tokens"
            )
        self.tokens.take(units)
        return Reservation(self, units)

    def headers(self) -> dict[str, str]:
        """OpenAI's x-ratelimit headers for the limits that there are."""
        found: dict[str, str] = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket.limit is not None:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.limit)
                found[f"x-ratelimit-remaining-{name}"] = str(bucket.remaining)
                found[f"x-ratelimit-reset-{name}"] = _duration(bucket.reset_s)
        return found


@dataclass
class Reservation:
    """Tokens that were taken in advance; settled once."""

    allowance: Allowance
    units: int

    def settle(self, used: int) -> None:
        """Give back what was not used, or take what was used beyond."""
        self.allowance.tokens.take(used - self.units)
        self.units = used


class Allowances:
    """The allowance of every key, and one for all clients together where there are no keys."""

    def __init__(self, limits: KeyLimits, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._of_all = Allowance(limits, clock)
        self._by_digest: dict[bytes, Allowance] = {}

    def of(self, key: ApiKey | None) -> Allowance:
        """The allowance of a key."""
        if key is None:
            return self._of_all
        allowance = self._by_digest.get(key.digest)
        if allowance is None:
            allowance = self._by_digest[key.digest] = Allowance(key.limits, self._clock)
        return allowance

    def keep(self, ring: KeyRing) -> None:
        """Keys were read again: those that stay keep what they used, under their new limits."""
        kept = {key.digest: key for key in ring.keys}
        self._by_digest = {digest: one for digest, one in self._by_digest.items() if digest in kept}
        for digest, allowance in self._by_digest.items():
            allowance.change_limits(kept[digest].limits)


class RateLimited(ApiError):
    """429. Clients know one code, and as types requests or tokens; `reason` is which limit it was, for the metrics."""

    def __init__(self, message: str, wait_s: float, limit: str) -> None:
        seconds = max(1, math.ceil(wait_s))
        super().__init__(
            429,
            f"{message}: try again in {seconds} s",
            code="rate_limit_exceeded",
            type="tokens" if limit == "tokens" else "requests",
            headers={"Retry-After": str(seconds)},
        )
        self.reason = f"{limit}_limit"


def _duration(seconds: float) -> str:
    """Seconds as OpenAI writes them: 120ms, 1.5s, 6m0s."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}m{int(rest)}s" if minutes else f"{rest:.3g}s"
