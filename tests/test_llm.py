"""The offline API on a tiny model with native kernels."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from forerun import LLM, EngineOptions, FinishReason, RequestError, SamplingParams, SpeculationConfig
from forerun.cache.layout import KvStack
from forerun.errors import UsageError
from forerun.speculation import drafter
from forerun.speculation.drafters import NgramDrafter
from forerun.speculation.host import DraftHost

PROMPTS = ["the cat sat on the mat. the cat", "one two three one two", "a"]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(str(tiny_model), threads=1, max_model_len=256, options=EngineOptions(max_num_seqs=8))


@pytest.fixture(autouse=True)
def nothing_is_left_behind(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.engine.has_work
    assert llm.engine.scheduler.pool.num_owned == 0
    llm.engine.check()


def test_prompts_of_a_batch_keep_their_order_and_equal_single_runs(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.9, seed=3)
    together = llm.generate(PROMPTS, params)
    for prompt, generation in zip(PROMPTS, together, strict=True):
        assert llm.generate(prompt, params)[0].token_ids == generation.token_ids
        assert generation.prompt_token_ids == tuple(llm.tokenizer.encode_prompt(prompt))


def test_text_is_the_decoded_output(llm: LLM) -> None:
    generation = llm.generate(PROMPTS[0], SamplingParams(max_tokens=30, ignore_eos=True))[0]
    assert generation.text == llm.tokenizer.decode(generation.token_ids)
    assert len(generation.token_ids) == 30
    assert generation.finish_reason is FinishReason.LENGTH


def test_a_stream_joins_to_the_whole(llm: LLM) -> None:
    params = SamplingParams(max_tokens=25, temperature=0.7, seed=1)
    chunks = list(llm.stream(PROMPTS[0], params))
    whole = llm.generate(PROMPTS[0], params)[0]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert tuple(token for chunk in chunks for token in chunk.token_ids) == whole.token_ids
    assert [chunk.choice is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


def test_closing_a_stream_frees_its_blocks_at_once(llm: LLM) -> None:
    stream = llm.stream(PROMPTS[0], SamplingParams(max_tokens=100, ignore_eos=True))
    next(stream)
    assert llm.engine.scheduler.pool.num_owned > 0
    stream.close()  # type: ignore[attr-defined]
    assert llm.engine.scheduler.pool.num_owned == 0


def test_the_returned_seed_repeats_a_generation(llm: LLM) -> None:
    first = llm.generate(PROMPTS[0], SamplingParams(max_tokens=16, temperature=1.0))[0]
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=first.choices[0].seed)
    assert llm.generate(PROMPTS[0], params)[0].token_ids == first.token_ids


def test_choices_differ_and_do_not_depend_on_their_number(llm: LLM) -> None:
    params = {"max_tokens": 16, "temperature": 1.0, "seed": 5, "ignore_eos": True}
    three = llm.generate(PROMPTS[0], SamplingParams(n=3, **params))[0].choices
    assert [choice.index for choice in three] == [0, 1, 2]
    assert len({choice.token_ids for choice in three}) == 3
    assert llm.generate(PROMPTS[0], SamplingParams(**params))[0].token_ids == three[0].token_ids


def test_a_stop_string_ends_text_before_it(llm: LLM) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    whole = llm.generate(PROMPTS[0], params)[0]
    stop = whole.text[10:13]
    cut = llm.generate(PROMPTS[0], SamplingParams(max_tokens=40, ignore_eos=True, stop=(stop,)))[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


def test_a_second_request_finds_its_prompt_cached(llm: LLM) -> None:
    prompt = list(range(20, 20 + 50))
    llm.reconfigure()
    params = SamplingParams(max_tokens=4, ignore_eos=True)
    cold = llm.generate(prompt, params)[0]
    warm = llm.generate(prompt, params)[0]
    salted = llm.generate(prompt, params, salt="another tenant")[0]
    assert (cold.stats.cached_prompt_tokens, warm.stats.cached_prompt_tokens) == (0, 32)  # whole blocks
    assert salted.stats.cached_prompt_tokens == 0
    assert cold.token_ids == warm.token_ids == salted.token_ids


def test_statistics_add_up(llm: LLM) -> None:
    generation = llm.generate(PROMPTS[0], SamplingParams(max_tokens=60, ignore_eos=True))[0]
    stats = generation.stats
    assert stats.num_tokens == 60 == stats.steps + stats.accepted
    assert sum(stats.accepted_at) == stats.accepted <= stats.drafted
    assert stats.mean_accepted_len == 60 / stats.steps
    assert 0 < stats.time_to_first_token_s < stats.total_s


def test_logprobs_are_those_of_plain_decoding(llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, logprobs=2, ignore_eos=True)
    drafted = llm.generate(PROMPTS[1], params)[0]
    llm.reconfigure(speculation=None)  # off
    plain = llm.generate(PROMPTS[1], params)[0]
    llm.reconfigure()
    assert plain.stats.drafted == 0 < drafted.stats.drafted
    assert drafted.logprobs == plain.logprobs
    assert drafted.logprobs is not None
    assert all(len(entry.top) == 2 for entry in drafted.logprobs)


def test_a_chat_is_rendered_by_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    params = SamplingParams(max_tokens=8)
    answer = llm.chat(messages, params)
    assert answer.prompt_token_ids == tuple(llm.chat_prompt(messages))
    assert "".join(chunk.text for chunk in llm.stream(messages, params)) == answer.text


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], {}, "prompt"),
        ([10**6], {}, "prompt"),
        ([1] * 256, {}, "prompt"),
        ([1], {"logit_bias": {10**6: 1.0}}, "logit_bias"),
        ([1], {"stop_token_ids": (10**6,)}, "stop_token_ids"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_name(
    llm: LLM, prompt: list[int], params: dict[str, object], param: str
) -> None:
    with pytest.raises(RequestError) as refused:
        llm.generate([[1, 2], prompt], SamplingParams(**params))  # type: ignore[arg-type]
    assert refused.value.param == param


def test_impossible_settings_are_refused(llm: LLM, tiny_model: Path) -> None:
    for speculation in ("nonsense", SpeculationConfig("ngram", options={"nonsense": 1})):
        with pytest.raises(UsageError, match=r"unknown drafter 'nonsense'|does not take these options"):
            llm.reconfigure(speculation=speculation)
    for wrong in ({"backend": "nonsense"}, {"kv_format": "int3"}, {"isa": "nonsense"}, {"block_size": 17}):
        with pytest.raises(UsageError):
            LLM(str(tiny_model), options=EngineOptions(**wrong))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="threads must be"):
        LLM(str(tiny_model), threads=0)
    with pytest.raises(UsageError, match="n > 1"):
        llm.stream("a", SamplingParams(n=2))


def test_the_reference_backend_serves_the_same_api(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), max_model_len=64, options=EngineOptions(backend="reference", kv_format="fp32"))
    generation = llm.generate("the cat", SamplingParams(max_tokens=4, ignore_eos=True))[0]
    assert len(generation.token_ids) == 4
    assert llm.numerics_id.startswith("reference")


class Unloadable(NgramDrafter):
    """Wants KV layers of its own, and then fails to load."""

    name = "unloadable"

    def kv_stacks(self, host: DraftHost) -> tuple[KvStack, ...]:
        return (KvStack(self.name, 1, 1, 16, host.kv_format),)

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        raise UsageError("this drafter cannot be loaded")


def test_after_a_drafter_failed_to_load_nothing_is_remembered_wrongly(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its KV layers needed other memory, where no prefix of an earlier prompt is."""
    monkeypatch.setattr(drafter, "_FACTORIES", dict(drafter._FACTORIES))
    drafter.register("unloadable", Unloadable)
    llm = LLM(str(tiny_model), speculation="off", threads=1, max_model_len=256)
    prompt, params = list(range(1, 100)), SamplingParams(max_tokens=8, ignore_eos=True, logits_hash=True)
    before = llm.generate(prompt, params)[0].choices[0]
    with pytest.raises(UsageError, match="cannot be loaded"):
        llm.reconfigure(speculation="unloadable")
    after = llm.generate(prompt, params)[0].choices[0]
    assert after.logits_hashes == before.logits_hashes
    assert after.stats.cached_prompt_tokens == 0
