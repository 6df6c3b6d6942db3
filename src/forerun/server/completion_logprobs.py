"""Log-probabilities in the form of /v1/completions: parallel lists over tokens, with each token's place in the text."""

from collections.abc import Sequence as Seq
from typing import Any

from forerun.sequence import TokenLogprob
from forerun.server.answer import finite
from forerun.text.detokenizer import OutputText
from forerun.text.tokenizer import Tokenizer


class CompletionLogprobs:
    """Follows the tokens of one text, prompt first.

    A token that ends inside of a character stands where that character begins. Tokens that are no whole characters are
    spelled "bytes:\\xe2\\x82", as OpenAI does.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._text = OutputText(tokenizer, continues=True)
        self._offset = 0

    def skip(self, length: int) -> None:
        """Stand behind `length` characters of text that nobody asked about."""
        self._offset = length

    def take_prompt(self, ids: Seq[int], entries: Seq[TokenLogprob]) -> dict[str, Any]:
        """The lists for a prompt, which is in front of everything."""
        return self._lists([(ids[0], None), *((entry.token, entry) for entry in entries)])

    def take(self, entries: Seq[TokenLogprob]) -> dict[str, Any]:
        """The lists for the tokens that come next."""
        return self._lists([(entry.token, entry) for entry in entries])

    def _lists(self, tokens: Seq[tuple[int, TokenLogprob | None]]) -> dict[str, Any]:
        offsets = []
        for token, _ in tokens:
            offsets.append(self._offset)
            self._offset += len(self._text.push(token))
        return {
            "tokens": [self._spell(token) for token, _ in tokens],
            "token_logprobs": [None if entry is None else finite(entry.logprob) for _, entry in tokens],
            "top_logprobs": [None if entry is None else self._top(entry) for _, entry in tokens],
            "text_offset": offsets,
        }

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the one that came; of tokens that are spelled alike the likeliest."""
        top: dict[str, float] = {}
        for token, logprob in (*entry.top, (entry.token, entry.logprob)):
            top.setdefault(self._spell(token), finite(logprob))
        return top

    def _spell(self, token: int) -> str:
        raw = self._tokenizer.token_bytes(token, special=True)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def join_lists(parts: Seq[dict[str, Any]]) -> dict[str, Any] | None:
    """Lists one behind the other, None for none."""
    if not parts:
        return None
    return {key: [entry for part in parts for entry in part[key]] for key in parts[0]}
