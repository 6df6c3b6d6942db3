"""Under a grammar every drafter says what plain decoding says, and all of it is of the grammar.

Real grammars on a tiny model with native kernels; with the models of FORERUN_TEST_MODELS in the slow set.
"""

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from forerun import LLM, EngineOptions, FinishReason, SamplingParams, SpeculationConfig
from forerun.bench.drafters import registered_drafters
from forerun.generation import make_request, under_grammar
from forerun.grammar.source import Grammar
from forerun.results import Generation
from forerun.sequence import SpeculationParams
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["engineer", "english teacher", "doctor"]},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
        "address": {"$ref": "#/$defs/address"},
    },
    "required": ["name", "kind", "tags", "address"],
    "additionalProperties": False,
    "$defs": {
        "address": {
            "type": "object",
            "properties": {"number": {"type": "integer", "minimum": 1, "maximum": 999}, "is_home": {"type": "boolean"}},
            "required": ["number", "is_home"],
            "additionalProperties": False,
        }
    },
    "x-guidance": {"whitespace_pattern": " ?"},
}
PATTERN = r"(the (cat|cattle|dog) sat on the (mat|matter); ){3,5}end\."
CHOICES = ["a long answer about nothing", "a long story", "nothing"]
GRAMMARS = {
    "schema": Grammar.json_schema(SCHEMA),
    "regex": Grammar.regex(PATTERN),
    "lark": Grammar.lark('start: "[" sum "]"\nsum: "(" sum "+" sum ")" | /[0-9]{1,2}/ | "sum of all"'),
    "choice": Grammar.choice(CHOICES),
}
METHODS: dict[str, dict[str, Any]] = {"greedy": {}, "seeded": {"temperature": 0.9, "seed": 11}}
PROMPTS = ["the cat sat on the mat; the cat", "one two three one two", '{"name": "a", "kind": "doctor"}']
DRAFTERS = [*registered_drafters(free=True), "auto", "suffix+recycle+ngram"]
MAX_TOKENS = 120

Facts = list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    options = EngineOptions(prefill_slowdown=1e9, max_num_seqs=8, max_outputs=200)
    return LLM(str(tiny_model), speculation="off", threads=1, max_model_len=512, options=options)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model with the same vocabulary, to draft with."""
    _, vocabulary = byte_level("smollm")
    path = tmp_path_factory.mktemp("drafts") / "other.gguf"
    write_tiny_gguf(
        path, tiny_spec(layers=1, vocab=len(vocabulary["tokenizer.ggml.tokens"])), seed=7, metadata=vocabulary
    )
    return path


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(llm: LLM) -> Iterator[None]:
    yield
    assert not llm.engine.has_work
    assert llm.engine.scheduler.pool.num_owned == 0
    llm.engine.check()


def params_of(method: str, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=MAX_TOKENS, logits_hash=True, **METHODS[method], **more)


def fixed(drafter: str, depth: int = 9) -> SpeculationConfig:
    """Everything that is proposed is verified."""
    return SpeculationConfig(drafter, budget="fixed", max_depth=depth, max_draft_rows=100)


def facts(generations: list[Generation]) -> Facts:
    return [
        (choice.token_ids, choice.finish_reason, choice.logits_hashes)
        for generation in generations
        for choice in generation.choices
    ]


def check_text(name: str, text: str) -> None:
    """Is it of the grammar?"""
    if name == "schema":
        jsonschema.validate(json.loads(text), SCHEMA)
    elif name == "regex":
        assert re.fullmatch(PATTERN, text)
    elif name == "choice":
        assert text in CHOICES
    else:
        while (shorter := re.sub(r"\((\d+|sum of all)\+(\d+|sum of all)\)", "1", text)) != text:
            text = shorter
        assert re.fullmatch(r"\[(\d+|sum of all)\]", text)


@pytest.fixture(scope="module")
def plain(llm: LLM) -> dict[tuple[str, str], Facts]:
    """What plain decoding says, by grammar and method; checked to be of the grammar."""
    found = {}
    for name, grammar in GRAMMARS.items():
        for method in METHODS:
            generations = llm.generate(PROMPTS, params_of(method), grammar=grammar)
            for generation in generations:
                if name == "lark" and generation.finish_reason is FinishReason.LENGTH:
                    continue  # sums of sums have no end of their own
                assert generation.finish_reason is FinishReason.STOP
                check_text(name, generation.text)
            found[name, method] = facts(generations)
    return found


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_says_what_plain_decoding_says(llm: LLM, plain, drafter: str) -> None:
    llm.reconfigure(speculation=fixed(drafter))
    for (name, method), expected in plain.items():
        assert facts(llm.generate(PROMPTS, params_of(method), grammar=GRAMMARS[name])) == expected, (name, method)
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.by_drafter["grammar"].accepted > 0


@pytest.mark.parametrize("depth", [1, 4, 15])
@pytest.mark.parametrize("drafter", [*DRAFTERS, "draft-model", "self-int4", "early-exit", "draft-model+suffix"])
def test_no_depth_of_any_drafter_changes_anything(llm: LLM, other_model: Path, plain, drafter: str, depth: int) -> None:
    options = {"draft-model.model": str(other_model)} if "draft-model" in drafter else {}
    llm.reconfigure(speculation=dataclasses.replace(fixed(drafter, depth), options=options))
    for (name, method), expected in plain.items():
        assert facts(llm.generate(PROMPTS, params_of(method), grammar=GRAMMARS[name])) == expected, (name, method)
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.accepted > 0


@pytest.mark.parametrize("method", METHODS)
def test_with_a_learned_budget_too_and_what_is_forced_is_accepted(llm: LLM, plain, method: str) -> None:
    llm.reconfigure(speculation="auto")
    for _ in range(3):
        made = llm.generate(PROMPTS, params_of(method), grammar=GRAMMARS["schema"])
        assert facts(made) == plain["schema", method]
    stats = llm.engine.speculator.stats.by_drafter["grammar"]
    assert stats.accepted > 0.9 * stats.drafted > 0


def test_choices_and_a_prediction_change_nothing(llm: LLM) -> None:
    params = params_of("seeded", n=3)
    llm.reconfigure(speculation="off")
    expected = llm.generate(PROMPTS, params, grammar=GRAMMARS["schema"])
    free = llm.generate(PROMPTS[0], params)
    prediction = expected[0].choices[1].text
    llm.reconfigure(speculation=fixed("suffix"))
    assert facts(llm.generate(PROMPTS, params, grammar=GRAMMARS["schema"], prediction=prediction)) == facts(expected)
    assert llm.engine.speculator.stats.by_drafter["prediction"].accepted > 0
    assert facts(llm.generate(PROMPTS[0], params, prediction=free[0].text)) == facts(free)


def test_a_right_prediction_saves_steps(llm: LLM) -> None:
    llm.reconfigure(speculation=fixed("ngram"))
    params = params_of("seeded")
    said = llm.generate(PROMPTS[0], params)[0]
    again = llm.generate(PROMPTS[0], params, prediction=list(said.token_ids))[0]
    assert again.token_ids == said.token_ids
    assert again.stats.accepted_by["prediction"] > MAX_TOKENS // 2
    assert again.stats.steps < said.stats.steps / 2


@pytest.mark.parametrize(("drafter", "names"), [("off", set()), ("grammar", {"grammar"})])
def test_a_request_may_turn_drafts_off_or_choose_one(llm: LLM, drafter: str, names: set[str]) -> None:
    llm.reconfigure(speculation=fixed("suffix"))
    params = params_of("greedy", speculation=SpeculationParams(drafter))
    generation = llm.generate(PROMPTS[0], params, grammar=GRAMMARS["regex"])[0]
    assert set(generation.stats.verified_by) == names


def test_where_nobody_drafts_nothing_is_drafted(llm: LLM, plain) -> None:
    llm.reconfigure(speculation="off")
    assert facts(llm.generate(PROMPTS, params_of("greedy"), grammar=GRAMMARS["schema"])) == plain["schema", "greedy"]
    assert llm.engine.speculator.stats.drafted == 0


def test_requests_with_and_without_a_grammar_share_a_batch(llm: LLM, plain) -> None:
    params = params_of("seeded")
    llm.reconfigure(speculation="off")
    free = facts(llm.generate(PROMPTS, params))
    llm.reconfigure(speculation=fixed("suffix", 5))
    sequences = []
    for index, prompt in enumerate(PROMPTS):
        request = make_request(llm.tokenizer, prompt, params, id=str(index))
        sequences += llm.engine.add(request)
        sequences += llm.engine.add(under_grammar(request, llm.grammars.compile(GRAMMARS["schema"])))
    while llm.engine.has_work:
        llm.engine.step()
    made = [(tuple(one.output), one.finish, tuple(one.logits_hashes)) for one in sequences]
    assert made[::2] == free
    assert made[1::2] == plain["schema", "seeded"]


@pytest.mark.slow
@pytest.mark.parametrize("file", ["smollm2-135m.gguf", "qwen2.5-coder-0.5b.gguf"])
def test_real_models_draft_under_a_schema_without_a_trace(file: str) -> None:
    path = Path(os.environ.get("FORERUN_TEST_MODELS", "")) / file
    if not path.is_file():
        pytest.skip(f"FORERUN_TEST_MODELS has no {file}")
    real = LLM(str(path), speculation="off", max_model_len=512)
    prompts = [
        real.chat_prompt([{"role": "user", "content": f"Invent {what}. Answer in JSON."}])
        for what in ("a person", "a villain of an old novel")
    ]
    for method in METHODS:
        real.reconfigure(speculation="off")
        expected = real.generate(prompts, params_of(method), grammar=GRAMMARS["schema"])
        for generation in expected:
            jsonschema.validate(json.loads(generation.text), SCHEMA)
        for drafter in ("auto", "ngram", "recycle", "lookahead", "suffix+recycle"):
            real.reconfigure(speculation=fixed(drafter, 7))
            assert facts(real.generate(prompts, params_of(method), grammar=GRAMMARS["schema"])) == facts(expected)
