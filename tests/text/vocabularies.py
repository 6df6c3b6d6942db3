"""Tiny vocabularies as GGUF metadata, with the `tokenizers` original that the ids must equal."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

GOLDEN = Path(__file__).parent / "golden"
AWKWARD: list[str] = json.loads((GOLDEN / "awkward.json").read_text(encoding="utf-8"))

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
DEFINED = ["<tool_call>"]

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def _split(*patterns: str) -> list[pre_tokenizers.PreTokenizer]:
    return [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]


# What the tokenizer.json files of these models say, in that library's own terms.
_WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
_DIGITS = pre_tokenizers.Digits(individual_digits=True)
REFERENCE: dict[str, tuple[bool, list[pre_tokenizers.PreTokenizer]]] = {
    "gpt-2": (False, [_WORDS]),
    "smollm": (False, [_DIGITS, _WORDS]),
    "starcoder": (False, [_DIGITS, _WORDS]),
    "refact": (False, [_DIGITS, _WORDS]),
    "command-r": (True, [_DIGITS, _WORDS]),
    "llama-bpe": (False, [*_split(LLAMA3), _BYTES]),
    "qwen2": (True, [*_split(QWEN2), _BYTES]),
    "deepseek-coder": (
        False,
        [*_split(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"), _DIGITS, _BYTES],
    ),
}


@cache
def byte_level(kind: str) -> tuple[Tokenizer, dict[str, Any]]:
    """A byte-level BPE tokenizer trained on the awkward texts, and the same as GGUF metadata."""
    nfc, splits = REFERENCE[kind]
    original = Tokenizer(models.BPE(ignore_merges=kind == "llama-bpe"))
    if nfc:
        original.normalizer = normalizers.NFC()
    original.pre_tokenizer = pre_tokenizers.Sequence(splits)
    original.decoder = decoders.ByteLevel()
    original.train_from_iterator(
        AWKWARD * 3,
        trainers.BpeTrainer(
            vocab_size=700,
            show_progress=False,
            special_tokens=CONTROL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    original.add_tokens([AddedToken(text, normalized=False) for text in DEFINED])
    model = json.loads(original.to_str())["model"]
    size = original.get_vocab_size()
    texts = [original.id_to_token(i) for i in range(size)]
    return original, {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": kind,
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": [3 if t in CONTROL else 4 if t in DEFINED else 1 for t in texts],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2,
    }


@cache
def sentencepiece() -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What SentencePiece encodes with a tiny vocabulary, and that vocabulary as GGUF metadata."""
    golden = json.loads((GOLDEN / "sentencepiece.json").read_text(encoding="utf-8"))
    return golden["cases"], {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": golden["tokens"],
        "tokenizer.ggml.scores": golden["scores"],
        "tokenizer.ggml.token_type": golden["types"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
