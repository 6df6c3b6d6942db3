"""Fill in the middle: found by a vocabulary's tokens, asked with them, and nothing in the texts steers the model."""

import pytest

from forerun.text.infill import find_infill
from forerun.text.tokenizer import Tokenizer
from tests.server.conftest import MODEL, serving, tiny_llm
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")


def vocabulary_with(*texts: str) -> dict:
    _, vocabulary = byte_level("smollm")
    return {
        **vocabulary,
        "tokenizer.ggml.tokens": [*vocabulary["tokenizer.ggml.tokens"], *texts],
        "tokenizer.ggml.token_type": [*vocabulary["tokenizer.ggml.token_type"], *(3 for _ in texts)],
    }


@pytest.mark.parametrize("marks", [QWEN, STARCODER])
def test_each_part_stands_behind_its_mark(marks):
    tokenizer = Tokenizer.from_gguf(vocabulary_with(*marks, "<|file_sep|>"))
    infill = find_infill(tokenizer)
    assert infill is not None
    ids = infill.prompt(tokenizer, f"a {marks[1]}", "b")
    assert tokenizer.decode(ids, skip_special=False) == f"{marks[0]}a {marks[1]}{marks[1]}b{marks[2]}"
    assert ids.count(infill.suffix) == 1  # the one in the text is plain characters
    assert tokenizer.added_id("<|file_sep|>") in infill.ends


def test_a_vocabulary_without_all_three_has_none():
    assert find_infill(Tokenizer.from_gguf(vocabulary_with(*QWEN[:2]))) is None
    assert find_infill(Tokenizer.from_gguf(vocabulary_with())) is None


def test_the_server_asks_so(tmp_path):
    vocabulary = vocabulary_with(*QWEN)
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), max_context=256)
    write_tiny_gguf(tmp_path / "fim.gguf", spec, metadata={**vocabulary, "tokenizer.chat_template": None})
    with serving(tiny_llm(tmp_path / "fim.gguf")) as server:
        infill = find_infill(server.llm.tokenizer)
        options = {"model": MODEL, "temperature": 0, "max_tokens": 9}
        found = server.openai.completions.create(prompt=["def f(", "x"], suffix="return x", **options)
        for choice, before in zip(found.choices, ("def f(", "x"), strict=True):
            ids = infill.prompt(server.llm.tokenizer, before, "return x")
            wanted = server.openai.completions.create(prompt=ids, **options, extra_body={"stop_token_ids": infill.ends})
            assert choice.text == wanted.choices[0].text
        ended = server.openai.completions.create(
            prompt="a", suffix="b", **options, logit_bias={str(infill.prefix): 100}
        )
        assert ended.choices[0].finish_reason == "stop"
        assert ended.choices[0].text == ""
