"""grammar drafter: where the request's grammar leaves no choice of text, that text is the draft.

    schema   {"type": "object", "properties": {"name": ..., "age": ...}}
    so far   {"name": "Ada", "a              forced     ge"

A grammar's mask that knows what is forced says so, spelled as the tokenizer would. For any other mask the drafter walks
as long as a single token is allowed. Both are hardly ever wrong: scores are near one, and counting makes them exact.

It drafts for requests with a grammar, whatever else was chosen to draft, and needs no look at the model.
Cost: some 10 us a proposal.
"""

from collections.abc import Sequence as Seq
from typing import Protocol, runtime_checkable

import numpy as np

from forerun.sequence import Sequence, TokenMask
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.tree import DraftTree

SPELLED = 0.98  # score of a token that spells forced text
ONLY = 0.995  # of the only one that is allowed


@runtime_checkable
class _KnowsForced(Protocol):
    """A mask that can look ahead by itself, such as grammar.mask.GrammarMask."""

    def forced(self) -> list[int]: ...


class GrammarDrafter:
    """Drafts what a request's grammar forces."""

    name = "grammar"
    is_paid = False
    learns = False

    def begin(self, sequence: Sequence) -> None:
        """Nothing to keep: all is in the sequence's mask."""

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self._propose(ask) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Nothing to learn."""

    def end(self, sequence_id: int) -> None:
        """Nothing to drop."""

    def _propose(self, ask: Ask) -> DraftTree | None:
        mask = ask.sequence.token_mask
        length = min(ask.max_nodes, ask.max_depth)
        if mask is None or length < 1:
            return None
        if isinstance(mask, _KnowsForced):
            tokens, score = mask.forced()[:length], SPELLED
        else:
            tokens, score = _only_ones(mask, length), ONLY
        if not tokens:
            return None
        return DraftTree.chain(ask.sequence.tokens[-1], tokens, [score] * len(tokens), self.name)


def _only_ones(mask: TokenMask, length: int) -> list[int]:
    """Tokens as long as each is the only one that is allowed."""
    tokens: list[int] = []
    while len(tokens) < length:
        words = np.asarray(mask.allowed(), np.uint32)
        (found,) = np.nonzero(words)
        if len(found) != 1 or words[found[0]] & (words[found[0]] - np.uint32(1)):
            break
        token = 32 * int(found[0]) + int(words[found[0]]).bit_length() - 1
        tokens.append(token)
        if len(tokens) < length:
            mask = mask.fork()
            mask.advance(token)
    return tokens


register("grammar", GrammarDrafter)
