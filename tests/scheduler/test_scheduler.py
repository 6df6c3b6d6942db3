"""Scheduler: order, admission, preemption, chunks and limits, seen from outside through the engine."""

from dataclasses import replace

import pytest

from forerun.config import CacheConfig, SchedulerConfig
from forerun.errors import RequestError
from forerun.scheduler.prefill import MIN_ROWS
from forerun.scheduler.scheduler import Scheduler
from forerun.scheduler.step_time import TRY_EVERY, TRY_ROWS, StepTime
from forerun.sequence import FinishReason
from tests.fakes import OracleDrafter, RandomDrafter, Setup, facts, plain_decode, prompt_of, request, run


def drive(engine, watch=lambda selection: None, max_steps=500):
    """Step to the end, showing every selection to `watch` and checking invariants and progress."""
    select = engine.scheduler.select

    def watched(room, only=None):
        selection = select(room, only)
        watch(selection)
        return selection

    engine.scheduler.select = watched
    for _ in range(max_steps):
        if not engine.has_work:
            return
        before = engine.stats.rows
        engine.step()
        engine.check()
        assert engine.stats.rows > before, "a step without progress"
        assert engine.stats.failed_steps == 0, engine.stats.last_error
    raise AssertionError("the engine does not finish")


class TestFits:
    """What could never run is refused at once, with the numbers."""

    def refuse(self, num_prompt, max_tokens, num_blocks=4, max_model_len=256):
        scheduler = Scheduler(
            SchedulerConfig(64, 64, 8, max_model_len), CacheConfig(num_blocks, 16, ("fp32",)), StepTime()
        )
        with pytest.raises(RequestError) as caught:
            scheduler.check_fits(num_prompt, max_tokens)
        return caught.value.param, str(caught.value)

    def test_a_least_length_that_the_context_cannot_hold(self):
        scheduler = Scheduler(SchedulerConfig(64, 64, 8, 40), CacheConfig(9, 16, ("fp32",)), StepTime())
        scheduler.check_fits(10, None, 30)
        with pytest.raises(RequestError, match="min_tokens is 31 but the context holds 40, 10 of it") as caught:
            scheduler.check_fits(10, None, 31)
        assert caught.value.param == "min_tokens"

    def test_empty_prompt(self):
        assert self.refuse(0, 5) == ("prompt", "the prompt is empty: give it at least one token")

    @pytest.mark.parametrize("num_prompt", [40, 41])
    def test_prompt_as_long_as_the_context(self, num_prompt):
        param, message = self.refuse(num_prompt, 1, max_model_len=40)
        assert param == "prompt"
        assert f"{num_prompt} tokens" in message
        assert "holds 40" in message

    @pytest.mark.parametrize(("num_prompt", "max_tokens", "longest"), [(60, 5, 65), (5, 60, 65), (10, None, 256)])
    def test_more_than_the_cache_holds(self, num_prompt, max_tokens, longest):
        param, message = self.refuse(num_prompt, max_tokens)
        assert param == "max_tokens"
        assert f"{longest} tokens" in message
        assert "holds 64" in message

    def test_just_fits_and_runs(self):
        engine = Setup(num_blocks=4).engine()
        wanted = request(prompt_of(1, 60), max_tokens=4, ignore_eos=True)
        assert facts(run(engine, [wanted])[0][0]) == plain_decode(wanted)

    def test_the_context_caps_what_max_tokens_may_need(self):
        engine = Setup(num_blocks=4, max_model_len=64).engine()
        sequence = run(engine, [request(prompt_of(1, 60), max_tokens=1000, ignore_eos=True)])[0][0]
        assert (len(sequence.tokens), sequence.finish) == (64, FinishReason.LENGTH)


class TestOrder:
    def test_the_youngest_pays_and_keeps_its_place(self):
        engine = Setup(num_blocks=7, prefix_caching=False).engine()
        sequences = [
            engine.add(request(prompt_of(s, 30), f"r{s}", max_tokens=34, ignore_eos=True))[0] for s in range(4)
        ]
        finished = []

        def watch(selection):
            waiting = [s.id for s in engine.scheduler.waiting]
            assert waiting == sorted(waiting)
            finished.extend(s.id for s in sequences if s.is_finished and s.id not in finished)

        drive(engine, watch)
        assert engine.scheduler.num_preemptions > 0
        assert sequences[0].stats.preemptions == 0
        assert finished == sorted(finished)

    def test_who_is_preempted_does_not_overtake_an_older_fork(self):
        """A choice that waits for its sibling's prompt is older than a running request that is preempted meanwhile."""
        engine = Setup(num_blocks=7, max_chunk=4).engine()
        engine.add(request(prompt_of(1, 60), n=2, max_tokens=8, ignore_eos=True))
        engine.step()
        engine.add(request(prompt_of(2, 30), max_tokens=30, ignore_eos=True))
        queues = []
        drive(engine, lambda selection: queues.append([s.id for s in engine.scheduler.waiting]))
        assert engine.scheduler.num_preemptions > 0
        assert [2] in queues  # the fork got the blocks that the younger one gave back
        assert [2, 1] not in queues

    def test_nobody_overtakes_a_large_request_that_waits(self):
        engine = Setup(num_blocks=8, prefix_caching=False).engine()
        first = engine.add(request(prompt_of(1, 60), max_tokens=20, ignore_eos=True))[0]
        engine.step()
        large = engine.add(request(prompt_of(2, 100), max_tokens=5, ignore_eos=True))[0]
        small = engine.add(request(prompt_of(3, 5), max_tokens=2, ignore_eos=True))[0]
        drive(engine)
        assert first.stats.finished_s <= large.stats.first_token_s <= small.stats.first_token_s

    @pytest.mark.parametrize("max_num_seqs", [1, 2])
    def test_no_more_run_than_may(self, max_num_seqs):
        engine = Setup(max_num_seqs=max_num_seqs).engine()
        for seed in range(5):
            engine.add(request(prompt_of(seed, 10), n=2))
        drive(engine, lambda selection: len(selection.shares) <= max_num_seqs or pytest.fail("too many"))

    def test_a_preempted_sequence_is_published_again(self):
        """Its blocks were reused meanwhile; when it is done, all of it can be found again."""
        engine = Setup(num_blocks=5).engine()
        sequences = [engine.add(request(prompt_of(s, 30), max_tokens=34, ignore_eos=True))[0] for s in range(2)]
        drive(engine)
        last = sequences[1]
        assert last.stats.preemptions > 0
        assert engine.scheduler.index.match(last.tokens).num_tokens == 48
        assert last.stats.cached_prompt_tokens == 0  # finding its own blocks again is no saving


class TestDrafts:
    def test_drafts_never_cost_another_sequence_its_blocks(self):
        """With room for every token but not for every draft, nobody is preempted."""
        engine = Setup(drafter=RandomDrafter(1, chain=True), num_blocks=4, prefix_caching=False, max_depth=15).engine()
        for seed in range(2):
            engine.add(request(prompt_of(seed, 14), max_tokens=18, ignore_eos=True))
        drive(engine)
        assert engine.scheduler.num_preemptions == 0

    def test_drafts_use_what_the_last_block_still_holds(self):
        """Both want 12 nodes behind 7 tokens; the one block that is free goes to the older."""
        drafter = RandomDrafter(1, chain=True)
        engine = Setup(drafter=drafter, num_blocks=3, max_depth=15, prefix_caching=False).engine()
        for seed in range(2):
            engine.add(request(prompt_of(seed, 6), max_tokens=14, ignore_eos=True))
        rooms = []
        drive(engine, lambda selection: rooms.append([share.max_nodes for share in selection.shares]))
        assert rooms[:2] == [[0, 0], [12, 9]]

    def test_rows_and_outputs_are_respected(self):
        setup = Setup(drafter=RandomDrafter(2), max_rows=20, max_outputs=10, max_num_seqs=6, max_depth=9)
        engine = setup.engine()
        for seed in range(12):
            engine.add(request(prompt_of(seed, 3 + 7 * seed % 50)))
        drive(engine)
        assert max(batch.num_rows for batch in setup.backend.batches) <= 20
        assert max(len(batch.output_rows) for batch in setup.backend.batches) <= 10


class TestPrefill:
    def chunks(self, engine):
        taken = []

        def watch(selection):
            taken.append({s.sequence.id: s.num_tokens for s in selection.shares if s.sequence.num_output == 0})

        drive(engine, watch)
        return taken

    def test_several_prompts_share_the_rows(self):
        engine = Setup(max_rows=60).engine()
        for seed, length in enumerate((100, 90, 10)):
            engine.add(request(prompt_of(seed, length), max_tokens=2))
        # each gets one, of the other 57 half go to the shortest, which takes 10 in all: its rest goes to the next one
        assert self.chunks(engine)[0] == {2: 10, 1: 39, 0: 11}

    def test_a_long_prompt_advances_while_others_decode_however_slow_the_machine(self):
        engine = Setup(max_rows=128).engine()
        engine.scheduler.step_time = StepTime(0.0, 10.0, 0.0)  # seconds
        engine.scheduler.step_time.observe = lambda *_: None
        engine.add(request(prompt_of(1, 5), max_tokens=80, ignore_eos=True))
        engine.step()
        engine.add(request(prompt_of(2, 100), max_tokens=2))
        chunks = [taken[1] for taken in self.chunks(engine) if 1 in taken]
        assert chunks[:TRY_EVERY] == TRY_EVERY * [MIN_ROWS]
        assert set(chunks[:-1]) == {MIN_ROWS, MIN_ROWS + TRY_ROWS}  # the prediction may be wrong

    def test_prefill_fills_the_step_up_to_the_slowdown(self):
        engine = Setup(max_rows=128).engine()
        assert engine.scheduler.config.prefill_slowdown == 1.5
        engine.scheduler.step_time = StepTime(0.191, 2e-3, 0.0)  # plain: 0.193 s; beside it 0.0965 s for 48 rows
        engine.scheduler.step_time.observe = lambda *_: None
        engine.add(request(prompt_of(1, 5), max_tokens=40, ignore_eos=True))
        engine.step()
        engine.add(request(prompt_of(2, 120), max_tokens=2))
        assert [taken[1] for taken in self.chunks(engine) if 1 in taken] == [48, 48, 24]

    def test_prompts_that_come_together_count_as_decoding_but_for_one(self):
        engine = Setup(max_rows=128).engine()
        engine.scheduler.step_time = StepTime(0.05, 2e-3, 0.0)
        engine.scheduler.step_time.observe = lambda *_: None
        engine.add(request(prompt_of(1, 5), max_tokens=40, ignore_eos=True))
        engine.step()
        for seed in (2, 3, 4):
            engine.add(request(prompt_of(seed, 100), max_tokens=2))
        # 1.5 times the step of three rows, 56 ms, is 84 ms: 32 beside the 52 of the one that decodes
        assert sum(self.chunks(engine)[0].values()) == 16

    def test_more_prompts_than_rows_all_advance(self):
        """Every running sequence gets a row in every step, so many short prompts cannot starve a long one."""
        engine = Setup(num_blocks=200, max_rows=64, max_outputs=64, max_num_seqs=40).engine()
        engine.scheduler.step_time = StepTime(10.0, 10.0, 0.0)
        engine.scheduler.step_time.observe = lambda *_: None
        engine.add(request(prompt_of(99, 100), max_tokens=2))
        for seed in range(39):
            engine.add(request(prompt_of(seed, 3 + seed % 20), max_tokens=30, ignore_eos=True))

        def watch(selection):
            assert {s.sequence.id for s in selection.shares} == {s.id for s in engine.scheduler.running}

        drive(engine, watch)

    def test_nothing_is_drafted_beside_prompts_that_can_use_the_time(self):
        engine = Setup(drafter=RandomDrafter(1, chain=True), max_rows=128).engine()
        engine.scheduler.step_time = StepTime(0.05, 2e-3, 0.0)
        engine.scheduler.step_time.observe = lambda *_: None
        engine.add(request(prompt_of(1, 5), max_tokens=40, ignore_eos=True))
        engine.step()
        engine.add(request(prompt_of(2, 100), max_tokens=2))
        rooms = []
        drive(engine, lambda selection: rooms.append((len(selection.shares), selection.shares[0].max_nodes)))
        chunks = [nodes for shares, nodes in rooms if shares == 2][:-2]
        assert chunks
        assert set(chunks) == {0}
        assert max(nodes for shares, nodes in rooms if shares == 1) > 0

    def test_a_drafting_batch_leaves_rows_to_newcomers(self):
        """Where time is short nothing is drafted beside prompts, so here it is not."""
        setup = Setup(drafter=RandomDrafter(1, chain=True), max_rows=16, max_outputs=16, max_num_seqs=4)
        setup.prefill_slowdown = 1e3
        engine = setup.engine()
        for seed in range(8):
            engine.add(request(prompt_of(seed, 20), max_tokens=20, ignore_eos=True))

        def watch(selection):
            assert {s.sequence.id for s in selection.shares} == {s.id for s in engine.scheduler.running}

        drive(engine, watch)


class TestForks:
    def test_exactly_enough_blocks(self):
        """n = 3 whose prompts share one block and grow into one each: four blocks in all."""
        engine = Setup(num_blocks=4, prefix_caching=False).engine()
        wanted = request(prompt_of(1, 17), n=3, max_tokens=15, temperature=1.0, ignore_eos=True)
        sequences = run(engine, [wanted])[0]
        assert [facts(s) for s in sequences] == [plain_decode(wanted, choice) for choice in range(3)]

    @pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
    @pytest.mark.parametrize("num_blocks", [4, 5, 6, 9])
    def test_prompts_at_block_borders_in_small_pools(self, length, num_blocks):
        for prefix_caching in (True, False):
            engine = Setup(num_blocks=num_blocks, prefix_caching=prefix_caching).engine()
            wanted = request(prompt_of(2, length), n=4, max_tokens=25, temperature=1.0)
            sequences = run(engine, [wanted])[0]
            assert [facts(s) for s in sequences] == [plain_decode(wanted, choice) for choice in range(4)]

    @pytest.mark.parametrize("steps", [0, 1, 3, 6, 9])
    def test_the_first_choice_may_leave_at_any_time(self, steps):
        engine = Setup(max_chunk=5).engine()
        wanted = request(prompt_of(3, 20), n=3, temperature=1.0)
        first, *others = engine.add(wanted)
        for _ in range(steps):
            engine.step()
        engine.abort(first)
        drive(engine)
        assert [facts(s) for s in others] == [plain_decode(wanted, choice) for choice in (1, 2)]

    def test_more_choices_than_may_run(self):
        wanted = request(prompt_of(4, 20), n=9, temperature=1.0)
        sequences = run(Setup(max_num_seqs=2).engine(), [wanted])[0]
        assert [facts(s) for s in sequences] == [plain_decode(wanted, choice) for choice in range(9)]


class TestDeadlock:
    """Each of these once made, or could make, a scheduler of this kind wait for ever."""

    def test_partial_prefix_hit_in_a_pool_that_is_exactly_full(self):
        """The hit's block and its copy do not fit together: it must do without the part."""
        engine = Setup(num_blocks=3).engine()
        prompt = prompt_of(1, 40)
        for tail in (prompt, (*prompt[:25], *prompt_of(2, 15)), prompt, prompt_of(3, 40), (*prompt[:39], 5)):
            wanted = request(tail, max_tokens=8, ignore_eos=True)
            assert facts(run(engine, [wanted])[0][0]) == plain_decode(wanted)

    def test_preempted_with_a_partial_hit_in_a_full_pool(self):
        prompt = prompt_of(1, 24)
        requests = [request((*prompt, s), max_tokens=39, ignore_eos=True) for s in range(1, 5)]
        for num_blocks in (4, 5, 6, 7):
            engine = Setup(num_blocks=num_blocks).engine()
            sequences = [engine.add(wanted)[0] for wanted in requests]
            drive(engine)
            assert [facts(s) for s in sequences] == [plain_decode(wanted) for wanted in requests]
            assert engine.scheduler.num_preemptions > 0

    def test_a_preempted_first_choice_whose_siblings_wait(self):
        engine = Setup(num_blocks=6, max_chunk=3).engine()
        old = engine.add(request(prompt_of(1, 30), max_tokens=34, ignore_eos=True))[0]
        wanted = request(prompt_of(2, 30), n=3, max_tokens=34, temperature=1.0, ignore_eos=True)
        forks = engine.add(wanted)
        drive(engine)
        assert facts(old) == plain_decode(old.request)
        assert [facts(s) for s in forks] == [plain_decode(wanted, choice) for choice in range(3)]

    def test_smallest_possible_engine(self):
        setup = Setup(num_blocks=1, max_rows=1, max_outputs=1, max_num_seqs=1, max_model_len=16)
        wanted = [request(prompt_of(s, 9), max_tokens=7, n=2, ignore_eos=True) for s in range(3)]
        for choices, one in zip(run(setup.engine(), wanted), wanted, strict=True):
            assert [facts(s) for s in choices] == [plain_decode(one, c, max_model_len=16) for c in range(2)]

    def test_thrash_is_bounded(self):
        """Pressure costs recomputation, but most rows are still useful ones."""

        def rows(num_blocks):
            engine = Setup(num_blocks=num_blocks, prefix_caching=False).engine()
            for seed in range(6):
                engine.add(request(prompt_of(seed, 20), max_tokens=40, ignore_eos=True))
            drive(engine)
            return engine.stats.rows

        assert rows(8) < 3 * rows(64)

    def test_speculation_under_pressure_preempts_no_more_than_without(self):
        def preemptions(drafter):
            engine = Setup(drafter=drafter, num_blocks=8, prefix_caching=False).engine()
            for seed in range(6):
                engine.add(request(prompt_of(seed, 20), max_tokens=40, ignore_eos=True))
            drive(engine)
            return engine.scheduler.num_preemptions

        wrong = OracleDrafter(lambda sequence: [1] * 100)
        assert preemptions(wrong) <= preemptions(None) + 2


def test_priority_comes_before_arrival_and_does_not_interrupt():
    engine = Setup(max_num_seqs=1).engine()
    late = [request(prompt_of(seed, 20), f"r{seed}", max_tokens=4, ignore_eos=True) for seed in range(4)]
    ranked = [replace(wanted, priority=priority) for wanted, priority in zip(late, (0, 5, -1, 0), strict=True)]
    first = engine.add(ranked[0])[0]
    engine.step()
    added = [first, *(engine.add(wanted)[0] for wanted in ranked[1:])]
    while engine.has_work:
        engine.step()
        engine.check()
    assert sorted(range(4), key=lambda at: added[at].stats.finished_s) == [0, 2, 3, 1]
