"""The other verifications through the public API, on a tiny model with native kernels."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forerun import LLM, EngineOptions, RequestError, SamplingParams, SpeculationConfig
from forerun.speculation import drafter as registry
from tests.sampling_drafter import SamplingDrafter

NAME = "drawn-for-tests"
PROMPTS = ["the cat sat on the mat. the cat", "one two three one two", "a"]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> Iterator[LLM]:
    model = LLM(str(tiny_model), threads=1, max_model_len=256, options=EngineOptions(max_num_seqs=8))
    vocab = model.model.spec.vocab_size
    flat = np.full(vocab, 1 / vocab)  # as the tiny model is: its weights are random
    registry.register(NAME, lambda: SamplingDrafter(lambda path: flat, (-1, 0, 0, 1, 1)))
    yield model
    del registry._FACTORIES[NAME]


def configured(llm: LLM, verification: str, drafter: str = NAME) -> LLM:
    config = SpeculationConfig(drafter, verification=verification, lossy=verification == "typical", budget="fixed")
    llm.reconfigure(speculation=config, options=EngineOptions(max_num_seqs=8))
    return llm


@pytest.mark.parametrize("verification", ["rejection", "block", "typical"])
def test_greedy_text_is_that_of_plain_decoding(llm: LLM, verification: str) -> None:
    params = SamplingParams(max_tokens=12, logits_hash=True, ignore_eos=True)
    llm.reconfigure(speculation="off")
    plain = llm.generate(PROMPTS, params)
    drafted = configured(llm, verification).generate(PROMPTS, params)
    for one, other in zip(plain, drafted, strict=True):
        assert one.token_ids == other.token_ids
        assert one.choices[0].logits_hashes == other.choices[0].logits_hashes
        assert other.stats.drafted > 0


@pytest.mark.parametrize("verification", ["rejection", "block"])
def test_sampled_text_comes_from_drafts_with_its_logprobs(llm: LLM, verification: str) -> None:
    params = SamplingParams(max_tokens=40, temperature=1.0, logprobs=2, logits_hash=True, ignore_eos=True)
    generations = configured(llm, verification).generate(PROMPTS, params)
    assert sum(generation.stats.accepted for generation in generations) > 10
    for generation in generations:
        assert len(generation.token_ids) == len(generation.logprobs or ()) == 40
        assert not generation.stats.lossy
    llm.reconfigure(speculation="off")
    one = generations[0]
    forced = [*one.prompt_token_ids, *one.token_ids[:20]]
    again = llm.generate(forced, SamplingParams(max_tokens=1, logprobs=2, logits_hash=True, ignore_eos=True))[0]
    assert again.choices[0].logits_hashes[0] == one.choices[0].logits_hashes[20]
    assert again.logprobs is not None
    assert one.logprobs is not None
    # The rules take logarithms in numpy, plain decoding in native code: the last bit may differ, the logits' may not.
    for (token, logprob), (other, value) in zip(again.logprobs[0].top, one.logprobs[20].top, strict=True):
        assert token == other
        assert logprob == pytest.approx(value, abs=1e-12)


def test_lossy_results_say_so(llm: LLM) -> None:
    params = SamplingParams(max_tokens=8, temperature=1.0)
    assert configured(llm, "typical").generate("a", params)[0].stats.lossy
    assert not configured(llm, "coupled", "ngram").generate("a", params)[0].stats.lossy


@pytest.mark.parametrize("verification", ["rejection", "block", "typical"])
def test_a_seed_is_refused(llm: LLM, verification: str) -> None:
    with pytest.raises(RequestError, match="cannot repeat a seed"):
        configured(llm, verification).generate("a", SamplingParams(max_tokens=4, temperature=1.0, seed=1))
    assert not llm.engine.has_work
