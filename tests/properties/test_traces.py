"""Random traces of the whole engine: arrivals, aborts, sizes, pools, chunk limits and drafters of any kind.

After every step: blocks are conserved (`engine.check`), the step has computed something, everybody who runs took part,
but for prompts now and then, and the oldest running sequence keeps its blocks. At the end: everybody finished, with the
text of plain decoding.
"""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.errors import RequestError
from forerun.sequence import FinishReason
from forerun.speculation.drafters.ngram import NgramDrafter
from tests.fakes import OracleDrafter, RandomDrafter, Setup, facts, plain_decode, prompt_of, request

MAX_MODEL_LEN = 64


@dataclass(frozen=True)
class Arrival:
    """A request; `family` prompts share their beginning. It is aborted `leaves` steps after it came, if at all."""

    at: int
    family: int
    length: int
    max_tokens: int
    n: int
    temperature: float
    leaves: int | None


arrivals = st.builds(
    Arrival,
    at=st.integers(0, 12),
    family=st.integers(0, 2),
    length=st.integers(1, 50),
    max_tokens=st.integers(1, 24),
    n=st.sampled_from((1, 1, 1, 2, 3)),
    temperature=st.sampled_from((0.0, 0.8)),
    leaves=st.one_of(st.none(), st.none(), st.integers(0, 10)),
)

DRAFTERS = {
    "none": lambda: None,
    "tree": lambda: RandomDrafter(1),
    "garbage": lambda: RandomDrafter(2, garbage=True),
    "ngram": lambda: NgramDrafter(1, 3),
    "oracle": lambda: OracleDrafter(lambda s: plain_decode(s.request, s.choice, max_model_len=MAX_MODEL_LEN)[0]),
}


@st.composite
def setups(draw):
    max_num_seqs = draw(st.integers(1, 6))
    rows = draw(st.integers(max_num_seqs, 40))
    return Setup(
        drafter=DRAFTERS[draw(st.sampled_from(sorted(DRAFTERS)))](),
        max_depth=draw(st.integers(1, 8)),
        num_blocks=draw(st.integers(1, 12)),
        block_size=draw(st.sampled_from((16, 32))),
        prefix_caching=draw(st.booleans()),
        max_rows=rows,
        max_outputs=draw(st.integers(max_num_seqs, rows)),
        max_num_seqs=max_num_seqs,
        max_model_len=MAX_MODEL_LEN,
        max_chunk=draw(st.sampled_from((0, 0, 1, 5, 16))),
    )


class Run:
    """One trace on one engine."""

    def __init__(self, setup):
        self.setup = setup
        self.engine = setup.engine()
        self.sequences = []
        self.leaving = []  # (step, sequence)
        self.waited = False  # prompts did, in the last step
        select = self.engine.scheduler.select

        def watched(room, only=None):
            running = list(self.engine.scheduler.running)
            selection = select(room, only)
            chosen = [share.sequence for share in selection.shares]
            assert len(set(chosen)) == len(chosen), "a sequence has two shares"
            waiting = set(self.engine.scheduler.running) - set(chosen)
            if waiting:  # now and then a step of those who decode is measured without the prompts beside them
                assert any(sequence.num_pending == 1 for sequence in chosen), "a step computes nothing"
                assert all(sequence.num_pending > 1 for sequence in waiting), "a decoding sequence got no row"
                assert not self.waited, "prompts were left out of two steps in a row"
            self.waited = bool(waiting)
            if running:
                assert running[0] in (*chosen, *waiting), "the oldest running sequence was preempted"
            return selection

        self.engine.scheduler.select = watched

    def arrive(self, index, arrival):
        prompt = (*prompt_of(arrival.family, 50)[: arrival.length - 1], 1 + index % 30)
        wanted = request(
            prompt, max_tokens=arrival.max_tokens, n=arrival.n, temperature=arrival.temperature, seed=index
        )
        longest = min(MAX_MODEL_LEN, len(prompt) + arrival.max_tokens)
        capacity = self.setup.num_blocks * self.setup.block_size
        if longest > capacity:
            with pytest.raises(RequestError, match=f"{longest} tokens.* holds {capacity}"):
                self.engine.add(wanted)
            return
        added = self.engine.add(wanted)
        self.sequences += added
        if arrival.leaves is not None:
            self.leaving.append((arrival.at + arrival.leaves, added[0]))

    def step(self, number):
        for when, sequence in self.leaving:
            if when == number:
                self.engine.abort(sequence)
                self.engine.check()
        if self.engine.has_work:
            before = self.engine.stats.rows
            self.engine.step()
            self.engine.check()
            assert self.engine.stats.rows > before, "a step without progress"
            assert self.engine.stats.failed_steps == 0, self.engine.stats.last_error


@settings(max_examples=70, deadline=None)
@given(setups(), st.lists(arrivals, min_size=1, max_size=7))
def test_any_trace_ends_with_the_right_text(setup, trace):
    run = Run(setup)
    for number in range(4000):
        for index, arrival in enumerate(trace):
            if arrival.at == number:
                run.arrive(index, arrival)
        run.step(number)
        if number > 25 and not run.engine.has_work:
            break
    assert not run.engine.has_work, "the engine does not finish"
    assert run.engine.scheduler.pool.num_owned == 0
    for sequence in run.sequences:
        right = plain_decode(sequence.request, sequence.choice, max_model_len=MAX_MODEL_LEN)
        if sequence.finish is FinishReason.ABORTED:
            assert sequence.output == right[0][: sequence.num_output]
        else:
            assert facts(sequence) == right
