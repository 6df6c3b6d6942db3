"""grammar drafter: the tokens that a mask leaves no choice about."""

from dataclasses import replace

import numpy as np

from forerun.speculation.drafter import Ask
from forerun.speculation.drafters.grammar import GrammarDrafter
from forerun.speculation.tree import DraftTree
from tests.speculation.free_drafters import sequence_of

WORDS = 3


class Path:
    """Allows each token of a path in turn, and anything behind it. Ids lie in three words."""

    def __init__(self, tokens, branches=()):
        self._tokens, self._branches = list(tokens), set(branches)

    def allowed(self):
        mask = np.zeros(WORDS, np.uint32)
        if not self._tokens:
            return ~mask
        for token in {self._tokens[0], *self._branches}:
            mask[token // 32] |= np.uint32(1 << token % 32)
        return mask

    def advance(self, token):
        assert token == self._tokens.pop(0)
        self._branches = set()

    def fork(self):
        return Path(self._tokens, self._branches)


class Knows(Path):
    """One that looks ahead by itself."""

    def forced(self):
        return self._tokens


def propose(mask, max_nodes=8, max_depth=8) -> DraftTree | None:
    sequence = replace(sequence_of([1, 2, 3]), token_mask=mask)
    drafter = GrammarDrafter()
    drafter.begin(sequence)
    (tree,) = drafter.propose([Ask(sequence, max_nodes, max_depth)])
    drafter.end(sequence.id)
    return tree


def test_the_only_tokens_that_are_allowed_are_the_draft():
    for tokens in ([31], [0, 32, 95, 64, 63], [5] * 8):
        tree = propose(Path(tokens))
        assert tree is not None
        assert tree.tokens == (3, *tokens)
        assert tree.is_chain
        assert min(tree.score) > 0.9
        assert tree.source == "grammar"


def test_where_two_tokens_may_come_nothing_is_proposed():
    assert propose(Path([4], branches=[70])) is None
    assert propose(Path([4], branches=[5])) is None
    assert propose(Path([])) is None


def test_a_request_without_a_grammar_gets_nothing():
    assert propose(None) is None


def test_a_mask_that_looks_ahead_is_asked():
    tree = propose(Knows([7, 8, 9]))
    assert tree is not None
    assert tree.tokens == (3, 7, 8, 9)
    assert propose(Knows([])) is None


def test_no_more_than_was_asked():
    for mask in (Path, Knows):
        for limits in ({"max_nodes": 2}, {"max_depth": 2}):
            tree = propose(mask([7, 8, 9]), **limits)
            assert tree is not None
            assert tree.tokens == (3, 7, 8)


def test_looking_ahead_leaves_the_mask_where_it_is():
    mask = Path([7, 8])
    propose(mask)
    propose(mask)
    mask.advance(7)
