"""Profile: totals and time line of phases and operations; the engine's phases; the report at the end of a process."""

import itertools
import subprocess
import sys
import time

import numpy as np

from forerun.engine import Engine
from forerun.profile import NoClock, Profile
from tests.fakes import RandomDrafter, Setup, prompt_of, request, run


def spans(whole, *threads):
    return np.array([whole, *threads], np.int64)


def test_a_phase_reaches_from_the_end_of_the_one_before():
    profile = Profile(keep_timeline=True)
    profile.start_step()
    time.sleep(0.01)
    profile.end_phase("select")
    profile.end_phase("build")
    profile.end_phase("select")
    assert profile.phases["select"].calls == 2
    assert profile.phases["select"].ns >= 10_000_000 > profile.phases["build"].ns
    events = [event for event in profile.trace_events() if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["select", "build", "select"]
    assert events[0]["ts"] == 0
    for before, after in itertools.pairwise(events):
        assert abs(before["ts"] + before["dur"] - after["ts"]) < 1e-3  # microseconds


def test_operations_of_one_name_are_added_up():
    profile = Profile()
    profile.record_ops(["norm", "linear", "norm"], spans([[0, 5], [5, 105], [105, 112]]))
    profile.record_ops(["norm", "linear", "norm"], spans([[200, 205], [205, 305], [305, 311]]))
    assert {name: (total.calls, total.ns) for name, total in profile.operations.items()} == {
        "norm": (4, 23),
        "linear": (2, 200),
    }
    lines = profile.report().splitlines()
    assert [line.split()[0] for line in lines] == ["operation", "linear", "norm"]  # the longest first
    assert lines[1].split()[1:] == ["2", "0.0", "0.1", "89.7%"]
    profile.clear()
    assert profile.report() == ""


def test_every_thread_has_a_track_with_its_own_part():
    profile = Profile(keep_timeline=True)
    whole = [[1000, 5000], [5000, 6000], [6000, 9000]]
    first = [[1500, 4000], [0, 0], [0, 0]]  # the second operation needed no pool, the third ran on thread 1 alone
    second = [[2000, 4500], [0, 0], [6500, 8000]]
    profile.record_ops(["a", "b", "c"], spans(whole, first, second))
    events = profile.trace_events()
    assert {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"} == {
        0: "engine",
        1: "thread 0",
        2: "thread 1",
    }
    shown = sorted((e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X")
    assert shown == [(1, "a", 0.0, 2.5), (1, "b", 3.5, 1.0), (2, "a", 0.5, 2.5), (2, "c", 5.0, 1.5)]


def test_the_engine_tells_its_phases_in_the_order_of_the_step():
    prompts = [request(prompt_of(seed, 20)) for seed in range(3)]
    setup = Setup(drafter=RandomDrafter())
    plain = setup.engine()
    profile = Profile()
    engine = Engine(setup.backend, plain.scheduler, plain.speculator, setup.vocab, profile)
    run(engine, prompts)
    steps = engine.stats.steps
    assert list(profile.phases)[:6] == ["select", "propose", "build", "forward", "draw", "commit"]
    assert {profile.phases[name].calls for name in ("build", "forward", "draw", "commit")} == {steps}
    assert isinstance(plain._clock, NoClock)


PROGRAM = """
from forerun.profile import process_profile
profile = process_profile()
assert profile is process_profile()
if profile is not None:
    profile.start_step()
    profile.end_phase("select")
print("done")
"""


def test_the_report_comes_when_the_process_ends_and_only_if_asked(monkeypatch):
    for value, expected in (("1", ["phase", "select"]), ("0", [])):
        monkeypatch.setenv("FORERUN_PROFILE", value)
        ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        assert ran.stdout == "done\n"
        assert [line.split()[0] for line in ran.stderr.splitlines()] == expected
