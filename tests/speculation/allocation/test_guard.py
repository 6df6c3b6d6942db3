"""SpeedGuard, Probe and Nap: speculation that does not pay rests, longer each time."""

import itertools
import random

from forerun.speculation.allocation.guard import FIRST_PAUSE, LAST_PAUSE, WINDOW, Nap, Probe, SpeedGuard


def rest(guard):
    """Steps until speculation is on again."""
    steps = 0
    while guard.is_off:
        guard.rest()
        steps += 1
    return steps


def test_what_is_faster_than_plain_is_never_stopped():
    guard = SpeedGuard()
    for _ in range(1000):
        guard.observe(2, 1.5, 1, 1.0)
        assert not guard.is_off
    assert guard.ratio > 1.3


def test_what_is_slower_is_stopped_after_one_window():
    guard = SpeedGuard()
    for _ in range(WINDOW - 1):
        guard.observe(1, 1.1, 1, 1.0)
        assert not guard.is_off
    guard.observe(1, 1.1, 1, 1.0)
    assert guard.is_off
    assert guard.num_trips == 1


def test_pauses_double_up_to_the_longest():
    guard, pauses = SpeedGuard(), []
    for _ in range(8):
        while not guard.is_off:
            guard.observe(1, 1.2, 1, 1.0)
        pauses.append(rest(guard))
    assert pauses == [32, 64, 128, 256, 512, 1024, 1024, 1024]
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE, LAST_PAUSE)


def test_what_has_paid_for_long_is_forgiven():
    guard = SpeedGuard()
    for _ in range(2):
        while not guard.is_off:
            guard.observe(1, 1.2, 1, 1.0)
        rest(guard)
    for _ in range(5 * WINDOW):
        guard.observe(2, 1.2, 1, 1.0)
    while not guard.is_off:
        guard.observe(1, 1.5, 1, 1.0)
    assert rest(guard) == FIRST_PAUSE


def test_a_noisy_machine_is_not_taken_for_slow_drafts():
    """Predictions are medians. A fifth of all steps takes twice as long, with drafts or without; drafts gain 15 %."""
    guard, chance = SpeedGuard(), random.Random(0)

    def noise():
        return 2.0 if chance.random() < 0.2 else 1.0

    for _ in range(3000):
        guard.observe_plain(noise(), 1.0)
        guard.observe(2, 2 * noise() / 1.15, 1, 1.0)
    assert guard.num_trips <= 1


def test_one_step_that_was_put_to_sleep_stops_nothing():
    guard = SpeedGuard()
    for step in range(500):
        guard.observe(1, 100.0 if step == 200 else 0.95, 1, 1.0)
    assert guard.num_trips == 0


def test_probes_become_rare():
    probe = Probe()
    due = [step for step in range(10_000) if probe.is_due()]
    gaps = [b - a for a, b in itertools.pairwise(due)]
    assert gaps[:6] == [32, 64, 128, 256, 512, 1024]
    assert set(gaps[6:]) == {1024}


def test_a_dear_drafter_is_tried_more_rarely_still():
    probe = Probe()
    due = [step for step in range(5000) if probe.is_due(10.0)]
    assert due[1] - due[0] == 500


def test_probes_begin_anew_when_the_drafter_has_paid():
    probe = Probe()
    for _ in range(5000):
        probe.is_due()
    probe.paid()
    waits = next(step for step in range(100) if probe.is_due())
    assert waits == FIRST_PAUSE - 1


class TestNap:
    @staticmethod
    def asked(nap, num_sequences, steps):
        """Steps in which somebody is asked, and nothing comes of it."""
        found = []
        for step in range(steps):
            if not nap.begins(num_sequences):
                found.append(step)
                nap.fruitless()
        return found

    def test_a_large_batch_naps_at_once_and_ever_longer(self):
        assert self.asked(Nap(6, 16), 16, 64) == [0, 1, 3, 5, 9, 13, 21, 29, 45, 61]

    def test_a_single_sequence_is_patient(self):
        assert self.asked(Nap(6, 16), 1, 10) == [0, 1, 2, 3, 4, 5, 6, 7, 9]

    def test_what_pays_ends_it(self):
        nap = Nap(6, 16)
        self.asked(nap, 16, 64)
        nap.wake()
        assert self.asked(nap, 16, 4) == [0, 1, 3]

    def test_one_right_guess_says_something_of_few_and_nothing_of_many(self):
        for num, first in ((1, 0), (16, 13)):  # the nap that begins at step 61 ends at 77
            nap = Nap(6, 16)
            self.asked(nap, num, 64)
            nap.stir()
            assert self.asked(nap, num, 20)[0] == first
