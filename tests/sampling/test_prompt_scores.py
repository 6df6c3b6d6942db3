"""Prompt log-probabilities: equal to the log-softmax of every row, whatever the chunks, cache, batch or preemptions."""

import numpy as np
import pytest

from forerun.errors import RequestError
from forerun.llm import LLM
from forerun.options import EngineOptions
from forerun.sampling.walk import log_softmax_at
from forerun.sequence import SamplingParams, TokenLogprob
from tests.fakes import FakeBackend, RandomDrafter, Setup, facts, path_logits, prompt_of, request, run

PROMPT = prompt_of(3, 90)


def expected(prompt, num_top):
    """From the whole path each time."""
    return [
        TokenLogprob(prompt[at], *log_softmax_at(path_logits(tuple(prompt[:at])), prompt[at], num_top))
        for at in range(1, len(prompt))
    ]


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"max_chunk": 7},
        {"max_rows": 24, "max_outputs": 20, "max_num_seqs": 8},
        {"drafter": RandomDrafter(1), "max_outputs": 40},
        {"num_blocks": 15, "drafter": RandomDrafter(2)},  # preempts
    ],
)
@pytest.mark.parametrize("num_top", [0, 3])
def test_they_are_those_of_every_row(setup, num_top):
    made = Setup(**setup)

    engine = made.engine()
    run(engine, [request(PROMPT)])  # its prefix is cached now
    others = [request(prompt_of(seed, 30), f"o{seed}") for seed in range(3)]
    scored = request(PROMPT, "scored", prompt_logprobs=num_top, logprobs=2)
    plain = request(PROMPT, "plain", logprobs=2)
    (found,), *_ = run(engine, [scored, *others])
    (without,) = run(engine, [plain])[0]
    assert found.prompt_logprobs == expected(PROMPT, num_top)
    assert facts(found) == facts(without)
    assert found.stats.cached_prompt_tokens == 0
    assert without.prompt_logprobs == []
    assert all(len(batch.output_rows) <= made.max_outputs for batch in made.backend.batches)


def test_a_preempted_prompt_is_scored_once():
    setup = Setup(num_blocks=9, max_rows=16, max_chunk=16)
    engine = setup.engine()
    requests = [request(prompt_of(seed, 60), f"r{seed}", prompt_logprobs=1, max_tokens=40) for seed in range(3)]
    for wanted, (sequence,) in zip(requests, run(engine, requests), strict=True):
        assert sequence.prompt_logprobs == expected(wanted.prompt, 1)
    assert engine.scheduler.num_preemptions


def test_of_several_choices_the_first_is_scored():
    first, *others = run(Setup().engine(), [request(PROMPT, n=3, prompt_logprobs=1)])[0]
    assert first.prompt_logprobs == expected(PROMPT, 1)
    assert all(sequence.prompt_logprobs == [] for sequence in others)


def test_a_failed_step_scores_nothing_twice():
    failures = iter([True])

    def corrupt(batch, rows):
        if batch.scores and next(failures, False):
            raise RuntimeError("once")

    setup = Setup(backend=FakeBackend(corrupt=corrupt), max_chunk=20)
    (sequence,) = run(setup.engine(), [request(PROMPT, prompt_logprobs=0)])[0]
    assert sequence.prompt_logprobs == expected(PROMPT, 0)


def test_a_token_that_the_model_rules_out_has_no_chance():
    def corrupt(batch, rows):
        for score in batch.scores:
            if score.position == 5:
                rows[score.first_output][PROMPT[5]] = -np.inf

    (sequence,) = run(Setup(backend=FakeBackend(corrupt=corrupt)).engine(), [request(PROMPT, prompt_logprobs=0)])[0]
    assert sequence.prompt_logprobs[4] == TokenLogprob(PROMPT[5], -np.inf)


def test_the_count_is_checked():
    with pytest.raises(RequestError, match="prompt_logprobs must be between 0 and 1000"):
        SamplingParams(prompt_logprobs=-1)


class TestRealModel:
    TEXT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4

    def scores(self, model, **options):
        llm = LLM(str(model), speculation="off", threads=2, kv_cache_bytes=8 << 20, options=EngineOptions(**options))
        first = llm.generate(self.TEXT, SamplingParams(max_tokens=2, prompt_logprobs=2))[0]
        again = llm.generate(self.TEXT, SamplingParams(max_tokens=2, prompt_logprobs=2))[0]
        assert again.choices[0].prompt_logprobs == first.choices[0].prompt_logprobs
        return first

    def test_chunks_change_no_bit_and_the_oracle_agrees(self, tiny_model):
        found = self.scores(tiny_model)
        scores = found.choices[0].prompt_logprobs
        assert len(scores) == len(found.prompt_token_ids) - 1 > 96  # more than the outputs of one step
        assert scores == self.scores(tiny_model, max_chunk=13).choices[0].prompt_logprobs
        oracle = self.scores(tiny_model, backend="reference").choices[0].prompt_logprobs
        assert [entry.token for entry in oracle] == [entry.token for entry in scores]
        difference = [abs(a.logprob - b.logprob) for a, b in zip(oracle, scores, strict=True)]
        assert max(difference) < 0.05  # bfloat16 inputs against float32

    def test_they_are_the_bits_of_generated_tokens(self, tiny_model):
        """Scoring a prompt and its greedy continuation tells of the continuation what generating it told."""
        llm = LLM(str(tiny_model), speculation="off", threads=2, kv_cache_bytes=8 << 20)
        said = llm.generate("Once upon", SamplingParams(max_tokens=20, logprobs=3, ignore_eos=True))[0]
        whole = [*said.prompt_token_ids, *said.token_ids]
        scored = llm.generate([whole], SamplingParams(max_tokens=1, prompt_logprobs=3))[0].choices[0].prompt_logprobs
        assert scored[-20:] == said.logprobs
