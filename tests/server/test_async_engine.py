"""AsyncEngine on an event loop of its own: commands are answered, streams end, whatever happens and in any order."""

import asyncio
import contextlib
import logging
import threading
import time

import pytest

from forerun.errors import RequestError
from forerun.generation import make_request
from forerun.llm import LLM
from forerun.sequence import FinishReason, SamplingParams
from forerun.server import async_engine
from forerun.server.async_engine import AsyncEngine
from forerun.server.errors import ApiError
from forerun.server.inbox import Command, Inbox
from tests.server.conftest import tiny_llm


@pytest.fixture(scope="module")
def llm(tiny_model) -> LLM:
    return tiny_llm(tiny_model, "off", max_num_seqs=4)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL + 1)


def request(llm: LLM, text: str = "hello", **params):
    options = {"max_tokens": 8, "ignore_eos": True, **params}
    return make_request(llm.tokenizer, text, SamplingParams(**options), id="r")


def drive(llm: LLM, scenario, **options):
    """Run a scenario with a started engine, which is stopped afterwards; blocks must be whole then."""

    async def main():
        engine = AsyncEngine(llm, **options)
        engine.start()
        try:
            return await asyncio.wait_for(scenario(engine), 240)
        finally:
            await asyncio.wait_for(engine.stop(), 60)
            assert engine.num_open == 0

    try:
        return asyncio.run(main())
    finally:
        llm.engine.check()
        assert not llm.engine.has_work
        assert llm.engine.scheduler.pool.num_owned == 0


async def read(stream):
    choices, tokens = [], []
    async for updates in stream:
        for update in updates:
            tokens += update.tokens
            choices += [update.choice] if update.choice is not None else []
    return choices, tokens


def test_a_stream_has_every_token_once(llm):
    async def scenario(engine):
        return await read(await engine.submit(request(llm, n=3, temperature=1.0, seed=1)))

    choices, tokens = drive(llm, scenario)
    assert len(choices) == 3
    assert len(tokens) == 24
    assert sorted(token.id for token in tokens) == sorted(id for choice in choices for id in choice.token_ids)


def test_a_late_reader_gets_one_update(llm):
    async def scenario(engine):
        stream = await engine.submit(request(llm, max_tokens=30))
        while engine.num_open:
            await asyncio.sleep(0.01)
        return [updates async for updates in stream]

    ((update,),) = drive(llm, scenario)
    assert len(update.tokens) == 30
    assert update.text == update.choice.text


@pytest.mark.parametrize("delay", [0, 0.0001, 0.002])
def test_a_submit_that_is_cancelled_leaves_nothing(llm, delay):
    async def scenario(engine):
        for _ in range(20):
            task = asyncio.ensure_future(engine.submit(request(llm, max_tokens=900)))
            await asyncio.sleep(delay)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                (await task).close()  # it was faster
        assert await engine.drain(20)

    drive(llm, scenario)


def test_a_cancelled_submit_of_a_bad_request_is_forgotten(llm):
    async def scenario(engine):
        bad = request(llm, logit_bias={10**6: 1.0})
        with pytest.raises(RequestError):
            await engine.submit(bad)
        task = asyncio.ensure_future(engine.submit(bad))
        await asyncio.sleep(0)
        task.cancel()
        assert await engine.drain(10)

    drive(llm, scenario)


def test_closing_again_and_after_the_end_does_nothing(llm):
    async def scenario(engine):
        stream = await engine.submit(request(llm, max_tokens=900))
        for _ in range(3):
            stream.close()
        choices, _ = await read(stream)
        stream.close()
        return choices

    (choice,) = drive(llm, scenario)
    assert choice.finish_reason is FinishReason.ABORTED


def test_stopping_ends_streams_and_answers_what_waits(llm):
    async def scenario(engine):
        streams = [await engine.submit(request(llm, max_tokens=900)) for _ in range(6)]
        late = [asyncio.ensure_future(engine.call(lambda: 1)) for _ in range(50)]
        adding = [asyncio.ensure_future(engine.submit(request(llm))) for _ in range(20)]
        await asyncio.sleep(0)
        await engine.stop()
        ended = [await read(stream) for stream in streams]
        answers = await asyncio.gather(*late, *adding, return_exceptions=True)
        for answer in answers:
            assert answer == 1 or isinstance(answer, (ApiError, async_engine.RequestStream)), answer
            if isinstance(answer, async_engine.RequestStream):
                await read(answer)
        with pytest.raises(ApiError, match="stopping"):
            await engine.submit(request(llm))
        with pytest.raises(ApiError, match="stopping"):
            await engine.call(lambda: 1)
        return ended

    for (choice,), _ in drive(llm, scenario):
        assert choice.finish_reason is FinishReason.ABORTED


def test_too_many_are_refused(llm):
    async def scenario(engine):
        streams = [await engine.submit(request(llm, max_tokens=900)) for _ in range(6)]
        with pytest.raises(ApiError) as caught:
            await engine.submit(request(llm))
        assert caught.value.status_code == 503
        assert caught.value.headers["Retry-After"]
        for stream in streams:
            stream.close()
        assert await engine.drain(20)
        await read(await engine.submit(request(llm)))

    drive(llm, scenario, max_waiting=2)


def test_a_step_that_raises_ends_who_runs_and_is_reported(llm, monkeypatch):
    async def scenario(engine):
        stream = await engine.submit(request(llm, max_tokens=900))
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine, "step", lambda: 1 / 0)
            choices, _ = await read(stream)
        (after,), _ = await read(await engine.submit(request(llm)))
        return choices, after, engine.health

    (choice,), after, health = drive(llm, scenario)
    assert choice.finish_reason is FinishReason.ERROR
    assert "ZeroDivisionError" in choice.error
    assert after.finish_reason is FinishReason.LENGTH
    assert health.alive
    assert health.failures >= 1
    assert "ZeroDivisionError" in health.last_error


def test_steps_that_raise_before_anybody_runs_end_those_who_wait(llm, monkeypatch):
    async def scenario(engine):
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine, "step", lambda: 1 / 0)
            streams = [await engine.submit(request(llm)) for _ in range(3)]
            return [(await read(stream))[0][0] for stream in streams]

    for choice in drive(llm, scenario):
        assert choice.finish_reason is FinishReason.ERROR


def test_output_that_cannot_be_read_ends_its_sequence_only(llm, monkeypatch):
    read_really = async_engine.Feed.read

    def read_badly(feed, sequence):
        if sequence.request.prompt == bad.prompt:
            raise KeyError("no text")
        return read_really(feed, sequence)

    bad = request(llm, "the bad one", max_tokens=50)

    async def scenario(engine):
        monkeypatch.setattr(async_engine.Feed, "read", read_badly)
        streams = [await engine.submit(one) for one in (bad, request(llm, max_tokens=20))]
        return [(await read(stream))[0][0] for stream in streams]

    failed, good = drive(llm, scenario)
    assert failed.finish_reason is FinishReason.ERROR
    assert "no text" in failed.error
    assert (good.finish_reason, len(good.token_ids)) == (FinishReason.LENGTH, 20)


def test_a_thread_that_breaks_down_ends_every_stream(llm, monkeypatch):
    async def scenario(engine):
        stream = await engine.submit(request(llm, max_tokens=900))
        monkeypatch.setattr(engine, "_step", lambda: (_ for _ in ()).throw(SystemExit(1)))
        (choice,), _ = await read(stream)
        while engine.health.alive:
            await asyncio.sleep(0.01)
        with pytest.raises(ApiError):
            await engine.call(lambda: 1)
        return choice, engine.health

    choice, health = drive(llm, scenario)
    assert choice.finish_reason in (FinishReason.ABORTED, FinishReason.ERROR)
    assert "SystemExit" in health.last_error


def test_a_step_that_does_not_end_is_reported(llm, monkeypatch, caplog):
    release = threading.Event()
    caplog.set_level(logging.ERROR, logger=async_engine.__name__)
    monkeypatch.setattr(async_engine, "STALL_S", 0.1)
    forward = llm.backend.forward

    def stuck(batch):
        release.wait(20)
        return forward(batch)

    async def scenario(engine):
        monkeypatch.setattr(llm.backend, "forward", stuck)
        stream = await engine.submit(request(llm))
        end = time.monotonic() + 10
        while not (engine.health.stalled and caplog.records) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        seen = engine.health
        release.set()
        await read(stream)
        return seen, engine.health

    during, after = drive(llm, scenario)
    assert during.stalled
    assert during.alive
    assert not after.stalled
    assert "release.wait" in caplog.text  # where it hangs


def test_an_observer_that_raises_harms_nobody(llm):
    class Bad:
        def __getattr__(self, name):
            raise RuntimeError("injected")

    async def scenario(engine):
        return await read(await engine.submit(request(llm)))

    (choice,), _ = drive(llm, scenario, observers=[Bad()])
    assert choice.finish_reason is FinishReason.LENGTH


def test_a_closed_inbox_refuses_everything_exactly_once():
    inbox, done, refused = Inbox(), [], []
    threads = []
    for number in range(8):

        def put(number=number):
            for _ in range(200):
                if not inbox.put(Command(lambda: done.append(1), lambda: refused.append(1))):
                    refused.append(1)

        threads.append(threading.Thread(target=put))
    for thread in threads:
        thread.start()
    for _ in range(300):
        if (command := inbox.take(wait=False)) is not None:
            command.do()
    inbox.close()
    for thread in threads:
        thread.join()
    assert len(done) + len(refused) == 1600
