"""Tokenizer: text to token ids and back, for every kind of model file.

The first and the last stop of a request. Encoding is done by the `tokenizers` library; decoding is done here on bytes,
so that a stream of tokens and a whole list give the same text.
"""

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forerun.errors import UsageError
from forerun.text.folder_vocabulary import read_folder_vocabulary
from forerun.text.gguf_vocabulary import read_gguf_vocabulary
from forerun.text.vocabulary import Vocabulary


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte: itself where it prints, else the next character from U+0100 on."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    return {chr(byte): byte for byte in prints} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


class Tokenizer:
    """Encodes and decodes for one model; safe to share between threads."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._bytes: dict[int, bytes] = {}  # filled as tokens are met: most of a vocabulary never is
        self._encoding = threading.Lock()  # whether control tokens are recognised is a switch of the shared encoder

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read the tokenizer of a Hugging Face folder.

        Raises ModelFileError when a file is missing or broken, UnsupportedModel for a kind that forerun does not run.
        """
        return cls(read_folder_vocabulary(folder))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Rebuild the tokenizer from GGUF metadata (arrays as Python lists).

        Raises UnsupportedModel naming an unknown tokenizer or pre-tokenizer, ModelFileError for damaged entries.
        """
        return cls(read_gguf_vocabulary(metadata))

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Token ids of `text`, without BOS.

        special=True reads text such as "<|im_start|>" as its control token, as a rendered chat template needs;
        special=False reads it as plain characters, for text that must not steer the model.
        Raises UsageError for text that is no valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise UsageError(f"the text has a lone surrogate at character {e.start}; pass valid Unicode") from e
        with self._encoding:
            self._vocabulary.core.encode_special_tokens = not special
            return list(self._vocabulary.core.encode(text, add_special_tokens=False).ids)

    def encode_prompt(self, text: str) -> list[int]:
        """Token ids of a prompt: BOS first when the model wants it, unless the text already begins with it."""
        ids = self.encode(text)
        bos = self._vocabulary.bos_id
        if self._vocabulary.add_bos and bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; broken UTF-8 becomes U+FFFD. Control tokens are left out unless skip_special=False."""
        raw = b"".join(self.token_bytes(i, special=not skip_special) for i in ids)
        text = raw.decode("utf-8", errors="replace")
        return text.removeprefix(" ") if self.strips_leading_space else text

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """Bytes that a token adds to the text; b"" for a control token (unless special) and beyond the vocabulary.

        Ids beyond the vocabulary exist: output matrices are padded to round sizes.
        """
        if not special and token in self._vocabulary.control:
            return b""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._spell(token)
        return known

    def token_text(self, token: int) -> str:
        """A token as the model file spells it; "" beyond the vocabulary."""
        return self._vocabulary.texts[token] if 0 <= token < self.vocab_size else ""

    def added_id(self, text: str) -> int | None:
        """Id of the token that the vocabulary was given for exactly this text, None when there is none.

        Ordinary tokens, which come out of merges, do not count.
        """
        token: int | None = self._vocabulary.core.token_to_id(text)
        known = self._vocabulary.control | self._vocabulary.literal
        return token if token in known else None

    def is_special(self, token: int) -> bool:
        """True for a control token."""
        return token in self._vocabulary.control

    @property
    def vocab_size(self) -> int:
        """Number of ids that the tokenizer knows; a model's output matrix may have more rows."""
        return len(self._vocabulary.texts)

    @property
    def bos_id(self) -> int | None:
        return self._vocabulary.bos_id

    @property
    def adds_bos(self) -> bool:
        """True when a prompt begins with BOS."""
        return self._vocabulary.add_bos

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a generation: end of sequence first, then end of turn and end of document."""
        return self._vocabulary.eos_ids

    @property
    def chat_template(self) -> str | None:
        return self._vocabulary.chat_template

    @property
    def strips_leading_space(self) -> bool:
        """True when decoding takes away one space at the start of the text (SentencePiece puts it there)."""
        return self._vocabulary.leading_space

    def _spell(self, token: int) -> bytes:
        text = self.token_text(token)
        if self._vocabulary.byte_level:
            if token in self._vocabulary.literal:
                return text.encode()
            try:
                return bytes(map(_BYTE_OF.__getitem__, text))
            except KeyError:  # a token outside the byte alphabet stands for itself
                return text.encode()
        if len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes.fromhex(text[3:5])
        return text.replace("▁", " ").encode()
