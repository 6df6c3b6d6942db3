"""Priorities: lower goes first, equal ones in order of arrival, a level is worth so many seconds, nobody starves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.scheduler.queue import SequenceQueue
from forerun.sequence import Request, SamplingParams, Sequence
from tests.fakes import Setup, facts, plain_decode, prompt_of, request

PRIORITY_S = 30.0


def make(id, priority=0, arrived_s=0.0):
    wanted = Request(str(id), (1, 2), SamplingParams(seed=0), priority=priority)
    sequence = Sequence(id, wanted, 0, 0, (0, 0), [1, 2], 2)
    sequence.stats.arrived_s = arrived_s
    return sequence


def with_priority(wanted, priority):
    return Request(wanted.id, wanted.prompt, wanted.params, wanted.eos_ids, priority=priority)


def test_lower_goes_first_and_equals_in_order_of_arrival():
    queue = SequenceQueue(PRIORITY_S)
    for sequence in (make(0, 1), make(1, 0), make(2, -1), make(3, 0), make(4, 1)):
        queue.add(sequence)
    assert [sequence.id for sequence in queue] == [2, 1, 3, 0, 4]
    queue.check()


def test_who_has_waited_long_enough_stands_before_a_better_priority():
    queue = SequenceQueue(PRIORITY_S)
    for sequence in (make(0, 1, 100.0), make(1, 0, 129.0), make(2, 0, 131.0)):
        queue.add(sequence)
    assert [sequence.id for sequence in queue] == [1, 0, 2]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.floats(0, 200)), max_size=30), st.data())
def test_any_order_of_coming_and_going(arrivals, data):
    queue, model = SequenceQueue(PRIORITY_S), []
    for id, (priority, arrived_s) in enumerate(arrivals):
        model.append(make(id, priority, arrived_s))
        queue.add(model[-1])
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(model))
            model.remove(gone)
            assert gone in queue
            assert queue.discard(gone)
            assert not queue.discard(gone)
            assert gone not in queue
    want = sorted(model, key=lambda s: (s.stats.arrived_s + PRIORITY_S * s.request.priority, s.id))
    assert list(queue) == want
    assert len(queue) == len(want)
    # Nobody starves: behind whoever waits stand all who arrive later than the difference of priorities is worth.
    for place, sequence in enumerate(want):
        for later in want[:place]:
            worth = PRIORITY_S * (sequence.request.priority - later.request.priority)
            assert later.stats.arrived_s <= sequence.stats.arrived_s + worth + 1e-6


def test_a_better_priority_is_served_first_and_the_text_is_the_same():
    engine = Setup(max_num_seqs=1).engine()
    wanted = [with_priority(request(prompt_of(s, 10), f"r{s}", max_tokens=6), p) for s, p in enumerate((0, 2, 1, 0))]
    sequences = [engine.add(one)[0] for one in wanted]
    ended = []
    while engine.has_work:
        ended += [s.id for s in engine.step() if s.is_finished]
        engine.check()
    assert ended == [0, 3, 2, 1]
    assert [facts(s) for s in sequences] == [plain_decode(one) for one in wanted]


def test_preemption_takes_the_lowest_priority_then_the_youngest():
    engine = Setup(num_blocks=7, prefix_caching=False).engine()
    wanted = [
        with_priority(request(prompt_of(s, 30), f"r{s}", max_tokens=34, ignore_eos=True), p)
        for s, p in enumerate((5, 0, 0))
    ]
    sequences = [engine.add(one)[0] for one in wanted]
    while engine.has_work:
        engine.step()
        engine.check()
    assert sequences[0].stats.preemptions > 0 or sequences[0].stats.first_token_s > sequences[1].stats.finished_s
    assert sequences[1].stats.preemptions == 0
    assert [facts(s) for s in sequences] == [plain_decode(one) for one in wanted]


@pytest.mark.parametrize("priority", [10**6, -(10**6), 1.5, "first"])
def test_a_priority_out_of_range_is_refused(priority):
    with pytest.raises(RequestError) as caught:
        Request("r", (1,), SamplingParams(), priority=priority)
    assert caught.value.param == "priority"


class TestLongQueues:
    def test_a_waiting_request_is_matched_again_only_when_the_index_changed(self):
        engine = Setup(num_blocks=8, max_num_seqs=4).engine()
        matched = []
        match = engine.scheduler.index.match
        engine.scheduler.index.match = lambda *arguments: matched.append(1) or match(*arguments)
        engine.add(request(prompt_of(1, 60), max_tokens=30, ignore_eos=True))
        engine.step()
        engine.add(request(prompt_of(2, 100), max_tokens=20, ignore_eos=True))  # does not fit beside it
        engine.step()
        before, version = len(matched), engine.scheduler.index.version
        steps = 0
        while engine.scheduler.index.version == version:
            engine.step()
            steps += 1
        assert steps >= 3
        assert len(matched) <= before + 1

    def test_digests_of_a_prompt_are_computed_once(self, monkeypatch):
        from forerun.cache.prefix_index import PrefixIndex

        engine = Setup(num_blocks=60).engine()
        prompt = prompt_of(1, 100)
        for _ in range(2):
            engine.add(request(prompt, max_tokens=2))
            while engine.has_work:
                engine.step()
        sequence = engine.add(request(prompt, max_tokens=2))[0]
        digests = []
        engine.scheduler.index.match(prompt, "", 99, digests)
        hashed = []
        extend = PrefixIndex._extend
        monkeypatch.setattr(PrefixIndex, "_extend", staticmethod(lambda *a: hashed.append(1) or extend(*a)))
        assert engine.scheduler.index.match(prompt, "", 99, digests).num_tokens == 96
        assert not hashed
        engine.abort(sequence)

    def test_ten_thousand_waiting_cost_a_step_nothing(self, monkeypatch):
        """Work that grows with the queue would look at each of them: nobody's claim but the first ones' is asked."""
        monkeypatch.delenv("FORERUN_CHECK", raising=False)  # a step that checks itself asks everybody
        engine = Setup(num_blocks=64, max_num_seqs=2).engine()
        for index in range(10_000):
            engine.add(request((1 + index % 30, 5, 6), f"r{index}", max_tokens=8, ignore_eos=True))
        engine.step()
        asked = []
        claim = engine.scheduler.waiting.claim
        engine.scheduler.waiting.claim = lambda sequence: asked.append(1) or claim(sequence)
        for _ in range(30):
            engine.step()
        assert len(asked) < 30 * 2 * 40  # two binary searches at most, for each of two
        victims = list(engine.scheduler.waiting)[::997]
        asked.clear()
        for victim in victims:
            engine.abort(victim)
        assert len(asked) < 40 * len(victims)
        engine.check()
        for sequence in list(engine.scheduler.waiting):
            engine.abort(sequence)
        while engine.has_work:
            engine.step()
        engine.check()
