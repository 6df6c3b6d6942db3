"""ForeignText: a sequence's text in the tokens of a draft model with another tokenizer.

    target tokens   "The", " fer", "ry", " is", " la"      words are cut where a space stands before a letter
    draft tokens    [The] [ ferry] [ is] | [ la]           settled words, and the open one, encoded again as it grows

So the draft model reads its own spelling of every finished word, and what is settled never changes: only the open word
is encoded again. Control tokens that both models spell alike are mapped, others are left out.

Source: string-level exact match, Timor et al., arXiv:2502.05202 (SLEM). Differs: encoded word by word.
"""

from collections.abc import Sequence as Seq

from forerun.speculation.host import Vocabulary

LONGEST_WORD = 256  # bytes after which an open word is settled, space or not


class ForeignText:
    """One sequence. `tokens`: draft tokens of everything read so far; its end may change when more is read."""

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._target, self._draft = target, draft
        self._adds_space = adds_space(draft)
        self._num_read = 0
        self._num_settled = 0  # leading draft tokens that no longer change
        self._open = b""
        self.tokens: list[int] = []

    def read(self, tokens: Seq[int]) -> None:
        """Take over the target's tokens from where the last call ended; `tokens` is the whole sequence."""
        if len(tokens) == self._num_read:
            return
        del self.tokens[self._num_settled :]
        for token in tokens[self._num_read :]:
            if self._target.is_special(token):
                self._settle()
                self._add_special(token)
                continue
            piece = self._target.token_bytes(token)
            if _begins_word(piece, self._open) or len(self._open) > LONGEST_WORD:
                self._settle()
            self._open += piece
        self._num_read = len(tokens)
        # The last character may be incomplete; the token that completes it is still to come.
        self.tokens += self._encode(self._open.decode("utf-8", "ignore"))

    def _settle(self) -> None:
        if self._open:
            self.tokens += self._encode(self._open.decode("utf-8", "replace"))
            self._open = b""
        self._num_settled = len(self.tokens)

    def _encode(self, text: str) -> list[int]:
        text = text.removeprefix(" ") if self._adds_space else text
        return self._draft.encode(text, special=False) if text else []

    def _add_special(self, token: int) -> None:
        ids = self._draft.encode(self._target.decode([token], skip_special=False))
        if len(ids) == 1 and self._draft.is_special(ids[0]):
            self.tokens += ids
            self._num_settled = len(self.tokens)


def adds_space(vocabulary: Vocabulary) -> bool:
    """Does encoding put a space before the text, as SentencePiece does?"""
    return b"".join(map(vocabulary.token_bytes, vocabulary.encode("a", special=False)))[:1] == b" "


def _begins_word(piece: bytes, before: bytes) -> bool:
    """Would every tokenizer cut before this piece? A space with a letter behind it and no space before it."""
    return piece[:1] == b" " and piece[1:2].isalpha() and before[-1:] not in (b" ", b"\n", b"\t", b"\r", b"")
