"""draft-model with a draft whose vocabulary or context is not the target's: it drafts, and nothing changes."""

from dataclasses import replace

import pytest

from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

PADDING = 120  # ids at the end of a vocabulary that stand for no text, as published models have them
OPTIONS = EngineOptions(block_size=16, check_drafters=False)
PROMPTS = [[(7 * i * i + 13 * j + 3 * i) % 290 + 1 for i in range(40 + j)] for j in range(3)]
KINDS = {"plain": (0, 512), "padded": (PADDING, 512), "short": (0, 64)}  # padding, context


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Models of the same weights as far as they go."""
    folder = tmp_path_factory.mktemp("sizes")
    vocabulary = byte_level("smollm")[1]
    tokens, kinds = vocabulary["tokenizer.ggml.tokens"], vocabulary.get("tokenizer.ggml.token_type")
    for name, (padding, context) in KINDS.items():
        metadata = {**vocabulary, "tokenizer.ggml.tokens": [*tokens, *(f"[PAD{i}]" for i in range(padding))]}
        if kinds is not None:
            metadata["tokenizer.ggml.token_type"] = [*kinds, *[5] * padding]
        spec = replace(tiny_spec("llama", tied=False, layers=2), vocab_size=len(tokens) + padding, max_context=context)
        write_tiny_gguf(folder / f"{name}.gguf", spec, metadata=metadata)
    return {name: str(folder / f"{name}.gguf") for name in KINDS}


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "seed": 1}], ids=["greedy", "seeded"])
@pytest.mark.parametrize(("target", "draft"), [("plain", "padded"), ("padded", "plain"), ("plain", "short")])
def test_answers_are_those_of_plain_decoding(models: dict[str, str], target: str, draft: str, params: dict) -> None:
    llm = LLM(models[target], speculation="off", threads=1, options=OPTIONS, max_model_len=256)
    wanted = SamplingParams(max_tokens=100, ignore_eos=True, logits_hash=True, **params)

    def answers() -> list[tuple[object, ...]]:
        return [(c.token_ids, c.logits_hashes) for g in llm.generate(PROMPTS, wanted) for c in g.choices]

    plain = answers()
    for width in (1, 3):
        options = {"model": models[draft], "weights": "file", "width": width}
        named = {f"draft-model.{key}": value for key, value in options.items()}
        llm.reconfigure(speculation=SpeculationConfig("draft-model", 4, 64, named, budget="fixed"), options=OPTIONS)
        assert answers() == plain
        stats = llm.engine.speculator.stats
        assert stats.drafted > 10
        assert stats.dropped_nodes == stats.drafter_errors == 0
        assert draft == "short" or stats.drafted > 200  # a short context ends the drafts, not the answers
