"""Token ids against the `tokenizers` library and SentencePiece itself; decoding; BOS; end tokens; damaged files."""

import json
import os
import time
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Original
from tokenizers import decoders, processors

from forerun.errors import ModelFileError, UnsupportedModel, UsageError
from forerun.text.gguf_vocabulary import read_gguf_vocabulary
from forerun.text.tokenizer import Tokenizer
from tests.text.vocabularies import AWKWARD, GOLDEN, REFERENCE, byte_level, sentencepiece

MIXED = "<|im_start|>user\nHello <tool_call> there<|im_end|>\n<|im_start|>  <|endoftext|>é"


@pytest.mark.parametrize("kind", REFERENCE)
def test_byte_level_ids_equal_the_original(kind: str) -> None:
    original, metadata = byte_level(kind)
    rebuilt = Tokenizer.from_gguf(metadata)
    for text in [*AWKWARD, MIXED, "".join(AWKWARD)]:
        ids = original.encode(text, add_special_tokens=False).ids
        assert rebuilt.encode(text) == ids
        assert rebuilt.decode(ids) == original.decode(ids)
        assert rebuilt.decode(ids, skip_special=False) == original.decode(ids, skip_special_tokens=False)


@pytest.mark.parametrize("kind", ["smollm", "llama-bpe", "qwen2", "deepseek-coder"])
@given(text=st.text(max_size=40))
def test_any_text_has_the_ids_of_the_original_and_comes_back(kind: str, text: str) -> None:
    original, metadata = byte_level(kind)
    rebuilt = Tokenizer.from_gguf(metadata)
    assert rebuilt.encode(text) == original.encode(text, add_special_tokens=False).ids
    ids = rebuilt.encode(text, special=False)  # hypothesis likes to try "<|im_end|>"
    assert rebuilt.decode(ids) == (unicodedata.normalize("NFC", text) if REFERENCE[kind][0] else text)


def test_kinds_split_differently() -> None:
    """Otherwise the comparison above would not notice a wrong kind."""
    metadata = byte_level("gpt-2")[1]
    text = "\n".join(AWKWARD)
    kinds = ["gpt-2", "smollm", "llama-bpe", "qwen2", "command-r", "deepseek-coder"]
    ids = {tuple(Tokenizer.from_gguf(metadata | {"tokenizer.ggml.pre": kind}).encode(text)) for kind in kinds}
    assert len(ids) == len(kinds)


def test_sentencepiece_ids_equal_sentencepiece() -> None:
    cases, metadata = sentencepiece()
    rebuilt = Tokenizer.from_gguf(metadata)
    assert len(cases) == len(AWKWARD)
    for case in cases:
        assert rebuilt.encode(case["text"], special=False) == case["ids"], case["text"]
        assert rebuilt.decode(case["ids"]) == case["text"].replace("▁", " ")


@given(text=st.text(max_size=40))
def test_sentencepiece_text_comes_back(text: str) -> None:
    rebuilt = Tokenizer.from_gguf(sentencepiece()[1])
    assert rebuilt.decode(rebuilt.encode(text, special=False)) == text.replace("▁", " ")


def test_sentencepiece_puts_a_space_before_every_stretch_of_text_and_takes_only_the_first_away() -> None:
    rebuilt = Tokenizer.from_gguf(sentencepiece()[1])
    ids = rebuilt.encode("</s>word</s>word")
    assert ids == [2, *rebuilt.encode("word"), 2, *rebuilt.encode("word")]
    assert rebuilt.decode(ids) == "word word"
    assert rebuilt.token_bytes(rebuilt.encode("word")[0]).startswith(b" ")

    without = Tokenizer.from_gguf(sentencepiece()[1] | {"tokenizer.ggml.add_space_prefix": False})
    assert without.encode("word") != rebuilt.encode("word")
    assert without.decode(without.encode(" word")) == " word"


def test_untrusted_text_cannot_spell_a_control_token() -> None:
    rebuilt = Tokenizer.from_gguf(byte_level("smollm")[1])
    trusted, untrusted = rebuilt.encode(MIXED), rebuilt.encode(MIXED, special=False)
    assert [rebuilt.token_text(i) for i in trusted if rebuilt.is_special(i)] == [
        "<|im_start|>",
        "<|im_end|>",
        "<|im_start|>",
        "<|endoftext|>",
    ]
    assert not any(rebuilt.is_special(i) for i in untrusted)
    assert rebuilt.decode(untrusted) == MIXED
    assert rebuilt.encode(MIXED) == trusted  # the switch is not sticky


def test_bytes_and_texts_of_tokens() -> None:
    rebuilt = Tokenizer.from_gguf(byte_level("gpt-2")[1])
    ids = rebuilt.encode("naïve 😀")
    assert b"".join(map(rebuilt.token_bytes, ids)) == "naïve 😀".encode()
    assert {rebuilt.token_bytes(i) for i in range(rebuilt.vocab_size)} >= {bytes([byte]) for byte in range(256)}
    assert (rebuilt.token_bytes(1), rebuilt.token_bytes(1, special=True)) == (b"", b"<|im_start|>")
    assert rebuilt.token_text(1) == "<|im_start|>"
    for beyond in (rebuilt.vocab_size, 10**6, -1):  # padded rows of an output matrix
        assert (rebuilt.token_bytes(beyond), rebuilt.token_text(beyond)) == (b"", "")
    spelled = Tokenizer.from_gguf(sentencepiece()[1])
    assert spelled.token_bytes(3 + 0x41) == b"A"  # <0x41>


def test_bos_is_added_when_wanted_and_never_twice() -> None:
    wanted = Tokenizer.from_gguf(byte_level("smollm")[1] | {"tokenizer.ggml.add_bos_token": True})
    assert wanted.encode_prompt("Hello")[:2] == [0, wanted.encode("Hello")[0]]
    assert wanted.encode_prompt("<|endoftext|>Hello") == wanted.encode("<|endoftext|>Hello")
    assert wanted.encode_prompt("") == [0]
    unwanted = Tokenizer.from_gguf(byte_level("smollm")[1])
    assert unwanted.encode_prompt("Hello") == unwanted.encode("Hello")
    assert Tokenizer.from_gguf(byte_level("llama-bpe")[1]).encode_prompt("a")[0] == 0  # its kind's default
    assert Tokenizer.from_gguf(sentencepiece()[1]).encode_prompt("a")[0] == 1


def test_end_ids_are_the_named_one_and_known_control_tokens() -> None:
    assert Tokenizer.from_gguf(byte_level("smollm")[1]).eos_ids == (2, 0)  # <|im_end|>, then <|endoftext|>
    named = byte_level("smollm")[1] | {"tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.eot_token_id": 7}
    assert Tokenizer.from_gguf(named).eos_ids == (0, 7, 2)
    assert Tokenizer.from_gguf(sentencepiece()[1]).eos_ids == (2,)


def test_a_lone_surrogate_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="surrogate at character 2"):
        Tokenizer.from_gguf(byte_level("gpt-2")[1]).encode("ab\ud800")


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"tokenizer.ggml.pre": "klingon"}, UnsupportedModel, "pre-tokenizer 'klingon'"),
        ({"tokenizer.ggml.pre": None}, UnsupportedModel, "pre-tokenizer None"),
        ({"tokenizer.ggml.model": "bert"}, UnsupportedModel, "'bert'"),
        ({"tokenizer.ggml.model": None}, ModelFileError, "tokenizer.ggml.model"),
        ({"tokenizer.ggml.tokens": None}, ModelFileError, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, ModelFileError, "texts"),
        ({"tokenizer.ggml.token_type": [1]}, ModelFileError, "1 token types"),
        ({"tokenizer.ggml.merges": ["x y z"]}, ModelFileError, "merges"),
        ({"tokenizer.ggml.merges": ["no such"]}, ModelFileError, "merges"),
        ({"tokenizer.ggml.eos_token_id": 10**6}, ModelFileError, "eos_token_id 1000000"),
        ({"tokenizer.ggml.bos_token_id": None, "tokenizer.ggml.add_bos_token": True}, ModelFileError, "BOS"),
    ],
)
def test_damaged_or_unknown_metadata_is_refused(change: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        Tokenizer.from_gguf(byte_level("gpt-2")[1] | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"tokenizer.ggml.scores": [0.0]}, ModelFileError, "1 scores"),
        ({"tokenizer.ggml.token_type": [1] * 600}, ModelFileError, "neither byte tokens nor an unknown token"),
        ({"tokenizer.ggml.remove_extra_whitespaces": True}, UnsupportedModel, "remove_extra_whitespaces"),
    ],
)
def test_damaged_or_unknown_sentencepiece_metadata_is_refused(
    change: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Tokenizer.from_gguf(sentencepiece()[1] | change)


# ---------------------------------------------------------------- folders


def write_folder(folder: Path, core: Original, **files: Any) -> Path:
    core.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_byte_level_folder(tmp_path: Path) -> None:
    original = Original.from_str(byte_level("qwen2")[0].to_str())
    original.enable_truncation(4)  # as left behind in some files; it must not cut prompts
    original.enable_padding(length=8)
    folder = write_folder(
        tmp_path,
        original,
        tokenizer_config={
            "bos_token": None,
            "eos_token": {"content": "<|im_end|>"},
            "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}],
        },
        generation_config={"eos_token_id": [2, 5]},
    )
    read, rebuilt = Tokenizer.from_folder(folder), Tokenizer.from_gguf(byte_level("qwen2")[1])
    for text in [*AWKWARD, MIXED]:
        assert read.encode(text) == rebuilt.encode(text)
        assert read.decode(read.encode(text)) == rebuilt.decode(rebuilt.encode(text))
    assert (read.vocab_size, read.bos_id, read.eos_ids) == (rebuilt.vocab_size, None, (2, 5, 0))
    assert read.encode_prompt("a") == read.encode("a")
    assert read.chat_template == "D"
    (folder / "chat_template.jinja").write_text("J", encoding="utf-8")
    assert Tokenizer.from_folder(folder).chat_template == "J"


def test_sentencepiece_folder(tmp_path: Path) -> None:
    cases, metadata = sentencepiece()
    core = read_gguf_vocabulary(metadata).core
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder = write_folder(tmp_path, core, special_tokens_map={"bos_token": "<s>", "eos_token": "</s>"})
    read = Tokenizer.from_folder(folder)
    for case in cases:
        assert read.encode(case["text"], special=False) == case["ids"]
        assert read.decode(case["ids"]) == core.decode(case["ids"])
    assert (read.bos_id, read.eos_ids) == (1, (2,))
    assert read.encode_prompt("a") == [1, *read.encode("a")]  # the post-processor's word

    (folder / "tokenizer_config.json").write_text('{"add_bos_token": false}', encoding="utf-8")
    assert Tokenizer.from_folder(folder).encode_prompt("a") == read.encode("a")


def test_bad_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"', encoding="utf-8")
    with pytest.raises(ModelFileError, match="cannot be read"):
        Tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"}', encoding="utf-8")
    with pytest.raises(ModelFileError, match="not a usable tokenizer"):
        Tokenizer.from_folder(tmp_path)
    core = Original.from_str(byte_level("gpt-2")[0].to_str())
    core.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        Tokenizer.from_folder(write_folder(tmp_path, core))


# ---------------------------------------------------------------- real models


@cache
def real_metadata(name: str) -> dict[str, Any]:
    import gguf

    folder = os.environ.get("FORERUN_TEST_MODELS")
    path = Path(folder or ".") / name
    if folder is None or not path.is_file():
        pytest.skip(f"{name} is not in FORERUN_TEST_MODELS")
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "golden"), [("smollm2-135m.gguf", "smollm2.json"), ("qwen2.5-coder-0.5b.gguf", "qwen2.json")]
)
def test_real_models(file: str, golden: str) -> None:
    metadata = real_metadata(file)
    start = time.perf_counter()
    tokenizer = Tokenizer.from_gguf(metadata)
    assert time.perf_counter() - start < 3.0
    for case in json.loads((GOLDEN / golden).read_text(encoding="utf-8"))["cases"]:
        assert tokenizer.encode(case["text"]) == case["ids"], case["text"]
    for text in AWKWARD:
        composed = unicodedata.normalize("NFC", text) if golden == "qwen2.json" else text
        assert tokenizer.decode(tokenizer.encode(text)) == composed
    end = tokenizer.eos_ids[0]
    assert tokenizer.token_text(end) == "<|im_end|>"
    assert tokenizer.encode("a<|im_end|>b") == [*tokenizer.encode("a"), end, *tokenizer.encode("b")]
    assert end not in tokenizer.encode("a<|im_end|>b", special=False)
