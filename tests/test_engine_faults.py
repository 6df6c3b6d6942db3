"""Faults in every phase of a step: one failure is noticed by nobody, one that repeats ends its own sequence only, and
blocks are conserved."""

import itertools
import logging

import pytest

from forerun.scheduler.watchdog import STUCK_STEPS
from forerun.sequence import FinishReason
from tests.fakes import FakeBackend, OracleDrafter, RandomDrafter, Setup, facts, plain_decode, prompt_of, request


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1)


def breaks(owner, name, is_hit):
    """Let a method raise in the calls that `is_hit` (call number, arguments) selects."""
    real, count = getattr(owner, name), itertools.count()

    def wrapped(*arguments, **options):
        if is_hit(next(count), arguments):
            raise RuntimeError(f"injected in {name}")
        return real(*arguments, **options)

    setattr(owner, name, wrapped)


def requests(count=4, **options):
    return [
        request(prompt_of(1, 40)[:30] + prompt_of(s, 12), f"r{s}", seed=s, temperature=0.7, ignore_eos=True, **options)
        for s in range(count)
    ]


def finish(engine):
    for _ in range(2000):
        if not engine.has_work:
            break
        engine.step()
        engine.check()
    assert not engine.has_work
    assert engine.scheduler.pool.num_owned == 0


PHASES = {
    "select": lambda engine: (engine.scheduler, "select"),
    "allocate": lambda engine: (engine.scheduler.pool, "allocate"),
    "match": lambda engine: (engine.scheduler.index, "match"),
    "publish": lambda engine: (engine.scheduler.index, "publish"),
    "copy": lambda engine: (engine._backend, "copy_blocks"),
    "move": lambda engine: (engine._backend, "move_kv"),
    "forward": lambda engine: (engine._backend, "forward"),
    "draw": lambda engine: (engine._backend, "draw"),
    "room": lambda engine: (engine.speculator, "room"),
    "propose": lambda engine: (engine.speculator, "propose"),
    "collect": lambda engine: (engine.speculator, "collect"),
    "observe": lambda engine: (engine.speculator, "observe"),
    "end": lambda engine: (engine.speculator, "end"),
    "choose": lambda engine: (engine.speculator.budget, "choose"),
}


@pytest.mark.parametrize("num_blocks", [9, 64])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("period", [15, 41])
def test_failures_now_and_then_are_noticed_by_nobody(phase, period, num_blocks):
    texts = {}
    drafter = OracleDrafter(lambda s: texts[s.request.id], wrong_at=3, branch=True)
    engine = Setup(drafter=drafter, num_blocks=num_blocks).engine()
    wanted = [*requests(), request(prompt_of(9, 33), "fork", n=3, temperature=1.0, ignore_eos=True)]
    texts |= {one.id: plain_decode(one)[0] for one in wanted}
    sequences = [sequence for one in wanted for sequence in engine.add(one)]
    breaks(*PHASES[phase](engine), lambda number, _: number % period == 2)  # seldom enough for a retry to work
    finish(engine)
    for sequence in sequences:
        assert facts(sequence) == plain_decode(sequence.request, sequence.choice), sequence.error


def test_a_copy_that_always_fails_ends_who_needs_it():
    engine = Setup().engine()
    prompt = prompt_of(1, 48)  # its last block is found but for the last token, and copied to be written
    engine.add(request(prompt, max_tokens=2))
    finish(engine)
    breaks(engine._backend, "copy_blocks", lambda *_: True)
    other = request(prompt_of(2, 40), max_tokens=10)
    victim, fine = engine.add(request(prompt, max_tokens=10))[0], engine.add(other)[0]
    finish(engine)
    assert (victim.finish, victim.error) == (FinishReason.ERROR, "RuntimeError: injected in copy_blocks")
    assert facts(fine) == plain_decode(other)
    assert engine.stats.last_error.endswith("injected in copy_blocks")


def test_a_room_that_always_fails_switches_speculation_off():
    engine = Setup(drafter=RandomDrafter(1)).engine()
    breaks(engine.speculator.budget, "room", lambda *_: True)
    wanted = requests()
    sequences = [engine.add(one)[0] for one in wanted]
    finish(engine)
    assert [facts(s) for s in sequences] == [plain_decode(one) for one in wanted]
    assert engine.speculator.failures.off == {"speculation": "RuntimeError: injected in room"}


def test_tokens_that_cannot_be_appended_end_their_sequence():
    class Bad(FakeBackend):
        def draw(self, result, batch):
            drawn = super().draw(result, batch)
            object.__setattr__(drawn, "hashes", drawn.hashes[:1])  # of the first row only
            return drawn

    engine = Setup(backend=Bad()).engine()
    sequences = [engine.add(one)[0] for one in requests()]
    engine.step()
    finish(engine)
    assert {s.finish for s in sequences[1:]} == {FinishReason.ERROR}
    assert all(s.output == [] and s.drafted_by == [] for s in sequences[1:])


def test_blocks_that_cannot_be_cleared_are_cleared_later():
    engine = Setup(prefix_caching=False).engine()
    breaks(engine._backend, "clear_blocks", lambda number, _: number == 0)
    breaks(engine._backend, "forward", lambda number, arguments: len(arguments[0].context_len) == 1)
    for one in requests(1):
        engine.add(one)
    finish(engine)
    assert engine._unclear
    engine.add(requests(2)[1])
    finish(engine)
    assert not engine._unclear


def test_fail_all_ends_who_runs():
    engine = Setup(max_num_seqs=2).engine()
    wanted = requests()
    sequences = [engine.add(one)[0] for one in wanted]
    engine.step()
    ended = engine.fail_all(RuntimeError("no\nway"))
    engine.check()
    assert ended == sequences[:2]
    assert {(s.finish, s.error) for s in ended} == {(FinishReason.ERROR, "RuntimeError: no way")}
    finish(engine)
    assert [facts(s) for s in sequences[2:]] == [plain_decode(one) for one in wanted[2:]]


def test_when_nobody_can_be_admitted_the_first_in_line_ends_and_says_why():
    engine = Setup(num_blocks=12).engine()
    admit = engine.scheduler._admit
    engine.scheduler._admit = lambda *_: None
    wanted = requests(3)
    sequences = [engine.add(one)[0] for one in wanted]
    assert [engine.step() for _ in range(STUCK_STEPS - 1)] == [[]] * (STUCK_STEPS - 1)
    assert engine.step() == sequences[:1]
    assert sequences[0].finish == FinishReason.ERROR
    assert "needs 3 more KV blocks, and 12 of 12 are free" in sequences[0].error
    assert engine.stats.stuck == 1
    assert engine.stats.last_error == sequences[0].error
    engine.scheduler._admit = admit
    finish(engine)
    assert [facts(s) for s in sequences[1:]] == [plain_decode(one) for one in wanted[1:]]


def test_steps_without_work_are_not_stuck():
    engine = Setup().engine()
    for _ in range(3 * STUCK_STEPS):
        assert engine.step() == []
    assert engine.stats.stuck == 0


def test_a_switch_checks_the_engine_after_every_step(monkeypatch):
    monkeypatch.setenv("FORERUN_CHECK", "1")
    engine = Setup().engine()
    engine.add(requests(1)[0])
    engine.step()
    engine.scheduler.pool.allocate(1)  # a block that nobody owns
    with pytest.raises(AssertionError):
        engine.step()


class TestDrafters:
    @pytest.mark.parametrize("call", ["propose", "observe"])
    def test_one_that_keeps_failing_is_asked_no_more(self, call):
        drafter = RandomDrafter(1)
        engine = Setup(drafter=drafter).engine()
        calls = []
        real = getattr(drafter, call)

        def failing(*arguments):
            calls.append(1)
            raise ValueError("injected")

        setattr(drafter, call, failing)
        wanted = requests()
        sequences = [engine.add(one)[0] for one in wanted]
        finish(engine)
        assert [facts(s) for s in sequences] == [plain_decode(one) for one in wanted]
        assert len(calls) == 5
        assert engine.speculator.failures.off == {"random": "ValueError: injected"}
        setattr(drafter, call, real)

    def test_one_that_fails_now_and_then_goes_on(self):
        drafter = RandomDrafter(1)
        engine = Setup(drafter=drafter).engine()
        breaks(drafter, "propose", lambda number, _: number % 4 == 0)
        for one in requests():
            engine.add(one)
        finish(engine)
        assert not engine.speculator.failures.off
        assert engine.speculator.stats.drafted > 0
