"""Vocabulary: what a model file says about its tokens, in the one form that `Tokenizer` works on.

Filled by `gguf_vocabulary` (rebuilt from GGUF metadata) and `folder_vocabulary` (a Hugging Face folder).
Invariant: texts[i] is the text of token i as the file spells it (byte-level or SentencePiece escapes included).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import tokenizers

# Tokens that end a turn or a document wherever they are control tokens; a file often names only one of them.
END_TEXTS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<end_of_turn>",
        "<|END_OF_TURN_TOKEN|>",
        "<|endoftext|>",
        "<|end_of_text|>",
    }
)


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, their kinds and the encoder built from them."""

    core: tokenizers.Tokenizer
    texts: tuple[str, ...]
    control: frozenset[int]  # never part of the text that a user reads
    literal: frozenset[int]  # added tokens: their text stands for itself, without byte-level escapes
    byte_level: bool  # True: GPT-2 byte alphabet; False: SentencePiece with <0xNN> tokens
    leading_space: bool  # encoding puts a space before the text, decoding takes it away again
    bos_id: int | None
    eos_ids: tuple[int, ...]
    add_bos: bool
    chat_template: str | None


def end_ids(named: Iterable[int | None], texts: tuple[str, ...], added: frozenset[int]) -> tuple[int, ...]:
    """Ids that end a generation: those that the file names, in order, then added tokens known to end a turn or text."""
    ids = [i for i in named if i is not None] + [i for i in sorted(added) if texts[i] in END_TEXTS]
    return tuple(dict.fromkeys(ids))
