"""Prompts beside decoding on a simulated machine: bad first measurements neither starve a prompt nor let it burst."""

from types import SimpleNamespace

import pytest

from forerun.scheduler.prefill import rows_beside
from forerun.scheduler.step_time import StepTime

BASE_S, ROW_S, KEY_S = 3e-3, 3e-4, 1e-8
PROMPT, DECODERS, MAX_ROWS = 900, 2, 512


def seconds_of(rows, keys):
    return BASE_S + ROW_S * rows + KEY_S * keys


def beside(decoding, prompt, model, slowdown):
    rows = rows_beside(decoding, [prompt], model, slowdown)
    return min(MAX_ROWS, prompt.num_pending if rows is None else rows)


def chunks(before, num_plain):
    """Rows that a long prompt gets step by step, beside two that have been decoding for `num_plain` steps.

    before  (rows, seconds) of plain steps that were measured first
    """
    model, length = StepTime(), 20
    for rows, seconds in before:
        model.observe(rows, rows * length, seconds)
    for _ in range(num_plain):
        length += 1
        model.observe(DECODERS, DECODERS * length, seconds_of(DECODERS, DECODERS * length))
    done, taken = 0, []
    while done < PROMPT and len(taken) < 5000:
        length += 1
        decoding = [SimpleNamespace(tokens=range(length), num_computed=length - 1, num_pending=1)] * DECODERS
        prompt = SimpleNamespace(num_computed=done, num_pending=PROMPT - done)
        rows = beside(decoding, prompt, model, 2.0)
        keys = rows * done + rows * (rows + 1) // 2
        seconds = seconds_of(DECODERS + rows, DECODERS * length + keys)
        model.observe(DECODERS, DECODERS * length, seconds, *((rows, keys) if rows else ()))
        taken.append(rows)
        done += rows
    return taken


FIRSTS = {
    "ordinary": [],
    "one cold": [(2, 0.25)],
    "one cold of many rows": [(20, 0.25)],
    "three cold": [(2, 0.25)] * 3,
    "cold between others": [(1, 0.05), (2, 0.25), (16, 0.02)],
    "very cold": [(20, 5.0)],
}


@pytest.mark.parametrize("num_plain", [2, 3, 50])
@pytest.mark.parametrize("first", FIRSTS)
def test_bad_first_steps_change_little(first, num_plain):
    usual, taken = chunks([], 50), chunks(FIRSTS[first], num_plain)
    assert sum(taken) == PROMPT
    assert len(taken) < 1.5 * len(usual)
    assert max(taken) < 2.5 * max(usual)


def test_outliers_later_change_little():
    usual = chunks([(DECODERS, seconds_of(DECODERS, 40))] * 60, 50)
    taken = chunks([(DECODERS, 2.0 if step % 20 == 19 else seconds_of(DECODERS, 40)) for step in range(60)], 50)
    assert len(taken) < 1.2 * len(usual)
    assert max(taken) < 2 * max(usual)


def test_a_prompt_stuck_at_the_least_gets_more_now_and_then_and_so_comes_free():
    """Chunks cost something each, which makes one row look dear; of many rows each would fit easily."""
    model, taken = StepTime(BASE_S, 2e-3, 0.0), []
    decoding = [SimpleNamespace(tokens=range(50), num_computed=49, num_pending=1)] * DECODERS
    for _ in range(20):
        model.observe(DECODERS, 100, BASE_S)
    for _ in range(200):
        rows = beside(decoding, SimpleNamespace(num_computed=0, num_pending=10_000), model, 1.5)
        seconds = BASE_S + (0.9e-3 + 2e-5 * rows if rows else 0.0)
        model.observe(DECODERS, 100, seconds, rows, rows)
        taken.append(rows)
    assert taken[1] == 1
    assert max(taken[-20:]) > 5
