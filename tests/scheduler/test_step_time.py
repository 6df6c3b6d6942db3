"""StepTime: learns a machine, never predicts negative time, and its inverse fits its prediction."""

import random

import pytest

from forerun.scheduler.step_time import LEAST_ROW, PLAIN_EVERY, StepTime

MACHINES = [(4e-3, 2e-4, 3e-8), (2e-2, 5e-3, 1e-6), (0.0, 1e-3, 0.0), (1e-3, 0.0, 1e-7)]


def seconds_of(machine, rows, keys):
    base, per_row, per_key = machine
    return base + per_row * rows + per_key * keys


def steps(seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        rows = rng.choice((1, 2, 8, 16, 100, 300))
        yield rows, rows * rng.randint(1, 2000)


@pytest.mark.parametrize("machine", MACHINES)
def test_learns_a_machine_within_30_steps(machine):
    model = StepTime()
    for rows, keys in steps(1, 30):
        model.observe(rows, keys, seconds_of(machine, rows, keys))
    for rows, keys in steps(2, 20):
        assert model.predict(rows, keys) == pytest.approx(seconds_of(machine, rows, keys), rel=0.1, abs=1.5e-3)


def test_follows_a_machine_that_becomes_slower():
    model = StepTime()
    for factor in (1, 3):
        for rows, keys in steps(factor, 150):
            model.observe(rows, keys, factor * seconds_of(MACHINES[0], rows, keys))
    assert model.predict(100, 10_000) == pytest.approx(3 * seconds_of(MACHINES[0], 100, 10_000), rel=0.1)


def test_never_negative_whatever_was_measured():
    model, rng = StepTime(), random.Random(3)
    for rows, keys in steps(4, 300):
        model.observe(rows, keys, rng.choice((0.0, 1e-9, 1e-3, 5.0, -1.0)))
        assert model.predict(rows, keys) >= 0
        assert 0 <= model.rows_within(0.05, 100, 512) <= 512


def test_many_steps_that_are_all_alike_do_not_break_it():
    model = StepTime()
    for _ in range(20_000):
        model.observe(1, 50, 3e-3)
    assert model.predict(1, 50) == pytest.approx(3e-3, rel=0.01)
    assert model.predict(64, 6400) < 1.0
    for rows, keys in steps(5, 60):  # and it still learns
        model.observe(rows, keys, seconds_of(MACHINES[0], rows, keys))
    assert model.predict(100, 10_000) == pytest.approx(seconds_of(MACHINES[0], 100, 10_000), rel=0.2)


def trained(machine):
    """Rows of prompts cost half of what others cost."""
    model = StepTime()
    for rows, keys in steps(6, 60):
        model.observe(rows, keys, seconds_of(machine, rows, keys))
    for rows, keys in steps(7, 60):
        model.observe(4, 400, seconds_of(machine, 4, 400) + prompt_seconds(machine, rows, keys), rows, keys)
    return model


def prompt_seconds(machine, rows, keys):
    return (machine[1] * rows + machine[2] * keys) / 2


@pytest.mark.parametrize("machine", [*MACHINES[:3], (1e-3, 2e-5, 1e-7)])  # a row counts as a part of the base
@pytest.mark.parametrize("context", [0, 100, 4000])
@pytest.mark.parametrize("budget", [1e-3, 2e-2, 0.3])
def test_rows_within_is_the_inverse_of_predict(machine, context, budget):
    model = trained(machine)
    rows = model.rows_within(budget, context, 10_000)

    def added(n):
        return prompt_seconds(machine, n, n * context + n * (n + 1) // 2)

    assert added(rows) <= budget * 1.1
    assert rows == 10_000 or added(rows + 1) >= budget * 0.9


def test_a_long_prompt_does_not_change_what_a_plain_step_takes():
    """Its chunks come to cost far more than their keys say, and no step is plain meanwhile."""
    model = StepTime()
    for count in range(100):
        model.observe(16, 3000 + 16 * count, 10e-3)
    plain = model.predict(16, 4600)
    context = 0
    while context < 4000:
        rows = max(1, model.rows_within(plain / 2, context, 512))
        keys = rows * context + rows * (rows + 1) // 2
        extra = rows * (3e-4 + 2e-7 * context + 1e-10 * context**2)
        assert context < 100 or extra < 0.6 * plain
        model.observe(16, 4600, plain + extra, rows, keys)
        context += rows
    assert model.predict(16, 4600) == plain


def test_beside_a_long_prompt_a_plain_step_is_wanted_now_and_then():
    model = StepTime()
    for _ in range(PLAIN_EVERY):
        assert not model.wants_plain
        model.observe(4, 400, 7e-3, 8, 8000)
    assert model.wants_plain
    model.observe(4, 400, 5e-3)
    assert not model.wants_plain


def test_rare_plain_steps_show_that_they_have_become_slower():
    model = StepTime()
    for _ in range(100):
        model.observe(16, 3000, 10e-3)
    for step in range(320):
        rows = () if step % PLAIN_EVERY == 0 else (8, 24000)
        model.observe(16, 3000, 20e-3 + (8e-3 if rows else 0), *rows)
    assert model.predict(16, 3000) == pytest.approx(20e-3, rel=0.1)
    assert model.rows_within(8e-3, 3000, 512) == pytest.approx(8, abs=1)


def test_a_hiccup_of_a_plain_step_fills_no_step_with_prompts():
    model = StepTime()
    for _ in range(100):
        model.observe(4, 400, 5e-3)
    for step in range(200):
        rows = max(1, model.rows_within(model.predict(4, 400) / 2, 1000, 512))
        model.observe(4, 400, 5e-3 + rows * 5e-4, rows, rows * 1000)
        if step % PLAIN_EVERY == 5:
            model.observe(4, 400, 0.1 if step > 30 and step < 40 else 5e-3)
        assert step < 20 or rows * 5e-4 < 5e-3


def test_a_hiccup_beside_a_prompt_does_not_hold_the_next_rows_back():
    model = StepTime()
    for _ in range(100):
        model.observe(4, 400, 5e-3)
        model.observe(4, 400, 7.5e-3, 8, 800)
    before = model.rows_within(2.5e-3, 100, 512)
    model.observe(4, 400, 0.5, 8, 800)
    assert model.rows_within(2.5e-3, 100, 512) > before / 2 > 2


def test_a_hiccup_is_not_learned():
    model = StepTime()
    for _ in range(100):
        model.observe(4, 400, 5e-3)
    model.observe(4, 400, 2.0)
    assert model.predict(4, 400) < 8e-3


@pytest.mark.parametrize("per_key", [0.0, 1e-300, 1e-30, 1e-20, 1e-12])
def test_a_vanishing_attention_cost_does_not_cancel(per_key):
    assert StepTime(0.0, 1e-3, per_key).rows_within(0.1, 10, 512) in (99, 100)


def test_rows_within_at_the_edges():
    assert StepTime(0.0, 0.0, 0.0).rows_within(0.1, 10, 512) == 512  # nothing costs anything
    assert StepTime().rows_within(0.0, 10, 512) == 0
    assert StepTime().rows_within(-1.0, 10, 512) == 0
    assert StepTime().rows_within(1e9, 10, 512) == 512
    assert StepTime().rows_within(1.0, 10, 0) == 0


def test_a_row_never_looks_free():
    model = StepTime()
    for rows in (1, 2, 3) * 50:
        model.observe(rows, 40 * rows, 3e-3 / rows)  # what a base and a negative cost explain best
    assert model.rows_within(3e-3, 10, 10_000) <= 3e-3 / (LEAST_ROW * 1e-3)
