"""draft-model behind the whole engine, with tiny models: a draft equal to the target is always right, any other one
changes nothing."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from forerun.bench.lossless import Setting, answer_one_plainly, compare
from forerun.bench.verify import make_cells
from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from forerun.speculation.drafters.draft_model import ModelDrafter
from forerun.speculation.drafting.catch_up_pace import FEWEST_ROWS, CatchUpPace
from forerun.speculation.vocabularies.trimmed_vocabulary import TrimmedVocabulary
from tests.speculation.masked import masked_answers
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

BACKENDS = {
    "cpu": EngineOptions(prefill_slowdown=1e9, block_size=16),
    "portable": EngineOptions(prefill_slowdown=1e9, block_size=16, isa="portable"),
    "reference": EngineOptions(prefill_slowdown=1e9, block_size=16, backend="reference"),
}
MODELS = {  # a target, and drafts: itself, another one of another shape
    "target": (tiny_spec("llama", tied=False, layers=2), 0),
    "other": (tiny_spec("qwen2", tied=True, heads=3, kv_heads=1, head_dim=32, layers=1), 5),
    "near": (tiny_spec("llama", tied=False, layers=1), 0),  # the target's first layer: often right
}


@pytest.fixture(scope="session")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("draft-model")

    @cache
    def path(name: str) -> str:
        _, vocabulary = byte_level("smollm")
        spec, seed = MODELS[name]
        file = folder / f"{name}.gguf"
        write_tiny_gguf(
            file, replace(spec, vocab_size=len(vocabulary["tokenizer.ggml.tokens"])), seed=seed, metadata=vocabulary
        )
        return str(file)

    return path


@pytest.fixture(scope="session")
def target(path_of) -> Callable[[str], LLM]:
    return cache(lambda backend: LLM(path_of("target"), speculation="off", threads=1, options=BACKENDS[backend]))


def config(path: str, depth: int = 4, rows: int = 64, verification: str = "coupled", **options) -> SpeculationConfig:
    named = {f"draft-model.{key}": value for key, value in {"model": path, "weights": "file", **options}.items()}
    # Nodes are counted here, so a budget that learns what pays must not decide how many there are.
    return SpeculationConfig("draft-model", depth, rows, named, verification, budget="fixed")


def answers(llm: LLM, prompts: list[list[int]], params: SamplingParams) -> list[tuple]:
    return [
        (choice.token_ids, choice.logits_hashes, choice.finish_reason)
        for generation in llm.generate(prompts, params)
        for choice in generation.choices
    ]


def prompts(count: int, length: int = 40) -> list[list[int]]:
    return [[(7 * i * i + 13 * j + 3 * i) % 290 + 1 for i in range(length + j)] for j in range(count)]


SAMPLINGS = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "seed": 4},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "logit_bias": {5: 2.0}, "min_tokens": 8},
    "sampled-penalties": {"temperature": 0.7, "frequency_penalty": 0.5, "logit_bias": {9: 3.0}, "seed": 5},
}
SHAPES = {"chain": {"width": 1}, "tree": {"width": 3}}


class TestADraftThatEqualsTheTarget:
    """Every node of a chain is accepted, whatever happens to its KV: each miss would be a token computed wrongly."""

    @pytest.mark.parametrize("sampling", SAMPLINGS)
    @pytest.mark.parametrize("backend", BACKENDS)
    def test_is_always_right(self, target, path_of, backend: str, sampling: str) -> None:
        llm = target(backend)
        llm.reconfigure(speculation=config(path_of("target")), options=BACKENDS[backend])
        params = SamplingParams(max_tokens=24, ignore_eos=True, **SAMPLINGS[sampling])
        llm.generate(prompts(3), params)
        stats = llm.engine.speculator.stats
        assert stats.drafter_errors == 0
        assert stats.accepted == stats.drafted > 30

    @pytest.mark.parametrize("sampling", ["greedy", "seeded"])
    @pytest.mark.parametrize("width", [2, 4])
    def test_leads_every_tree(self, target, path_of, width: int, sampling: str) -> None:
        """The right path has the highest score at every node, and its nodes are computed first."""
        llm = target("cpu")
        llm.reconfigure(speculation=config(path_of("target"), depth=6, width=width), options=BACKENDS["cpu"])
        llm.generate(prompts(3), SamplingParams(max_tokens=30, ignore_eos=True, **SAMPLINGS[sampling]))
        stats = llm.engine.speculator.stats
        first = stats.by_drafter["draft-model"]
        assert stats.drafter_errors == 0
        assert first.accepted_at[0] == stats.drafts > 5  # the first token of every tree is right
        assert stats.accepted > 1.5 * stats.drafts  # a tree has no more nodes than a chain would

    @pytest.mark.parametrize("chunk", [0, 1, 7])
    def test_in_batches_of_changing_size(self, target, path_of, chunk: int) -> None:
        llm = target("cpu")
        options = replace(BACKENDS["cpu"], max_chunk=chunk, max_num_seqs=8)
        llm.reconfigure(speculation=config(path_of("target")), options=options)
        params = [SamplingParams(max_tokens=n, ignore_eos=True) for n in (5, 30, 12, 21, 3, 17, 26, 9, 30)]
        for prompt, wish in zip(prompts(9), params, strict=True):
            llm.engine.add(llm._request(0, prompt, wish, ""))
            llm.engine.step()
        while llm.engine.has_work:
            llm.engine.step()
            llm.engine.check()
        stats = llm.engine.speculator.stats
        assert stats.accepted == stats.drafted > 60

    def test_after_preemptions(self, target, path_of) -> None:
        llm = target("cpu")
        # Prompts of 40 to 44 tokens and 40 more: 6 blocks each
        llm.reconfigure(speculation=config(path_of("target")), options=BACKENDS["cpu"], kv_blocks=10)
        llm.generate(prompts(4), SamplingParams(max_tokens=40, ignore_eos=True))
        assert llm.engine.scheduler.num_preemptions > 0
        stats = llm.engine.speculator.stats
        assert stats.accepted == stats.drafted > 60

    @pytest.mark.parametrize("cache_on", [True, False])
    def test_for_several_choices(self, target, path_of, cache_on: bool) -> None:
        llm = target("cpu")
        options = replace(BACKENDS["cpu"], prefix_caching=cache_on)
        llm.reconfigure(speculation=config(path_of("target")), options=options)
        llm.generate(prompts(2), SamplingParams(max_tokens=24, ignore_eos=True, n=3, temperature=0.9, seed=8))
        stats = llm.engine.speculator.stats
        assert stats.accepted == stats.drafted > 60

    def test_beside_another_drafter(self, target, path_of) -> None:
        """Merged trees move accepted rows; the draft's KV follows or is computed again."""
        llm = target("cpu")
        wish = config(path_of("target"))
        llm.reconfigure(speculation=replace(wish, drafter="ngram+draft-model"), options=BACKENDS["cpu"])
        repeats = [prompt[:9] * 4 for prompt in prompts(3)]
        llm.generate(repeats, SamplingParams(max_tokens=40, ignore_eos=True))
        stats = llm.engine.speculator.stats.by_drafter
        assert stats["ngram"].drafted > stats["ngram"].accepted
        assert stats["draft-model"].accepted_at[0] >= stats["draft-model"].drafted_at[0] - 2
        assert sum(llm.engine.speculator.stats.by_drafter[name].errors for name in stats) == 0

    def test_computes_nothing_twice_on_a_prefix_hit(self, target, path_of) -> None:
        llm = target("cpu")
        llm.reconfigure(speculation=config(path_of("target")), options=BACKENDS["cpu"])
        params = SamplingParams(max_tokens=6, ignore_eos=True)
        (drafter,) = llm.engine.speculator.drafters
        rows = _count_rows(drafter)
        llm.generate(prompts(1, 100), params)
        first = sum(rows)
        rows.clear()
        llm.generate(prompts(1, 100), params)
        stats = llm.engine.speculator.stats
        assert first > 100
        assert sum(rows) < 100 % 16 + 16 + 6
        assert stats.accepted == stats.drafted


def _count_rows(drafter) -> list[int]:
    """Rows of each of a drafter's passes from now on."""
    program, rows = drafter._drafting._program, []
    forward = program.forward
    program.forward = lambda batch: (rows.append(batch.num_rows), forward(batch))[1]
    return rows


@pytest.mark.parametrize("draft", ["other", "near"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_draft_changes_an_answer(target, path_of, backend: str, shape: str, draft: str) -> None:
    llm = target(backend)
    cells = make_cells(llm, *((5, 10) if backend == "reference" else (9, 20)))
    plain = {cell.name: answer_one_plainly(llm, cell, BACKENDS[backend]) for cell in cells}
    wish = config(path_of(draft), depth=6, **SHAPES[shape])
    settings = [
        Setting("draft-model", 1),
        Setting("draft-model", 3, chunk=7, cache=True),
        Setting("draft-model", 8, chunk=3, cache=True, tight=True),
        Setting("draft-model", 8),
    ]
    drafted = accepted = 0
    for setting in settings:
        row = compare(llm, setting, cells, plain, BACKENDS[backend], wish)
        assert [str(difference) for difference in row.differences] == []
        assert llm.engine.speculator.stats.drafter_errors == 0
        drafted, accepted = drafted + row.drafted, accepted + row.accepted
    assert drafted > 50
    assert accepted > 0 or draft == "other"


@pytest.mark.parametrize("verification", ["coupled", "rejection"])
@pytest.mark.parametrize("sampling", ["greedy", "sampled", "penalties"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draft_that_equals_the_target_is_right_under_a_grammar(
    target, path_of, backend: str, sampling: str, verification: str
) -> None:
    options = {"sampled": {"temperature": 0.8, "top_p": 0.9}, "penalties": SAMPLINGS["penalties"]}.get(sampling, {})
    llm = target(backend)
    llm.reconfigure(speculation=config(path_of("target"), verification=verification), options=BACKENDS[backend])
    params = SamplingParams(max_tokens=20, ignore_eos=True, **options)
    masked_answers(llm, prompts(2), params)
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == stats.refused_nodes == 0
    assert stats.accepted == stats.drafted > 16


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("draft", ["other", "near"])
def test_no_draft_changes_an_answer_under_a_grammar(target, path_of, draft: str, shape: str) -> None:
    llm = target("cpu")
    params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.7, seed=2, logits_hash=True)
    llm.reconfigure(speculation="off", options=BACKENDS["cpu"])
    plain = masked_answers(llm, prompts(3), params)
    llm.reconfigure(speculation=config(path_of(draft), depth=6, **SHAPES[shape]), options=BACKENDS["cpu"])
    assert masked_answers(llm, prompts(3), params) == plain
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == stats.refused_nodes == 0
    assert stats.drafted > 20


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("formats", [("bf16", "fp32"), ("fp32", "bf16")], ids="-".join)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_draft_in_another_kv_format_changes_an_answer(path_of, backend: str, formats, shape: str) -> None:
    options = replace(BACKENDS[backend], kv_format=formats[0])
    llm = LLM(path_of("target"), speculation="off", threads=1, options=options)
    cells = make_cells(llm, *((4, 10) if backend == "reference" else (6, 16)))
    plain = {cell.name: answer_one_plainly(llm, cell, options) for cell in cells}
    wish = config(path_of("target"), depth=6, kv_format=formats[1], **SHAPES[shape])
    settings = [Setting("draft-model", 1), Setting("draft-model", 8, chunk=3, cache=True, tight=True)]
    drafted = accepted = 0
    for setting in settings:
        row = compare(llm, setting, cells, plain, options, wish)
        assert [str(difference) for difference in row.differences] == []
        assert llm.engine.speculator.stats.drafter_errors == 0
        drafted, accepted = drafted + row.drafted, accepted + row.accepted
    assert llm.kv_layout.codecs == formats
    # The target's weights over KV of another precision: nearly always right, so nothing is stored wrongly.
    assert accepted > (0.9 if shape == "chain" else 0.2) * drafted > 10


def test_a_kv_format_can_be_that_of_the_target(path_of) -> None:
    for codec in ("bf16", "fp32"):
        options = EngineOptions(prefill_slowdown=1e9, block_size=16, kv_format=codec)
        llm = LLM(path_of("target"), speculation=config(path_of("near")), threads=1, options=options)
        assert llm.kv_layout.codecs == (codec, codec)


def test_choices_are_those_of_plain_decoding(target, path_of) -> None:
    llm = target("cpu")
    params = SamplingParams(max_tokens=20, n=3, temperature=0.9, seed=2, logits_hash=True)
    llm.reconfigure(speculation="off", options=BACKENDS["cpu"])
    plain = answers(llm, prompts(2), params)
    llm.reconfigure(speculation=config(path_of("near"), width=3), options=BACKENDS["cpu"])
    assert answers(llm, prompts(2), params) == plain
    assert llm.engine.speculator.stats.drafted > 0


def test_a_long_prompt_is_caught_up_over_several_steps(target, path_of) -> None:
    llm = target("cpu")
    llm.reconfigure(speculation=config(path_of("target")), options=BACKENDS["cpu"])
    rows = _count_rows(llm.engine.speculator.drafters[0])
    llm.generate(prompts(1, 300), SamplingParams(max_tokens=20, ignore_eos=True))
    stats = llm.engine.speculator.stats
    assert rows[:2] == [128, 128]
    assert max(rows) == 128
    assert stats.accepted == stats.drafted > 8


def test_a_long_prompt_is_caught_up_more_slowly_beside_one_that_decodes(target, path_of, monkeypatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(CatchUpPace, "rows", lambda _, num_decoding, limit: seen.append(num_decoding) or 20)
    llm = target("cpu")
    llm.reconfigure(speculation=config(path_of("target")), options=BACKENDS["cpu"])
    rows = _count_rows(llm.engine.speculator.drafters[0])
    params = SamplingParams(max_tokens=60, ignore_eos=True)
    llm.generate([prompts(1, 5)[0], prompts(1, 300)[0]], params)
    stats = llm.engine.speculator.stats
    assert 2 in seen
    assert 20 <= max(rows) <= 20 + FEWEST_ROWS
    assert stats.accepted == stats.drafted > 8


# ---- trimmed vocabularies ----


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
def test_trimmed_a_context_that_holds_every_other_token_makes_it_whole(
    target, path_of, backend, sampling, monkeypatch
) -> None:
    """Then a trimmed model that equals the target is always right: each row was packed again, in the right place."""
    monkeypatch.setattr("forerun.speculation.drafters.draft_model.EXTRA", 0)  # so that a tiny vocabulary is trimmed
    llm = target(backend)
    size = llm.model.spec.vocab_size
    prompt = np.random.default_rng(1).permutation(np.arange(320, size)).tolist()
    llm.reconfigure(speculation=config(path_of("target"), vocabulary=320), options=BACKENDS[backend])
    vocabulary = llm.engine.speculator.drafters[0]._drafting._vocabulary
    assert isinstance(vocabulary, TrimmedVocabulary)
    for text in (prompt, prompt[: len(prompt) // 2] + prompt[:-1]):
        llm.generate([text[-480:]], SamplingParams(max_tokens=24, ignore_eos=True, **sampling))
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.accepted == stats.drafted > 20
    assert np.count_nonzero(vocabulary.columns >= 0) >= size - 1


@pytest.mark.parametrize("shape", [{"width": 1}, {"width": 3}])
def test_no_trimmed_draft_changes_an_answer(target, path_of, shape) -> None:
    llm = target("cpu")
    params = SamplingParams(max_tokens=40, temperature=0.7, seed=2, logits_hash=True)
    llm.reconfigure(speculation="off", options=BACKENDS["cpu"])
    plain = answers(llm, prompts(3), params)
    llm.reconfigure(speculation=config(path_of("target"), 6, vocabulary=96, **shape), options=BACKENDS["cpu"])
    assert isinstance(llm.engine.speculator.drafters[0]._drafting._vocabulary, TrimmedVocabulary)
    assert answers(llm, prompts(3), params) == plain
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.drafted > stats.accepted > 5


# ---- drafts for verification by rejection ----


def test_drawn_drafts_come_with_their_distributions(target, path_of) -> None:
    llm = target("cpu")
    llm.reconfigure(speculation=config(path_of("near"), width=3), options=BACKENDS["cpu"])
    drafter = llm.engine.speculator.drafters[0]
    drafting = drafter._drafting
    drafting._host = replace(drafting._host, verification="rejection")
    trees, propose = [], drafter.propose
    drafter.propose = lambda asks: (trees.extend(found := propose(asks)), found)[1]
    llm.generate(prompts(2), SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8, top_p=0.9, seed=1))
    drawn = [tree for tree in trees if tree is not None]
    assert len(drawn) > 5
    for tree in drawn:
        assert tree.is_chain
        assert sorted(tree.draft_probs) == list(range(tree.num_nodes))
        for row, probs in tree.draft_probs.items():
            assert probs.shape == (llm.model.spec.vocab_size,)
            assert probs.sum() == pytest.approx(1.0)
            assert probs[tree.tokens[row + 1]] > 0.0
            assert tree.score[row + 1] == probs.max()
    del trees[:]
    llm.generate(prompts(2), SamplingParams(max_tokens=20, ignore_eos=True))
    chosen = [tree for tree in trees if tree is not None]
    assert any(not tree.is_chain for tree in chosen)
    assert not any(tree.draft_probs for tree in chosen)  # a greedy request's drafts are chosen


def test_defaults_are_what_pays(path_of) -> None:
    drafter = ModelDrafter(path_of("near"))
    assert (drafter._weights, drafter._kept, drafter._match) == ("int4", 32768, "exact")


def test_quantised_drafts_change_no_answer(target, path_of) -> None:
    llm = target("cpu")
    params = SamplingParams(max_tokens=30, temperature=0.6, seed=2, logits_hash=True)
    llm.reconfigure(speculation="off", options=BACKENDS["cpu"])
    plain = answers(llm, prompts(3), params)
    for weights in ("int8", "int4", "bf16"):
        llm.reconfigure(speculation=config(path_of("target"), weights=weights, width=2), options=BACKENDS["cpu"])
        assert answers(llm, prompts(3), params) == plain
        assert llm.engine.speculator.stats.accepted > 10


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize("sampling", ["seeded", "filtered", "greedy"])
def test_a_draft_that_equals_the_target_is_never_rejected(target, path_of, verification, sampling) -> None:
    """Then p equals q in every row, and every token drawn from q is accepted."""
    llm = target("cpu")
    llm.reconfigure(speculation=config(path_of("target"), verification=verification), options=BACKENDS["cpu"])
    options = {key: value for key, value in SAMPLINGS[sampling].items() if key != "seed"}
    llm.generate(prompts(3), SamplingParams(max_tokens=24, ignore_eos=True, **options))
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.accepted == stats.drafted > 30
