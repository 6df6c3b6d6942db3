"""The walk: on any tree it draws what plain decoding draws, step by step, and nothing off the path."""

import math

import numpy as np
import pytest

from forerun.batch import NOT_DRAWN, NOT_FINITE
from forerun.sampling.processors import History
from forerun.sampling.walk import draw_batch, draw_row, hash_row, log_softmax_at
from forerun.speculation.tree import DraftTree

V = 12
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 1.2, "top_k": 9, "top_p": 0.95, "min_p": 0.01}
PENALISED = {
    **SAMPLED,
    "repetition_penalty": 1.3,
    "frequency_penalty": 0.7,
    "presence_penalty": 0.4,
    "history": {3: 0, 5: 2},
}
BANNED = {**PENALISED, "banned": [0, 1, 2, 3, 4, 5], "banned_until": 13, "bias": {6: 2.0}}


def model(path):
    """Logits of a context: a hash of the path from the root, so every context has its own row."""
    return (np.random.default_rng([7, *path]).normal(size=V) * 2).astype(np.float32)


def plain_decoding(make_request, options, length):
    """Tokens drawn one at a time, each with a fresh request whose history holds the earlier ones."""
    tokens = []
    history = dict(options.get("history", {}))
    for i in range(length):
        request = make_request(**{**options, "history": history}, position=10 + i)
        token = draw_row(model(tokens), request, 10 + i, History(request))
        tokens.append(token)
        history[token] = history.get(token, 0) + 1
    return tokens


def draw_tree(make_request, make_batch, options, tree):
    """One walk over `tree`, and its drawn tokens in order."""
    request = make_request(**options, tree=tree, first_output=2)
    rows = [model([tree.tokens[i] for i in tree.path(node)]) for node in range(len(tree))]
    drawn = draw_batch(lambda output: rows[output - 2], make_batch(len(tree) + 3, request))
    node, tokens, visited = 0, [], []
    while node is not None:
        visited.append(node + 2)
        tokens.append(int(drawn.tokens[node + 2]))
        node = tree.child(node, tokens[-1])
    off_path = np.delete(drawn.tokens, visited)
    assert (off_path == NOT_DRAWN).all()
    return tokens


@pytest.mark.parametrize("options", [GREEDY, SAMPLED, PENALISED, BANNED])
@pytest.mark.parametrize("key", [(1, 2), (3, 4), (5, 6), (7, 8)])
def test_chains_and_trees_draw_what_plain_decoding_draws(make_request, make_batch, options, key):
    options = {**options, "key": key}
    truth = plain_decoding(make_request, options, 6)
    wrong = [(token + 1) % V for token in truth]
    right = DraftTree.chain(0, truth[:5])
    half = DraftTree.chain(0, [*truth[:2], *wrong[2:5]])
    tree = DraftTree.from_paths(0, [wrong[:3], [truth[0], wrong[1]], truth[:4], [*truth[:2], wrong[2]]])
    assert draw_tree(make_request, make_batch, options, DraftTree.root_only(0)) == truth[:1]
    assert draw_tree(make_request, make_batch, options, right) == truth
    assert draw_tree(make_request, make_batch, options, half) == truth[:3]
    assert draw_tree(make_request, make_batch, options, tree) == truth[:5]


def test_the_penalties_of_the_walk_change_what_is_drawn(make_request, make_batch):
    """The law above could hold with penalties that do nothing; here the drafted token is penalised away."""
    row = np.zeros(V, np.float32)
    row[4], row[7] = 2.0, 1.5
    chain = DraftTree.chain(0, [4, 4])
    for penalty in ({"frequency_penalty": 1.0}, {"presence_penalty": 1.0}, {"repetition_penalty": 2.0}):
        request = make_request(tree=chain, **penalty)
        assert draw_batch(lambda _: row, make_batch(3, request)).tokens.tolist() == [4, 7, NOT_DRAWN]


def test_a_ban_ends_inside_the_walk(make_request, make_batch):
    row = np.zeros(V, np.float32)
    row[4], row[7] = 2.0, 1.5
    request = make_request(tree=DraftTree.chain(0, [7, 7]), banned=[4], banned_until=12)
    assert draw_batch(lambda _: row, make_batch(3, request)).tokens.tolist() == [7, 7, 4]


def test_a_row_that_is_not_finite_stops_its_walk_and_no_other(make_request, make_batch):
    rows = np.zeros((5, V), np.float32)
    rows[:, 3] = 1.0
    rows[1, 9] = math.nan
    sick = make_request(tree=DraftTree.chain(0, [3, 3]), logprobs=1, logits_hash=True)
    well = make_request(tree=DraftTree.chain(0, [3]), first_output=3)
    drawn = draw_batch(lambda output: rows[output], make_batch(5, sick, well))
    assert drawn.tokens.tolist() == [3, NOT_FINITE, NOT_DRAWN, 3, 3]
    assert drawn.top[1] == ()
    assert math.isnan(drawn.logprobs[1])


def test_logprobs_are_of_the_unprocessed_row(make_request, make_batch):
    row = np.log(np.array([0.1, 0.2, 0.4, 0.2, 0.1])).astype(np.float32)
    request = make_request(bias={0: 50.0}, logprobs=3)
    drawn = draw_batch(lambda _: row, make_batch(1, request))
    assert drawn.tokens.tolist() == [0]
    assert drawn.logprobs[0] == pytest.approx(math.log(0.1), abs=1e-6)
    assert [token for token, _ in drawn.top[0]] == [2, 1, 3]  # equal ones in id order
    assert [value for _, value in drawn.top[0]] == pytest.approx(np.log([0.4, 0.2, 0.2]), abs=1e-6)


def test_logprobs_of_zero_alternatives_and_of_more_than_there_are():
    row = np.array([1.0, -math.inf, 2.0], np.float32)
    value, top = log_softmax_at(row, 2, 0)
    assert top == ()
    assert value == pytest.approx(-math.log1p(math.exp(-1)))
    assert [token for token, _ in log_softmax_at(row, 2, 99)[1]] == [2, 0]


def test_hashes_tell_one_bit_and_are_kept_for_drawn_rows_only(make_request, make_batch):
    row = np.arange(V, dtype=np.float32)
    other = row.copy()
    other[3] = np.nextafter(other[3], np.float32(9))
    assert hash_row(row) != hash_row(other)
    request = make_request(tree=DraftTree.chain(0, [1]), logits_hash=True)
    drawn = draw_batch(lambda _: row, make_batch(2, request))
    assert drawn.hashes == (hash_row(row), b"")
    assert len(drawn.hashes[0]) == 8
