"""GrammarMask: the matcher of one running choice, and the looks ahead along its drafts."""

import llguidance
import numpy as np
import numpy.typing as npt

from forerun.errors import GrammarError
from forerun.grammar.meter import Looks, Meter, timed


class GrammarMask:
    """A sequence.TokenMask, and one that knows what must come next.

    num_words  words of a mask: ceil(V / 32)
    end        the id that ends a text, first among those that do
    meter      of the request, whose choices share it
    looks      of the mask that this one looks ahead of, None for the mask of a choice itself
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, num_words: int, end: int, meter: Meter, looks: Looks | None = None
    ) -> None:
        self._matcher, self._num_words, self._end, self._meter = matcher, num_words, end, meter
        self._is_ahead = looks is not None
        self._looks = looks or Looks(meter)
        self._taken_s = 0.0  # by the slowest call here
        self._forced: list[int] = []  # what was forced here and is not taken yet

    def allowed(self) -> npt.NDArray[np.uint32]:
        """[ceil(V / 32)] tokens that may come next. Where the text may end, those that end it are among them.

        Raises GrammarError when the grammar takes more than its limits here, or looks ahead took more than theirs.
        """
        self._may_look()
        words, seconds = timed(self._matcher.compute_bitmask)
        self._check()
        self._count(seconds)
        return np.frombuffer(words, np.uint32)[: self._num_words]

    def advance(self, token: int) -> None:
        """Take one more token. Raises GrammarError for one that is not allowed, and as `allowed` does."""
        self._may_look()
        is_taken, seconds = timed(lambda: self._matcher.consume_token(token))
        if not is_taken:
            self._check()
        self._taken_s = 0.0
        self._forced = self._forced[1:] if self._forced[:1] == [token] else []
        if not self._is_ahead:
            self._looks.begin_step()
        self._count(seconds)

    def fork(self) -> "GrammarMask":
        """An independent copy to look ahead with. Its time counts as such."""
        self._may_look()
        copy, seconds = timed(self._matcher.deep_copy)
        self._looks.add(seconds)
        return GrammarMask(copy, self._num_words, self._end, self._meter, self._looks)

    def forced(self) -> list[int]:
        """Tokens that come next as the grammar leaves no choice of text, spelled as the tokenizer would; may be empty.

        Where text is forced the mask allows this spelling of it, so it is hardly ever wrong. It is a draft and no
        promise: behind other tokens the rest may be spelled in another way.
        """
        if not self._forced and self._looks.may_go_on:  # long texts are found once, not at each of their tokens
            self._forced, seconds = timed(self._find_forced)
            self._looks.add(seconds)
        return list(self._forced)

    @property
    def may_end(self) -> bool:
        """True where the text so far is a whole one."""
        return self._matcher.is_accepting()

    def _find_forced(self) -> list[int]:
        ahead = self._matcher.deep_copy()
        tokens = ahead.compute_ff_tokens()
        taken = ahead.try_consume_tokens(tokens) if tokens else 0
        return [*tokens[:taken], self._end] if ahead.is_stopped() and not ahead.is_error() else tokens[:taken]

    def _may_look(self) -> None:
        if self._is_ahead and not self._looks.may_go_on:
            raise GrammarError("the grammar takes too long to look ahead with: the step goes on without")

    def _count(self, seconds: float) -> None:
        if self._is_ahead:
            self._looks.add(seconds)
            return
        self._taken_s = max(self._taken_s, seconds)
        self._meter.add(seconds, self._taken_s)

    def _check(self) -> None:
        """Raise GrammarError when the matcher has given up.

        Of its causes the library tells no more than a sentence: stop_reason is "InternalError" for every one. No code
        reads the sentence, as only allowed tokens are taken, and of what is allowed only a limit stops the matcher.
        """
        if self._matcher.is_error():
            lines = self._matcher.get_error().splitlines() or ["unknown"]
            raise GrammarError(f"the grammar cannot go on here: {lines[0]}")
