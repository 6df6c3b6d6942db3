"""The dashboard's data: what steps did adds up, the block map agrees with the pool, and one sampling serves all."""

import asyncio
import json
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from forerun.sequence import Request, SamplingParams
from forerun.server import dashboard
from forerun.server.config import ServerConfig
from forerun.server.dashboard import NUM_ENDED, StepRecorder
from forerun.server.dashboard_feed import SharedSampling
from forerun.server.dashboard_snapshot import CACHED, FIRST_OWNER, OTHERS, SHARED, Snapshots, block_map
from forerun.server.dashboard_view import seen_by
from forerun.server.keys import KeySources
from forerun.server.service import Tenant
from forerun.text.detokenizer import LiveText
from tests.server.conftest import MODEL, Server, serving, tiny_llm

PROMPT = tuple(range(5, 75))


@pytest.fixture
def llm(tiny_model):
    return tiny_llm(tiny_model)


def run(llm, recorder: StepRecorder, *requests: Request, num_steps: int = 10**6) -> list:
    """Run requests as the engine's thread does."""
    sequences = [sequence for request in requests for sequence in llm.engine.add(request)]
    recorder.added(sequences)
    while llm.engine.has_work and num_steps:
        num_steps -= 1
        advanced = llm.engine.step()
        recorder.step_done(llm, advanced, 0.001)
        for sequence in advanced:
            if sequence.is_finished:
                recorder.ended(sequence)
    return sequences


def request(llm, prompt=PROMPT, **options) -> Request:
    params = SamplingParams(ignore_eos=True, **({"max_tokens": 20} | options))
    return Request("r", prompt, params, make_stop_matcher=lambda: LiveText(llm.tokenizer, ()))


def total(recorder: StepRecorder, name: str) -> int:
    return sum(getattr(interval, name) for interval in recorder.intervals)


def test_intervals_add_up_to_what_the_engine_did(llm):
    recorder = StepRecorder()
    run(llm, recorder, request(llm), request(llm, max_tokens=7, n=2))
    stats = llm.engine.stats
    assert total(recorder, "tokens") == recorder.num_tokens == 20 + 2 * 7
    assert total(recorder, "steps") == stats.steps
    assert total(recorder, "rows") == stats.rows
    assert total(recorder, "draft_rows") == llm.engine.speculator.stats.drafted
    assert total(recorder, "accepted") == llm.engine.speculator.stats.accepted
    columns = Snapshots(llm, recorder, MODEL).take()["intervals"]
    parts = sum(sum(columns[name]) for name in ("decoding_rows", "draft_rows", "prompt_rows"))
    assert parts == stats.rows
    assert len(recorder.first_tokens) == 3


def test_what_ended_is_remembered_within_bounds(llm):
    recorder = StepRecorder()
    for _ in range(NUM_ENDED + 3):
        run(llm, recorder, request(llm, max_tokens=2))
    document = Snapshots(llm, recorder, MODEL).take()
    assert len(document["ended"]) == NUM_ENDED
    assert document["totals"]["requests_ended"] == NUM_ENDED + 3
    assert document["ended"][-1]["output_tokens"] == 2
    assert document["totals"]["prompt_tokens"] == (NUM_ENDED + 3) * len(PROMPT)
    assert (
        document["totals"]["cached_tokens"]
        == sum(one["cached_tokens"] for one in document["ended"]) + 2 * (document["ended"][-1]["cached_tokens"])
    )
    assert document["ended"][-1]["cached_tokens"] > 0


def test_old_intervals_are_left_out(llm, monkeypatch):
    recorder = StepRecorder()
    run(llm, recorder, request(llm))
    recorder.started_s -= 3600
    assert Snapshots(llm, recorder, MODEL).take()["intervals"]["index"] == []


def test_the_block_map_agrees_with_the_pool(llm):
    recorder = StepRecorder()
    run(llm, recorder, request(llm), request(llm, tuple(range(300, 390))))
    alive = run(llm, recorder, request(llm, tuple(range(100, 190)), n=2), request(llm), num_steps=3)
    blocks = Snapshots(llm, recorder, MODEL).take()["blocks"]
    pool = llm.engine.scheduler.pool
    states = [state for state, length in blocks["map"] for _ in range(length)]
    assert len(states) == pool.num_blocks
    assert states.count(CACHED) == pool.num_cached > 0
    assert sum(state > CACHED for state in states) == pool.num_owned == blocks["owned"]
    for sequence in alive:
        for block in sequence.block_ids:
            assert states[block] == (SHARED if pool.count(block) > 1 else FIRST_OWNER + sequence.id)
    assert SHARED in states


def test_a_map_of_many_blocks_is_made_less_often(llm, monkeypatch):
    snapshots = Snapshots(llm, StepRecorder(), MODEL)
    made = []
    monkeypatch.setattr(
        "forerun.server.dashboard_snapshot.block_map", lambda *arguments: made.append(block_map(*arguments)) or made[-1]
    )
    snapshots._next_map_s = 0.0
    for _ in range(5):
        snapshots.take()
    assert len(made) == 1, "the second map has to wait for 500 times what the first one took"


def test_the_snapshot_over_http(server: Server):
    messages = [{"role": "user", "content": "a secret"}]
    server.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=5)
    answer = server.http.get("/v1/dashboard")
    document = answer.json()
    assert document["server"]["model"] == MODEL
    assert document["totals"]["tokens"] >= 5
    assert document["memory"]["kv_bytes"] > 0
    assert document["memory"]["resident_bytes"] > document["memory"]["kv_owned_bytes"]
    assert "secret" not in answer.text


def test_the_stream_brings_a_minute_first_and_then_what_is_new(server: Server):
    with server.http.stream("GET", "/v1/dashboard/stream") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = (line for line in response.iter_lines() if line)
        first, second = (json.loads(next(lines).removeprefix("data: ")) for _ in range(2))
    assert first.keys() == second.keys()
    assert second["index"] >= first["index"]


def states_of(blocks: dict) -> list[int]:
    return [state for state, length in blocks["map"] for _ in range(length)]


class TestTenants:
    def test_a_tenant_sees_its_own_requests_and_of_others_only_how_much(self, llm):
        recorder = StepRecorder()
        alice, bob = Tenant("alice", "a1"), Tenant("bob", "b2")
        run(llm, recorder, replace(request(llm), salt="a1/"), replace(request(llm), salt="b2/x"))
        mine, other = run(
            llm,
            recorder,
            replace(request(llm, tuple(range(100, 190))), salt="a1/"),
            replace(request(llm, tuple(range(300, 390))), salt="b2/"),
            num_steps=3,
        )
        snapshot = Snapshots(llm, recorder, MODEL).take()
        for tenant, own, foreign in ((alice, mine, other), (bob, other, mine)):
            document = seen_by(snapshot, tenant)
            assert [one["id"] for one in document["requests"]] == [own.id]
            assert document["running"] == 2
            assert len(document["ended"]) == 1
            states = states_of(document["blocks"])
            assert states.count(FIRST_OWNER + own.id) == len(own.block_ids)
            assert states.count(OTHERS) == len(foreign.block_ids)
            assert FIRST_OWNER + foreign.id not in states
            assert all(first[0] != second[0] for first, second in pairwise(document["blocks"]["map"]))
            assert "owners" not in document
            assert "b2" not in json.dumps(document)
        assert states_of(seen_by(snapshot, Tenant())["blocks"]) == states_of(snapshot["blocks"])
        assert len(seen_by(snapshot, Tenant())["requests"]) == 2
        while llm.engine.has_work:
            llm.engine.step()

    def test_over_http_in_the_snapshot_and_in_the_stream(self, tiny_model):
        config = ServerConfig(served_model=MODEL, keys=KeySources(("alice:key-of-alice", "bob:key-of-bob-1")))
        with serving(tiny_llm(tiny_model), config) as server:
            body = {"model": MODEL, "prompt": "one two three", "max_tokens": 5}
            keys = {name: {"X-Api-Key": key} for name, key in (("a", "key-of-alice"), ("b", "key-of-bob-1"))}
            assert server.http.post("/v1/completions", json=body, headers=keys["a"]).status_code == 200
            for name, number in (("a", 1), ("b", 0)):
                document = server.http.get("/v1/dashboard", headers=keys[name]).json()
                assert len(document["ended"]) == number
                assert document["totals"]["requests_ended"] == 1
                with server.http.stream("GET", "/v1/dashboard/stream", headers=keys[name]) as response:
                    lines = (line for line in response.iter_lines() if line)
                    for _ in range(2):
                        assert len(json.loads(next(lines).removeprefix("data: "))["ended"]) == number


class TestSharedSampling:
    def test_watchers_share_one_loop_that_ends_with_the_last(self):
        async def scenario():
            taken = []

            async def sample():
                taken.append(len(taken))
                return taken[-1] + 1

            sampling = SharedSampling(sample, 0.01, lambda: True)
            assert not sampling.is_sampling
            one, two = sampling.watch(), sampling.watch()
            seen = await asyncio.gather(anext(one), anext(two))
            assert seen == [1, 1]
            assert sampling.num_watchers == 2
            await one.aclose()
            assert sampling.is_sampling
            assert await anext(two) > 1
            await two.aclose()
            await asyncio.sleep(0)
            assert not sampling.is_sampling
            assert sampling.num_watchers == 0
            count = len(taken)
            await asyncio.sleep(0.05)
            assert len(taken) == count, "it samples although nobody watches"
            again = sampling.watch()
            assert await anext(again) > count
            await again.aclose()

        asyncio.run(scenario())

    def test_a_slow_watcher_misses_samples_and_holds_up_nobody(self):
        async def scenario():
            count = 0

            async def sample():
                nonlocal count
                count += 1
                return count

            sampling = SharedSampling(sample, 0.001, lambda: True)
            slow = sampling.watch()
            first = await anext(slow)
            await asyncio.sleep(0.1)
            assert await anext(slow) > first + 3
            await slow.aclose()

        asyncio.run(scenario())

    @pytest.mark.parametrize("fails", [True, False])
    def test_watching_ends_when_the_server_stops_or_a_sample_fails(self, fails):
        async def scenario():
            goes_on = True

            async def sample():
                if fails:
                    raise RuntimeError("gone")
                return 1

            sampling = SharedSampling(sample, 0.01, lambda: goes_on)
            seen = []

            async def watch():
                nonlocal goes_on
                async for one in sampling.watch():
                    seen.append(one)
                    goes_on = False

            await asyncio.wait_for(watch(), 5)
            assert seen == ([] if fails else [1])
            assert sampling.num_watchers == 0

        asyncio.run(scenario())


def test_the_recorder_is_cheap(llm):
    """What a step pays for it: far below a thousandth of the shortest step of a real model, some milliseconds."""
    recorder = StepRecorder()
    sequences = run(llm, recorder, *[request(llm, max_tokens=900) for _ in range(8)], num_steps=4)
    start = time.perf_counter()
    for _ in range(200):
        recorder.step_done(llm, sequences, 0.001)
    assert (time.perf_counter() - start) / 200 < 0.001
    assert recorder.intervals.maxlen == dashboard.NUM_INTERVALS
