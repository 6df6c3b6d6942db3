"""OutputText and LiveText: tokens to text as they come, ended by stop strings.

OutputText gives a stream the text that can no longer change. LiveText is the one of a running sequence: it tells
`scheduler.commit`, token by token, that a stop string is complete, and keeps the text for whoever reads it, so that
both can only agree.

Laws, for any tokens:
    the pushes and the finish of an OutputText, joined, are tokenizer.decode(tokens) cut before the first stop string;
    "first" is the stop string that is complete first; of several that end at the same character, the longest.
So how characters are divided into tokens does not matter, and no token is needed beyond the one that completes it.
Time per token is proportional to its own text and what is held back, not to what came before.
"""

import codecs
from collections import deque
from collections.abc import Sequence

from forerun.text.tokenizer import Tokenizer


class _Characters:
    """Bytes of tokens to whole characters: holds back an incomplete one, takes the first leading space away."""

    def __init__(self, tokenizer: Tokenizer, continues: bool, shown: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._shown = shown
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strip = tokenizer.strips_leading_space and not continues

    def push(self, token: int) -> str:
        return self._first(self._decoder.decode(self._tokenizer.token_bytes(token, special=token in self._shown)))

    def finish(self) -> str:
        """What an incomplete last character becomes: U+FFFD, or nothing when there is none."""
        return self._first(self._decoder.decode(b"", final=True))

    def _first(self, text: str) -> str:
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class _StopMatcher:
    """Aho-Corasick automaton over the stop strings, run over the text one character at a time.

    A state is the longest end of the text that begins a stop string; its depth is that length, which is exactly what
    may not be shown yet.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._found = [0]  # length of the longest stop string that ends in this state; 0: none
        self._fallback = [0]
        for string in stop:
            self._add(string)
        self._link()
        self._state = 0
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Take more text; give what is final: no part of a stop string, complete or possible."""
        if self.stopped:
            return ""
        if len(self._next) == 1:
            return text
        text = self._held + text
        for at in range(len(self._held), len(text)):
            self._state = self._step(self._state, text[at])
            if self._found[self._state]:
                self.stopped, self._held = True, ""
                return text[: at + 1 - self._found[self._state]]
        final = len(text) - self._depth[self._state]
        self._held = text[final:]
        return text[:final]

    def finish(self) -> str:
        """What was held back: no more text comes to complete it."""
        held, self._held = self._held, ""
        return held

    def _add(self, string: str) -> None:
        state = 0
        for character in string:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._found.append(0)
                self._fallback.append(0)
            state = self._next[state][character]
        self._found[state] = self._depth[state]

    def _link(self) -> None:
        """Give every state the longest proper end of it that is also a state, breadth first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for character, child in self._next[state].items():
                self._fallback[child] = self._step(self._fallback[state], character)
                self._found[child] = self._found[child] or self._found[self._fallback[child]]
                queue.append(child)

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)


class OutputText:
    """The text of one output, streamed. Control tokens add nothing but where they are `shown`.

    `continues` keeps the space before a first word (SentencePiece), which a continuation of text needs and an answer
    does not.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        continues: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._characters = _Characters(tokenizer, continues, shown)
        self._matcher = _StopMatcher(stop)
        self._pieces: list[str] = []

    def push(self, token: int, may_stop: bool = True) -> str:
        """Take one more token; give the text that is now final ("" when nothing new is, or after a stop string).

        Text taken while `may_stop` is False (min_tokens) is no part of a stop string; it is never False after True.
        """
        characters = self._characters.push(token)
        return self._emit(self._matcher.push(characters) if may_stop else characters)

    def finish(self) -> str:
        """End the output; give what was held back, a broken last character as U+FFFD."""
        last = self._matcher.push(self._characters.finish())
        return self._emit(last + self._matcher.finish())

    @property
    def stopped(self) -> bool:
        """True when a stop string is complete; the text ends before it."""
        return self._matcher.stopped

    @property
    def text(self) -> str:
        """All text given so far."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def _emit(self, text: str) -> str:
        if text:
            self._pieces.append(text)
        return text


class LiveText:
    """The text of a running sequence by token, and its `sequence.StopMatcher`.

    pieces  the text that each token made final; after `finish` one more, if text was held back
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        *,
        continues: bool = False,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._output = OutputText(tokenizer, stop, continues=continues, shown=shown)
        self.pieces: list[str] = []

    def push(self, token: int, may_stop: bool) -> bool:
        """Take one more output token; True when a stop string is complete."""
        self.pieces.append(self._output.push(token, may_stop))
        return self._output.stopped

    def finish(self) -> str:
        """The whole text; may be asked again."""
        if rest := self._output.finish():
            self.pieces.append(rest)
        return "".join(self.pieces)
