"""Allowances under a clock that tests turn: buckets, reservations, headers, and limits that change."""

import pytest

from forerun.server.errors import ApiError
from forerun.server.keys import KeyLimits, KeySources
from forerun.server.limits import Allowance, Allowances, RateLimited


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def refused(call) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        call()
    assert caught.value.status_code == 429
    return caught.value


def test_requests_refill_evenly_and_the_wait_is_told(clock):
    allowance = Allowance(KeyLimits(requests_per_minute=6), clock)
    for _ in range(6):
        allowance.enter()
    error = refused(allowance.enter)
    assert error.headers["Retry-After"] == "10"
    assert error.reason == "requests_limit"
    clock.now += 9.9
    refused(allowance.enter)
    clock.now += 0.2
    allowance.enter()
    clock.now += 3600
    assert allowance.requests.remaining == 6  # no more than a minute's worth is ever saved up


def test_concurrent_requests_are_released(clock):
    allowance = Allowance(KeyLimits(concurrent=2), clock)
    allowance.enter()
    allowance.enter()
    assert refused(allowance.enter).reason == "concurrent_limit"
    allowance.leave()
    allowance.enter()


def test_announced_tokens_are_reserved_and_unused_ones_come_back(clock):
    allowance = Allowance(KeyLimits(tokens_per_minute=100), clock)
    reservation = allowance.reserve(20, 70)
    assert allowance.tokens.remaining == 10
    assert refused(lambda: allowance.reserve(11, 0)).reason == "tokens_limit"
    reservation.settle(25)
    assert allowance.tokens.remaining == 75


def test_an_unannounced_answer_leaves_a_debt_that_time_pays(clock):
    allowance = Allowance(KeyLimits(tokens_per_minute=60), clock)
    allowance.reserve(10, 0).settle(90)
    assert allowance.tokens.remaining == 0
    error = refused(lambda: allowance.reserve(1, 0))
    assert error.headers["Retry-After"] == "31"
    clock.now += 31
    allowance.reserve(1, 0)


def test_what_never_fits_is_no_matter_of_waiting(clock):
    allowance = Allowance(KeyLimits(tokens_per_minute=60), clock)
    with pytest.raises(ApiError) as caught:
        allowance.reserve(10, 51)
    assert (caught.value.status_code, caught.value.param) == (400, "max_tokens")


def test_headers_are_those_of_openai(clock):
    allowance = Allowance(KeyLimits(requests_per_minute=60, tokens_per_minute=600), clock)
    allowance.enter()
    allowance.reserve(300, 0)
    assert allowance.headers() == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "300",
        "x-ratelimit-reset-tokens": "30s",
    }
    assert Allowance(KeyLimits(), clock).headers() == {}


def test_no_limit_takes_anything(clock):
    allowance = Allowance(KeyLimits(), clock)
    for _ in range(1000):
        allowance.enter()
    allowance.reserve(10**9, 10**9).settle(5)


def test_keys_that_are_read_again_keep_what_they_used(clock):
    def ring(*entries):
        return KeySources(entries).load()

    first = ring("a:secret-one requests_per_minute=3", "b:secret-two requests_per_minute=3")
    allowances = Allowances(KeyLimits(), clock)
    for key in first.keys:
        for _ in range(3):
            allowances.of(key).enter()
    second = ring("a:secret-one requests_per_minute=5")
    allowances.keep(second)
    allowance = allowances.of(second.keys[0])
    assert (allowance.requests.remaining, allowance.num_running) == (2, 3)
    assert allowances.of(first.keys[1]).requests.remaining == 3  # it was gone: it would begin anew
