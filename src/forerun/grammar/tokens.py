"""A model's vocabulary as llguidance reads it: the bytes of every token, and which tokens stand for no text."""

import llguidance

from forerun.errors import UsageError
from forerun.text.tokenizer import Tokenizer

_MARK = "\x02"  # before a text that is encoded to go on from another


class _Adapter:
    """What llguidance asks of a tokenizer. Ids that end a sequence are control tokens to it, whatever the file says:
    no text may hold them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = range(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_ids[0]
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = [i for i in ids if tokenizer.is_special(i) or i in tokenizer.eos_ids]
        self.tokens = [tokenizer.token_bytes(i, special=True) for i in ids]

    def __call__(self, text: bytes | str) -> list[int]:
        """Token ids of text in the middle of an output: without the space that SentencePiece puts before a text."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "replace")
        if not self._tokenizer.strips_leading_space:
            return self._tokenizer.encode(text, special=False)
        ids = self._tokenizer.encode(_MARK + text, special=False)
        read = b""
        for at, token in enumerate(ids, start=1):
            read += self.tokens[token]
            if read.endswith(_MARK.encode()):
                return ids[at:]
        return []


def make_tokens(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """The vocabulary with what speeds up masks of JSON; takes about a second.

    Raises UsageError for a model that has no token to end a text with: a grammar could never be left.
    """
    if not tokenizer.eos_ids:
        raise UsageError("grammars need a model with an end token, and this one's files name none")
    wrapped = llguidance.TokenizerWrapper(_Adapter(tokenizer))
    return llguidance.LLTokenizer(
        wrapped,
        n_vocab=tokenizer.vocab_size,
        eos_token=list(tokenizer.eos_ids),
        slices=llguidance.LLTokenizer.json_slices(),
    )
