"""GrammarCompiler: grammars of one model's tokens, each compiled once."""

import threading
from collections import OrderedDict
from collections.abc import Callable

import llguidance

from forerun.grammar.mask import GrammarMask
from forerun.grammar.matchers import new_matcher
from forerun.grammar.meter import Meter
from forerun.grammar.source import Grammar
from forerun.grammar.tokens import make_tokens
from forerun.sequence import TokenMask
from forerun.text.tokenizer import Tokenizer

MAX_CACHED = 32  # compiled grammars that are kept, some MB each at most


class GrammarCompiler:
    """Compiles for one tokenizer and keeps what was used last. May be called from any thread.

    The vocabulary is prepared for the first grammar, which takes about a second.
    """

    def __init__(self, tokenizer: Tokenizer, max_cached: int = MAX_CACHED) -> None:
        self._tokenizer = tokenizer
        self._max_cached = max_cached
        self._num_words = -(-tokenizer.vocab_size // 32)
        self._tokens: llguidance.LLTokenizer | None = None
        self._cache: OrderedDict[tuple[str, str], llguidance.LLMatcher] = OrderedDict()
        self._lock = threading.Lock()  # of the cache
        self._preparing = threading.Lock()

    def knows(self, grammar: Grammar) -> bool:
        """Is it compiled already?"""
        with self._lock:
            return (grammar.kind, grammar.text) in self._cache

    def compile(self, grammar: Grammar) -> Callable[[], TokenMask]:
        """What makes a mask for one choice of one request, standing before its first token.

        Raises RequestError when the grammar is none, cannot be honoured, or is bigger than one may be. How long it
        takes is up to the grammar: those of strangers go through a GrammarGuard first.
        """
        key = (grammar.kind, grammar.text)
        with self._lock:
            matcher = self._cache.get(key)
        if matcher is None:
            matcher, wrong = new_matcher(self._vocabulary(), *key)
            if wrong:
                raise grammar.error(wrong)
        with self._lock:
            self._cache[key] = matcher
            self._cache.move_to_end(key)
            while len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)
        num_words, end, meter = self._num_words, self._tokenizer.eos_ids[0], Meter()
        return lambda: GrammarMask(matcher.deep_copy(), num_words, end, meter)

    def _vocabulary(self) -> llguidance.LLTokenizer:
        with self._preparing:
            if self._tokens is None:
                self._tokens = make_tokens(self._tokenizer)
            return self._tokens
