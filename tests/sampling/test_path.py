"""PathProbs: a tree row's distribution is the one that plain decoding draws from after the same tokens."""

from collections import Counter

import numpy as np
import pytest

from forerun.batch import DrawRequest
from forerun.sampling.path import PathProbs
from forerun.sampling.processors import History, processed_probs
from forerun.speculation.tree import DraftTree
from tests.fakes import path_logits

V = 32
PROMPT = (3, 9, 4)
TREE = DraftTree((4, 1, 2, 9, 9), (-1, 0, 0, 1, 3), (1.0,) * 5)
OPTIONS = {
    "plain": {},
    "filters": {"top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "penalties": {"repetition_penalty": 1.7, "frequency_penalty": 0.6, "presence_penalty": 0.4},
    "bias": {"bias_ids": np.array([5, 1], np.int32), "bias_values": np.array([4.0, -2.0])},
    "banned": {"banned": np.array([0, 9], np.int32), "banned_until": len(PROMPT) + 2},
    "greedy": {"temperature": 0.0},
}


def request(tree, output, **options):
    """A draw after PROMPT + output."""
    counts = {**dict.fromkeys(PROMPT, 0), **Counter(output)}
    return DrawRequest(
        first_output=5,
        tree=tree,
        position=len(PROMPT) + len(output),
        key=(1, 2),
        history_ids=np.array(list(counts), np.int32),
        history_counts=np.array(list(counts.values()), np.int32),
        **{"temperature": 0.8, **options},
    )


def logits_of(tree, output):
    """Logits of a tree row by its index among the output rows."""
    row = output - 5
    return path_logits((*PROMPT, *(tree.tokens[node] for node in tree.path(row))), V)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_every_row_sees_what_plain_decoding_would_see(options):
    probs = PathProbs(request(TREE, (), **options), lambda output: logits_of(TREE, output))
    for row in (4, 0, 3, 2, 1):  # in any order
        output = tuple(TREE.tokens[node] for node in TREE.path(row))
        plain = request(DraftTree.root_only(4), output, **options)
        expected = processed_probs(path_logits((*PROMPT, *output), V), plain, plain.position, History(plain))
        assert (probs(row) == expected).all()
        assert abs(expected.sum() - 1) < 1e-12


def test_a_wrong_path_would_be_seen():
    """Each of the options makes at least one row differ from the row's distribution without its path."""
    for name in ("penalties", "banned"):
        draw = request(TREE, (), **OPTIONS[name])
        probs = PathProbs(draw, lambda output: logits_of(TREE, output))
        pathless = processed_probs(logits_of(TREE, 9), draw, draw.position, History(draw))
        assert not (probs(4) == pathless).all()


def test_rows_are_fetched_and_processed_once():
    fetched = []

    def logits(output):
        fetched.append(output)
        return logits_of(TREE, output)

    probs = PathProbs(request(TREE, ()), logits)
    assert probs(1) is probs(1)
    assert (probs.logits(1) == logits_of(TREE, 6)).all()
    assert fetched == [6]


def test_a_row_that_is_not_finite():
    probs = PathProbs(request(TREE, ()), lambda output: np.full(V, np.nan, np.float32))
    assert probs(0) is None


def test_the_request_keeps_its_history():
    draw = request(TREE, (), repetition_penalty=2.0)
    before = draw.history_ids.copy()
    PathProbs(draw, lambda output: logits_of(TREE, output))(4)
    assert (draw.history_ids == before).all()
