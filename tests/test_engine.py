"""Engine: one bad sequence, one bad row, one bad request never harms another; who leaves frees its blocks at once."""

import logging

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.sequence import FinishReason, Request, SamplingParams
from tests.fakes import (
    VOCAB,
    FakeBackend,
    OracleDrafter,
    PairStop,
    RandomDrafter,
    Setup,
    facts,
    plain_decode,
    prompt_of,
    request,
    run,
)

BAD = 31  # the token by which a corrupt backend knows its victim


@pytest.fixture(autouse=True)
def quiet(caplog):
    """Failures are logged with their traceback; these tests provoke many."""
    caplog.set_level(logging.CRITICAL + 1)


def clean_prompt(seed, length=20):
    return tuple(token for token in prompt_of(seed, length + 10) if token != BAD)[:length]


def failing_backend(is_hit, error):
    """A backend that raises when a batch draws for a sequence that `is_hit` (noise key, position) selects."""

    def corrupt(batch, rows):
        if any(is_hit(draw.key, draw.position) for draw in batch.draws):
            raise error

    return FakeBackend(corrupt=corrupt)


def nan_backend(is_hit, value=np.nan):
    """A backend whose rows for a sequence and position turn to NaN."""

    def corrupt(batch, rows):
        for draw in batch.draws:
            for node in range(len(draw.tree)):
                if is_hit(draw.key, draw.position + draw.tree.depths[node]):
                    rows[draw.first_output + node][3] = value

    return FakeBackend(corrupt=corrupt)


def start(engine, count=4, **options):
    """Requests with different prompts and seeds; returns (requests, sequences)."""
    requests = [
        request(clean_prompt(seed), f"r{seed}", seed=seed, ignore_eos=True, temperature=0.7, **options)
        for seed in range(count)
    ]
    return requests, [engine.add(wanted)[0] for wanted in requests]


def finish(engine):
    for _ in range(1000):
        if not engine.has_work:
            break
        engine.step()
        engine.check()
    assert not engine.has_work
    assert engine.scheduler.pool.num_owned == 0


class TestFailingSteps:
    @pytest.mark.parametrize("drafter", [None, RandomDrafter(1)])
    def test_only_the_repeat_offender_ends(self, drafter):
        backend = failing_backend(lambda key, position: key == victim.key and position >= 25, RuntimeError("no\nway"))
        engine = Setup(drafter=drafter, backend=backend).engine()
        requests, sequences = start(engine)
        victim = sequences[2]
        finish(engine)
        assert victim.finish is FinishReason.ERROR
        assert victim.error == "RuntimeError: no way"
        assert victim.stats.finished_s is not None
        want, got = plain_decode(requests[2])[0], victim.output
        assert got == want[: len(got)]
        assert 0 < len(got) <= 5
        for index in (0, 1, 3):
            assert facts(sequences[index]) == plain_decode(requests[index])
        assert engine.stats.failed_steps == 1

    @pytest.mark.parametrize("count", [1, 3])
    def test_a_failure_that_does_not_repeat_is_never_noticed(self, count):
        failures = iter([True, False, False, True])

        def corrupt(batch, rows):
            if len(batch.draws) == count and next(failures, False):
                raise OSError("once")

        engine = Setup(backend=FakeBackend(corrupt=corrupt)).engine()
        requests, sequences = start(engine, count)
        finish(engine)
        assert [facts(s) for s in sequences] == [plain_decode(r) for r in requests]
        assert engine.stats.failed_steps == 2

    def test_a_failure_during_prefill(self):
        def corrupt(batch, rows):
            if BAD in batch.tokens:
                raise RuntimeError("bad token")

        engine = Setup(backend=FakeBackend(corrupt=corrupt), max_chunk=6).engine()
        victim = engine.add(request((*clean_prompt(9), BAD, 1, 2), max_tokens=5))[0]
        wanted = request(clean_prompt(1), max_tokens=3)
        other = engine.add(wanted)[0]
        finish(engine)
        assert (victim.finish, victim.output) == (FinishReason.ERROR, [])
        if BAD not in plain_decode(wanted)[0]:
            assert facts(other) == plain_decode(wanted)

    def test_blocks_of_a_failed_sequence_are_cleared(self):
        backend = failing_backend(lambda key, position: True, RuntimeError("always"))
        engine = Setup(backend=backend).engine()
        start(engine, 2)
        finish(engine)
        assert set(np.unique(backend._held)) <= {-1, -2}

    def test_a_draw_that_skips_a_row_is_a_failure(self):
        class Lazy(FakeBackend):
            def draw(self, result, batch):
                drawn = super().draw(result, batch)
                drawn.tokens[:] = -1
                return drawn

        engine = Setup(backend=Lazy()).engine()
        _, sequences = start(engine, 2)
        finish(engine)
        assert {s.finish for s in sequences} == {FinishReason.ERROR}
        assert "not drawn" in sequences[0].error


class TestNaN:
    @pytest.mark.parametrize("value", [np.nan, np.inf])
    @pytest.mark.parametrize("drafter", ["none", "oracle", "branches"])
    @pytest.mark.parametrize("at", [20, 23, 30])
    def test_ends_one_sequence_and_leaves_its_text_so_far(self, value, drafter, at):
        texts = {}
        make = {
            "none": lambda: None,
            "oracle": lambda: OracleDrafter(lambda s: texts[s.id]),
            "branches": lambda: OracleDrafter(lambda s: texts[s.id], branch=True),
        }
        backend = nan_backend(lambda key, position: key == victim.key and position == at, value)
        engine = Setup(drafter=make[drafter](), backend=backend).engine()
        requests, sequences = start(engine)
        texts |= {s.id: plain_decode(r)[0] for s, r in zip(sequences, requests, strict=True)}
        victim = sequences[1]
        finish(engine)
        assert victim.finish is FinishReason.NUMERICAL_ERROR
        assert "NaN" in victim.error
        assert victim.output == texts[victim.id][: at - 20]
        for index in (0, 2, 3):
            assert facts(sequences[index]) == plain_decode(requests[index])

    def test_nothing_of_it_enters_the_index_and_its_blocks_are_cleared(self):
        backend = nan_backend(lambda key, position: True)
        engine = Setup(backend=backend).engine()
        _, sequences = start(engine, 3)
        finish(engine)
        assert {s.finish for s in sequences} == {FinishReason.NUMERICAL_ERROR}
        assert len(engine.scheduler.index) == 0
        assert engine.scheduler.pool.num_cached == 0
        assert set(np.unique(backend._held)) <= {-1, -2}

    def test_choices_that_share_a_bad_prompt_and_end_together_leave_no_block_uncleared(self):
        """While both own the shared blocks neither may clear them; after both are gone they must be clear."""
        backend = nan_backend(lambda key, position: position >= 36)
        engine = Setup(backend=backend, prefix_caching=False).engine()
        choices = engine.add(request(clean_prompt(1, 33), n=3, temperature=1.0, ignore_eos=True))
        finish(engine)
        assert {s.finish for s in choices} == {FinishReason.NUMERICAL_ERROR}
        assert set(np.unique(backend._held)) <= {-1, -2}

    @pytest.mark.parametrize("max_tokens", [12, 13])
    def test_a_row_behind_the_end_is_not_vouched_for(self, max_tokens):
        """The last token (32 in all) ends the request; the KV of its row, drafted and computed, was never drawn
        finite, so the second block must not be published."""
        text = plain_decode(request(clean_prompt(1), ignore_eos=True, max_tokens=40))[0]
        backend = nan_backend(lambda key, position: position == 32)
        engine = Setup(drafter=OracleDrafter(lambda s: text), backend=backend, max_depth=12).engine()
        # A budget that drafts beyond max_tokens, as a drafter of several sequences might be given one day.
        engine.speculator.budget.depth = lambda sequence, num_decoding: 12
        sequence = run(engine, [request(clean_prompt(1), ignore_eos=True, max_tokens=max_tokens)])[0][0]
        assert sequence.output == text[:12]
        assert sequence.finish is (FinishReason.LENGTH if max_tokens == 12 else FinishReason.NUMERICAL_ERROR)
        assert engine.scheduler.index.match([*clean_prompt(1), *text]).num_tokens == 16

    def test_a_bad_row_off_the_path_harms_nobody(self):
        def corrupt(batch, rows):
            for draw in batch.draws:
                for node in range(1, len(draw.tree)):
                    if draw.tree.tokens[node] != right[draw.position - 20 + draw.tree.depths[node] - 1]:
                        rows[draw.first_output + node][:] = np.nan

        wanted = request(clean_prompt(1), ignore_eos=True)
        right = plain_decode(wanted)[0] + [0] * 20
        engine = Setup(
            drafter=OracleDrafter(lambda s: right, branch=True), backend=FakeBackend(corrupt=corrupt)
        ).engine()
        assert facts(run(engine, [wanted])[0][0]) == plain_decode(wanted)


class TestAbort:
    @pytest.mark.parametrize("drafter", [None, RandomDrafter(1)])
    @pytest.mark.parametrize("steps", [0, 1, 2, 5, 9, 20])
    def test_frees_its_blocks_at_once(self, drafter, steps):
        """While waiting, during prefill (chunks of 4 for 20 tokens), while decoding."""
        engine = Setup(drafter=drafter, max_chunk=4).engine()
        requests, sequences = start(engine)
        for _ in range(steps):
            engine.step()
        victim = sequences[1]
        owned = engine.scheduler.pool.num_owned
        held = len(victim.block_ids)
        if victim.is_finished:
            return
        engine.abort(victim)
        engine.check()
        assert engine.scheduler.pool.num_owned == owned - held
        assert (victim.finish, list(victim.block_ids)) == (FinishReason.ABORTED, [])
        assert victim.stats.finished_s is not None
        before = list(victim.tokens)
        finish(engine)
        assert victim.tokens == before
        for index in (0, 2, 3):
            assert facts(sequences[index]) == plain_decode(requests[index])

    def test_twice_and_after_the_end(self):
        engine = Setup().engine()
        _, (first, second) = start(engine, 2)
        engine.abort(first)
        engine.abort(first)
        finish(engine)
        engine.abort(second)
        assert second.finish is FinishReason.LENGTH

    def test_everybody(self):
        engine = Setup(max_num_seqs=2).engine()
        _, sequences = start(engine)
        engine.step()
        for sequence in sequences:
            engine.abort(sequence)
        assert not engine.has_work
        assert engine.scheduler.pool.num_owned == 0
        assert engine.step() == []


class TestRefusals:
    @pytest.mark.parametrize(
        ("prompt", "params", "param", "message"),
        [
            ((), {}, "prompt", "empty"),
            ((1, VOCAB), {}, "prompt", f"token id {VOCAB} is not in the vocabulary of {VOCAB}"),
            ((1, -1), {}, "prompt", "token id -1"),
            ((1,), {"logit_bias": {VOCAB: 1.0}}, "logit_bias", f"id {VOCAB} is not in the vocabulary"),
            ((1,), {"stop_token_ids": (3, 99)}, "stop_token_ids", "id 99 is not in the vocabulary"),
            ((1,), {"stop": ("x",)}, "stop", "need a tokenizer"),
            ((1,) * 256, {}, "prompt", "the prompt has 256 tokens but the context holds 256"),
        ],
    )
    def test_bad_requests_leave_nothing_behind(self, prompt, params, param, message):
        engine = Setup().engine()
        with pytest.raises(RequestError, match=message) as caught:
            engine.add(Request("r", prompt, SamplingParams(**params)))
        assert caught.value.param == param
        assert not engine.has_work

    def test_a_stop_matcher_that_cannot_be_made_leaves_nothing_behind(self):
        made = iter([PairStop()])
        engine = Setup().engine()
        wanted = Request("r", (1, 2), SamplingParams(n=2, stop=("x",)), make_stop_matcher=lambda: next(made))
        with pytest.raises(StopIteration):
            engine.add(wanted)
        assert not engine.has_work


class TestSteps:
    def test_an_idle_engine_does_nothing(self):
        engine = Setup().engine()
        assert engine.step() == []
        assert engine.stats.steps == 0

    def test_step_returns_who_got_tokens_or_ended(self):
        engine = Setup(max_chunk=10).engine()
        wanted = request(clean_prompt(1), max_tokens=3, ignore_eos=True)
        (sequence,) = engine.add(wanted)
        assert engine.step() == []  # the first half of the prompt
        for count in (1, 2, 3):
            assert engine.step() == [sequence]
            assert sequence.num_output == count
        assert sequence.is_finished

    def test_statistics(self):
        engine = Setup().engine()
        requests, sequences = start(engine, 3)
        finish(engine)
        stats = engine.stats
        outputs = sum(s.num_output for s in sequences)
        assert stats.rows == sum(len(r.prompt) for r in requests) + outputs - len(sequences)
        assert stats.total_s >= stats.forward_s > 0
        for sequence in sequences:
            times = sequence.stats
            assert times.steps == sequence.num_output
            assert 0 < times.arrived_s <= times.first_token_s <= times.finished_s

    def test_a_million_steps_would_not_grow_it(self):
        """What the engine keeps between requests does not depend on how many it served."""
        engine = Setup(drafter=RandomDrafter(1)).engine()
        for seed in range(30):
            run(engine, [request(prompt_of(seed, 40), max_tokens=8)])
        scheduler = engine.scheduler
        assert not scheduler.running
        assert not scheduler.waiting
        assert len(scheduler.index) <= scheduler.pool.num_blocks
        assert len(scheduler.index) == scheduler.pool.num_cached
