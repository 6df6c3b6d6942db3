"""The native suffix automaton against counting by hand."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forerun import _native

DOCUMENTS = st.lists(st.lists(st.integers(0, 2), max_size=24), min_size=1, max_size=4)


def automaton_of(documents):
    automaton = _native.SuffixAutomaton()
    for number, document in enumerate(documents):
        if number:
            automaton.end_document()
        automaton.extend(document)
    return automaton


def followers(documents, context):
    """How often each token followed a context."""
    n = len(context)
    return Counter(doc[i + n] for doc in documents for i in range(len(doc) - n) if doc[i : i + n] == context)


def longest_known(documents, text):
    """Length of the longest suffix of `text` that occurs in the documents."""
    for n in range(len(text), 0, -1):
        if any(doc[i : i + n] == text[-n:] for doc in documents for i in range(len(doc) - n + 1)):
            return n
    return 0


def contexts(document):
    return [document[i:j] for i in range(len(document)) for j in range(i, len(document) + 1)]


def draft(automaton, match, max_nodes=16, max_depth=8, min_match=1, min_prob=0.01):
    return automaton.draft(match, max_nodes, max_depth, min_match, min_prob)


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS)
def test_counts_are_those_of_the_texts(documents):
    automaton = automaton_of(documents)
    for document in documents:
        for context in contexts(document):
            assert dict(automaton.successors(context)) == followers(documents, context)
    assert automaton.num_tokens == sum(map(len, documents))


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, st.lists(st.integers(0, 3), max_size=24))
def test_a_match_is_the_longest_known_suffix(documents, text):
    automaton, match = automaton_of(documents), _native.SuffixMatch()
    for end, token in enumerate(text, 1):
        automaton.advance(match, [token])
        assert match.length == longest_known(documents, text[:end])


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_a_match_stays_a_match_while_texts_arrive(before, after, text):
    """New texts split states; a match made before is still a suffix that occurs, and what it predicts did follow."""
    automaton, match = automaton_of(before), _native.SuffixMatch()
    automaton.advance(match, text)
    automaton.end_document()
    for document in after:
        automaton.extend(document)
        automaton.end_document()
    automaton.advance(match, [])
    assert longest_known(before, text) <= match.length <= longest_known(before + after, text)
    tokens, _, _ = draft(automaton, match, max_depth=1, min_prob=0.001)
    known = [set(followers(before + after, text[-n:])) for n in range(1, match.length + 1)]
    assert set(tokens[1:]) <= set().union(*known)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_the_repeated_suffix_occurred_before(text):
    match = automaton_of([text]).repeated_suffix()
    assert match.length == longest_known([text[:-1]], text)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 12), st.integers(0, 6))
def test_drafts_are_trees_within_their_limits(text, max_nodes, max_depth):
    automaton = automaton_of([text])
    tokens, parents, scores = draft(automaton, automaton.repeated_suffix(), max_nodes, max_depth, min_prob=0.05)
    assert len(tokens) == len(parents) == len(scores) <= max_nodes + 1
    depth, reached = [0], [1.0]
    for row in range(1, len(tokens)):
        assert 0 <= parents[row] < row
        assert 0 < scores[row] < 1
        depth.append(depth[parents[row]] + 1)
        reached.append(reached[parents[row]] * scores[row])
    assert max(depth) <= max_depth
    assert min(reached) >= 0.05
    assert reached == sorted(reached, reverse=True)
    assert len(set(zip(parents, tokens, strict=True))) == len(tokens)
    for row in range(len(tokens)):
        assert sum(score for score, parent in zip(scores, parents, strict=True) if parent == row) <= 1 + 1e-6


def test_the_most_frequent_continuation_is_the_likeliest():
    automaton = automaton_of([[1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2]])
    tokens, _, scores = draft(automaton, automaton.repeated_suffix(), max_depth=1)
    assert tokens[1] == 7
    assert dict(zip(tokens, scores, strict=True))[7] > dict(zip(tokens, scores, strict=True))[8]


def test_shorter_contexts_fill_in():
    #                            2 went on 9 as often as 3, but after 1 it never did
    automaton = automaton_of([[1, 2, 3, 5, 2, 9, 5, 1, 2, 3, 5, 2, 9, 5, 1, 2]])
    tokens, parents, _ = draft(automaton, automaton.repeated_suffix(), max_depth=1)
    assert tokens[1:] == [3, 9]
    assert parents[1:] == [0, 0]
    only_long, _, _ = draft(automaton, automaton.repeated_suffix(), max_depth=1, min_match=2)
    assert only_long[1:] == [3]


def test_drafts_go_on_periodically():
    automaton = automaton_of([[5, 1, 2, 3, 1, 2, 3]])
    tokens, _, _ = draft(automaton, automaton.repeated_suffix(), max_nodes=7, max_depth=7, min_prob=0.001)
    assert tokens[1:] == [1, 2, 3, 1, 2, 3, 1]


def test_trust_grows_with_success():
    def first_score(text):
        automaton = automaton_of([text])
        return draft(automaton, automaton.repeated_suffix(), max_depth=1, min_prob=0.001)[2][1]

    copied = list(range(1, 40)) * 2 + [1, 2, 3]
    broken = [token for i in range(60) for token in (1, 2, 3, 100 + i)] + [1, 2, 3]
    assert first_score(copied) > 0.9
    assert first_score(broken) < 0.1


def test_nothing_known_nothing_drafted():
    automaton = _native.SuffixAutomaton()
    assert draft(automaton, automaton.repeated_suffix()) == ([-1], [-1], [1.0])
    automaton.extend([1, 2, 3])
    assert draft(automaton, automaton.repeated_suffix()) == ([-1], [-1], [1.0])


def test_documents_do_not_run_into_each_other():
    automaton = automaton_of([[1, 2], [3, 4]])
    assert automaton.successors([2]) == []
    assert automaton.successors([1]) == [(2, 1)]


@pytest.mark.parametrize("text", [[7] * 20_000, [i * i % 251 for i in range(20_000)], list(range(20_000))])
def test_size_is_linear(text):
    """The bound of BYTES_PER_TOKEN holds for the most repetitive text and for one that never repeats."""
    from forerun.speculation.drafters.suffix import BYTES_PER_TOKEN

    automaton = automaton_of([text])
    assert automaton.num_states <= 2 * len(text)
    assert automaton.num_edges <= 3 * len(text)
    assert automaton.bytes <= BYTES_PER_TOKEN * len(text)


def test_bad_arguments_are_refused():
    automaton = _native.SuffixAutomaton()
    with pytest.raises(ValueError, match="negative"):
        automaton.extend([1, -1])
    assert automaton.num_tokens == 0
    other, match = automaton_of([[1, 2, 3]]), _native.SuffixMatch()
    other.advance(match, [1, 2, 3])
    with pytest.raises(ValueError, match="another automaton"):
        automaton.advance(match, [1])
    with pytest.raises(ValueError, match="another automaton"):
        draft(automaton, match)
