"""Draft models with another tokenizer: the target itself under other token numbers is always right, any other model
changes nothing."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from forerun.errors import UsageError
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from tests import tiny
from tests.speculation.test_draft_model import SAMPLINGS, answers, config
from tests.text.vocabularies import byte_level
from tests.tiny import RandomWeights, tiny_spec, write_tiny_gguf

OPTIONS = {
    "cpu": EngineOptions(prefill_slowdown=1e9, block_size=16),
    "reference": EngineOptions(prefill_slowdown=1e9, block_size=16, backend="reference"),
}
CONTROL = ["<|endoftext|>", "<|end|>", "Ā", "ā", "Āā"]  # the last three for the one merge that a file must have
# Printable characters in GPT-2's alphabet ("Ġ" is the space), so that every text is spelled in one way.
CHARACTERS = ["Ġ", *(chr(code) for code in range(0x21, 0x7F))]


def characters(order: int) -> dict[str, object]:
    """A vocabulary of single characters in one of many orders, control tokens last."""
    texts = [CHARACTERS[i] for i in np.random.default_rng(order).permutation(len(CHARACTERS))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*texts, *CONTROL],
        "tokenizer.ggml.token_type": [1] * len(texts) + [3] * len(CONTROL),
        "tokenizer.ggml.merges": ["Ā ā"],
        "tokenizer.ggml.eos_token_id": len(texts),
    }


@pytest.fixture(scope="session")
def path_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    folder = tmp_path_factory.mktemp("tokenizers")
    spec = tiny_spec("llama", tied=False, layers=2, vocab=len(CHARACTERS) + len(CONTROL))

    class Renumbered(RandomWeights):
        """The same model with its vocabulary in another order."""

        def read(self, name, start=0, stop=None):
            rows = super().read(name)
            if name in ("embed", "output"):
                first, second = (characters(order)["tokenizer.ggml.tokens"] for order in (0, 1))
                rows = rows[[first.index(text) for text in second]]
            return np.ascontiguousarray(rows[start:stop])

    @cache
    def path(name: str) -> str:
        file = folder / f"{name}.gguf"
        if name == "target":
            write_tiny_gguf(file, spec, metadata=characters(0))
        elif name == "renumbered":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tiny, "RandomWeights", Renumbered)
                write_tiny_gguf(file, spec, metadata=characters(1))
        else:
            _, vocabulary = byte_level("qwen2")
            words = tiny_spec("qwen2", layers=1, vocab=len(vocabulary["tokenizer.ggml.tokens"]))
            write_tiny_gguf(file, words, seed=4, metadata=vocabulary)
        return str(file)

    return path


@pytest.fixture(scope="session")
def target(path_of) -> Callable[[str], LLM]:
    return cache(lambda backend: LLM(path_of("target"), speculation="off", threads=1, options=OPTIONS[backend]))


PROMPTS = ["What is (2+3)*4? The answer", "def f(x): return x", "a  b   c", "The quick brown fox jumps over it. " * 6]


@pytest.mark.parametrize(
    ("match", "sampling"),
    [("intersection", "greedy"), ("intersection", "seeded"), ("intersection", "penalties"), ("text", "greedy")],
)
@pytest.mark.parametrize("backend", OPTIONS)
def test_the_same_model_with_other_numbers_is_always_right(target, path_of, backend, match, sampling) -> None:
    llm = target(backend)
    llm.reconfigure(speculation=config(path_of("renumbered"), match=match), options=OPTIONS[backend])
    params = SamplingParams(max_tokens=40, ignore_eos=True, **SAMPLINGS[sampling])
    stats = llm.engine.speculator.stats
    llm.generate(PROMPTS, params)
    assert stats.drafter_errors == 0
    assert stats.drafted > 60
    # A control token cannot be proposed as text, and what follows one in the target's text is not in the draft's.
    assert stats.accepted >= (1.0 if match == "intersection" else 0.9) * stats.drafted


def test_trees_of_shared_tokens(target, path_of) -> None:
    llm = target("cpu")
    llm.reconfigure(speculation=config(path_of("renumbered"), 6, match="intersection", width=3), options=OPTIONS["cpu"])
    llm.generate(PROMPTS, SamplingParams(max_tokens=40, ignore_eos=True))
    stats = llm.engine.speculator.stats
    assert stats.by_drafter["draft-model"].accepted_at[0] == stats.drafts > 10
    assert stats.accepted > 1.5 * stats.drafts


def test_a_text_takes_few_rows(target, path_of) -> None:
    """What was accepted is not computed again."""
    llm = target("cpu")
    llm.reconfigure(speculation=config(path_of("renumbered"), match="intersection"), options=OPTIONS["cpu"])
    program = llm.engine.speculator.drafters[0]._drafting._program
    rows, forward = [], program.forward
    program.forward = lambda batch: (rows.append(batch.num_rows), forward(batch))[1]
    llm.generate(PROMPTS[3], SamplingParams(max_tokens=60, ignore_eos=True))
    assert sum(rows) <= len(PROMPTS[3]) + 60 + 12


@pytest.mark.parametrize("draft", ["renumbered", "words"])
@pytest.mark.parametrize("match", ["intersection", "text"])
@pytest.mark.parametrize("sampling", ["seeded", "filtered"])
def test_no_draft_changes_an_answer(target, path_of, draft, match, sampling) -> None:
    llm = target("cpu")
    params = SamplingParams(max_tokens=30, n=2, logits_hash=True, **SAMPLINGS[sampling])
    llm.reconfigure(speculation="off", options=OPTIONS["cpu"])
    plain = answers(llm, PROMPTS, params)
    llm.reconfigure(speculation=config(path_of(draft), match=match, sequences=3), options=OPTIONS["cpu"], kv_blocks=40)
    assert answers(llm, PROMPTS, params) == plain
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.drafted > 20


class TestWhatIsRefused:
    def test_other_tokens_under_the_same_ids(self, target, path_of) -> None:
        with pytest.raises(UsageError, match=r"id \d+ is '.+' in .*target.gguf and '.+' in .*renumbered.gguf; choose"):
            target("cpu").reconfigure(speculation=config(path_of("renumbered")), options=OPTIONS["cpu"])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"width": 0}, "width must be between 1 and 16, got 0"),
            ({"max_depth": 64}, "max_depth must be between 1 and 63"),
            ({"min_survival": 1.0}, "min_survival must be at least 0 and below 1"),
            ({"weights": "int2"}, "weights must be one of file, bf16, int8, int4"),
            ({"vocabulary": -1}, "vocabulary must be at least 0"),
            ({"match": "fuzzy"}, "match must be one of exact, intersection, text"),
            ({"match": "text", "width": 2}, "width must be 1 with match=text"),
            ({"match": "text", "vocabulary": 64}, "vocabulary must be 0 with match=text"),
            ({"sequences": 0}, "sequences must be at least 1"),
            ({"model": ""}, "model must be the draft model"),
        ],
    )
    def test_options(self, target, path_of, options, message) -> None:
        with pytest.raises(UsageError, match=f"draft-model.{message}"):
            target("cpu").reconfigure(
                speculation=config(**{"path": path_of("target"), **options}), options=OPTIONS["cpu"]
            )
