"""GrammarMask: the matcher of one running choice, and the looks ahead along its drafts."""

import time

import llguidance
import numpy as np
import numpy.typing as npt

from forerun.errors import GrammarError

# Of a processor, for one mask. The library counts items of its parser, not what finding them takes: an ambiguous
# grammar such as `a: a a | "a"` takes up to a second a mask within its limits, and all running generations wait.
MASK_LIMIT_S = 0.1


class GrammarMask:
    """A sequence.TokenMask, and one that knows what must come next.

    num_words  words of a mask: ceil(V / 32)
    end        the id that ends a text, first among those that do
    """

    def __init__(self, matcher: llguidance.LLMatcher, num_words: int, end: int) -> None:
        self._matcher, self._num_words, self._end = matcher, num_words, end
        self._taken_s = 0.0

    def allowed(self) -> npt.NDArray[np.uint32]:
        """[ceil(V / 32)] tokens that may come next. Where the text may end, those that end it are among them.

        Raises GrammarError when the grammar takes more than its limits here.
        """
        start = time.thread_time()
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        # The longest time stays: asked again, as a step that failed does, the library knows the mask already.
        self._taken_s = max(self._taken_s, time.thread_time() - start)
        self._check()
        if self._taken_s > MASK_LIMIT_S:
            raise GrammarError(f"the grammar cannot go on here: what may come next takes {self._taken_s:.1g} s to find")
        return mask[: self._num_words]

    def advance(self, token: int) -> None:
        """Take one more token. Raises GrammarError for one that is not allowed."""
        if not self._matcher.consume_token(token):
            self._check()

    def fork(self) -> "GrammarMask":
        return GrammarMask(self._matcher.deep_copy(), self._num_words, self._end)

    def forced(self) -> list[int]:
        """Tokens that come next as the grammar leaves no choice of text, spelled as the tokenizer would; may be empty.

        Where text is forced the mask allows this spelling of it, so it is hardly ever wrong. It is a draft and no
        promise: behind other tokens the rest may be spelled in another way.
        """
        ahead = self._matcher.deep_copy()
        tokens = ahead.compute_ff_tokens()
        taken = ahead.try_consume_tokens(tokens) if tokens else 0
        return [*tokens[:taken], self._end] if ahead.is_stopped() and not ahead.is_error() else tokens[:taken]

    @property
    def may_end(self) -> bool:
        """True where the text so far is a whole one."""
        return self._matcher.is_accepting()

    def _check(self) -> None:
        """Raise GrammarError when the matcher has given up.

        Of its causes the library tells no more than a sentence: stop_reason is "InternalError" for every one. No code
        reads the sentence, as only allowed tokens are taken, and of what is allowed only a limit stops the matcher.
        """
        if self._matcher.is_error():
            lines = self._matcher.get_error().splitlines() or ["unknown"]
            raise GrammarError(f"the grammar cannot go on here: {lines[0]}")
