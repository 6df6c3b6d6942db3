"""CatchUpPace: beside others, a catch-up takes half of the target's step, whatever the drafter's passes cost."""

import pytest

from forerun.speculation.drafting.catch_up_pace import FEWEST_ROWS, CatchUpPace


def paced(base_s: float, row_s: float, step_s: float, steps: int = 40) -> tuple[CatchUpPace, int]:
    """After so many steps of a drafter whose passes cost base_s + row_s * rows; rows of the last one."""
    pace, rows = CatchUpPace(), 0
    for _ in range(steps):
        rows = pace.rows(2, 128)
        pace.passed(rows, base_s + row_s * rows)
        pace.passed(1, base_s + row_s)  # a level
        pace.stepped(step_s)
    return pace, rows


def test_alone_it_is_as_fast_as_can_be():
    assert paced(1e-3, 1e-3, 1e-3)[0].rows(1, 128) == 128


def test_before_anything_was_measured_it_is_careful():
    assert CatchUpPace().rows(2, 128) == FEWEST_ROWS


@pytest.mark.parametrize("base_s", [0.0, 2e-3])
@pytest.mark.parametrize("row_s", [1e-4, 2e-4, 4e-4])
def test_it_takes_half_of_the_step(base_s, row_s):
    _, rows = paced(base_s, row_s, 30e-3)
    assert rows == pytest.approx(min(128, (15e-3 - base_s) / row_s), rel=0.05, abs=1)


def test_it_ends_however_slow_the_drafter_is():
    assert paced(0.1, 0.1, 1e-3)[1] == FEWEST_ROWS


def test_it_follows_a_step_that_becomes_shorter_at_once_and_longer_slowly():
    pace, rows = paced(0.0, 2e-4, 20e-3)
    pace.stepped(1.0)
    assert rows <= pace.rows(2, 128) <= 1.06 * rows
    pace.stepped(10e-3)
    assert pace.rows(2, 128) == pytest.approx(rows / 2, abs=1)
