"""The native walk takes exactly the oracle's decisions (forerun/sampling/walk.py), on every option and odd size, with
every kernel table, on any number of threads."""

import itertools
import math

import numpy as np
import pytest

from forerun import _native
from forerun.batch import NOT_FINITE, Batch, DrawRequest
from forerun.sampling.flatten import pack_draws, unpack_drawn
from forerun.sampling.noise import make_key
from forerun.sampling.processors import History, processed_probs
from forerun.sampling.walk import draw_batch, hash_row
from forerun.speculation.tree import DraftTree
from tests.backends.native_ops import TABLES

NONE = np.empty(0, np.int32)
POOLS = {threads: _native.ThreadPool(threads) for threads in (1, 3)}


def native_draw(logits, draws, tables=TABLES):
    """What every table draws, on one thread and on three: it must be the same."""
    drawn = []
    for table, threads in itertools.product(tables, POOLS):
        flat = pack_draws(tuple(draws), len(logits))
        _native.Drawers(table, POOLS[threads], logits.shape[1]).draw(logits, *flat.arguments)
        drawn.append(flat)
    for flat in drawn[1:]:
        np.testing.assert_array_equal(flat.ids, drawn[0].ids)
        np.testing.assert_array_equal(flat.logprobs, drawn[0].logprobs)
    return unpack_drawn(drawn[0], lambda output: hash_row(logits[output]))


def oracle_draw(logits, draws):
    rows = np.arange(len(logits), dtype=np.int32)
    batch = Batch(NONE, NONE, NONE, NONE, NONE, NONE.reshape(0, 0), NONE, NONE.astype(np.uint64), rows, tuple(draws))
    return draw_batch(lambda output: logits[output], batch)


def assert_equal(logits, draws):
    got, want = native_draw(logits, draws), oracle_draw(logits, draws)
    assert got.tokens.tolist() == want.tokens.tolist()
    assert got.hashes == want.hashes
    np.testing.assert_allclose(got.logprobs, want.logprobs, rtol=1e-12, atol=1e-12)
    for mine, theirs in zip(got.top, want.top, strict=True):
        assert [token for token, _ in mine] == [token for token, _ in theirs]
        assert [value for _, value in mine] == pytest.approx([value for _, value in theirs], rel=1e-12, abs=1e-12)
    return want


def random_tree(rng, vocabulary):
    parents = [-1] + [int(rng.integers(0, row)) for row in range(1, int(rng.integers(1, 9)))]
    seen, tokens = set(), [0]
    for parent in parents[1:]:
        token = int(rng.integers(0, vocabulary))
        while (parent, token) in seen:
            token += 1
        seen.add((parent, token))
        tokens.append(token)
    return DraftTree(tuple(tokens), tuple(parents), (1.0,) * len(tokens))


def random_logits(rng, rows, vocabulary):
    kind = rng.integers(0, 5)
    scale = float(rng.choice([0.1, 1.0, 4.0, 20.0]))
    z = (rng.normal(size=(rows, vocabulary)) * scale).astype(np.float32)
    if kind == 1:
        z = np.round(z * 2) / 2  # many ties
    elif kind == 2:
        z[rng.random(z.shape) < 0.3] = -np.inf
    elif kind == 3:
        z[:] = np.float32(scale)  # all equal
    elif kind == 4:
        z[rng.random(z.shape) < 0.5 / vocabulary] = rng.choice([np.nan, np.inf])
    return z


def random_request(rng, vocabulary, first_output, tree):
    ids = lambda n: rng.choice(vocabulary + 3, size=min(n, vocabulary), replace=False).astype(np.int32)  # noqa: E731
    is_on = lambda: rng.random() < 0.5  # noqa: E731
    history, bias, banned = (ids(int(rng.integers(0, 30))) if is_on() else NONE for _ in range(3))
    position = int(rng.integers(0, 5000))
    return DrawRequest(
        first_output=first_output,
        tree=tree,
        position=position,
        key=(int(rng.integers(0, 2**32)), int(rng.integers(0, 2**32))),
        temperature=float(rng.choice([0.0, 1e-6, 0.2, 0.7, 1.0, 1.0, 1.5, 30.0])),
        top_k=int(rng.choice([0, 0, 0, 1, 2, 7, 40, vocabulary - 1, vocabulary, vocabulary + 9])),
        top_p=float(rng.choice([1.0, 1.0, 0.01, 0.5, 0.9, 0.95, 0.999999])),
        min_p=float(rng.choice([0.0, 0.0, 0.001, 0.1, 1.0])),
        repetition_penalty=float(rng.choice([1.0, 1.0, 0.8, 1.2])),
        frequency_penalty=float(rng.choice([0.0, 0.0, -0.3, 0.6])),
        presence_penalty=float(rng.choice([0.0, 0.0, -0.2, 0.9])),
        bias_ids=bias,
        bias_values=rng.normal(size=len(bias)) * 5,
        history_ids=history,
        history_counts=rng.integers(0, 4, size=len(history)).astype(np.int32),
        banned=banned,
        banned_until=position + int(rng.integers(0, 4)),
        logprobs=[None, None, 0, 1, 5, 20, 1000][rng.integers(0, 7)],
        logits_hash=bool(is_on()),
        masks=random_masks(rng, vocabulary, len(tree)) if rng.random() < 0.3 else None,
    )


def random_masks(rng, vocabulary, rows):
    density = rng.choice([0.0, 0.02, 0.5, 1.0], size=(rows, 1))
    bits = rng.random((rows, -(-vocabulary // 32) * 32)) < density  # bits behind the vocabulary are set too
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100, 5003])
def test_equals_the_oracle_on_random_steps(vocabulary):
    rng = np.random.default_rng(vocabulary)
    num_drawn = 0
    for _ in range(60):
        trees = [random_tree(rng, vocabulary) for _ in range(int(rng.integers(1, 5)))]
        logits = random_logits(rng, sum(len(tree) for tree in trees), vocabulary)
        firsts = np.cumsum([0] + [len(tree) for tree in trees[:-1]]).tolist()
        draws = [random_request(rng, vocabulary, *pair) for pair in zip(firsts, trees, strict=True)]
        num_drawn += int((assert_equal(logits, draws).tokens >= 0).sum())
    assert num_drawn > 100


@pytest.mark.parametrize(
    "options", [{}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.05}, {"top_k": 100, "top_p": 0.8, "min_p": 0.01}]
)
@pytest.mark.parametrize(("vocabulary", "rows"), [(49_152, 8), (151_936, 2), (262_144, 2)])
def test_equals_the_oracle_on_a_real_vocabulary(options, vocabulary, rows):
    rng = np.random.default_rng(8)
    logits = (rng.normal(size=(rows, vocabulary)) * np.linspace(0.1, 6, rows)[:, None]).astype(np.float32)
    for temperature in (0.3, 1.0, 2.0):
        root = DraftTree.root_only(0)
        assert_equal(
            logits, [DrawRequest(o, root, 70 + o, (o, 9), temperature, logprobs=3, **options) for o in range(rows)]
        )


@pytest.mark.parametrize(
    "options", [{"top_p": 0.95}, {"top_p": 0.5}, {"top_p": 1 - 1e-9}, {"min_p": 0.3}, {"top_p": 0.7, "min_p": 0.4}]
)
@pytest.mark.parametrize("spread", [0.0, 1e-4, 0.5, 3.0])
def test_equals_the_oracle_where_many_tokens_survive(options, spread):
    rng = np.random.default_rng(9)
    logits = (rng.normal(size=(3, 30_000)) * spread + 5).astype(np.float32)
    logits[1] = np.round(logits[1], 1)  # large groups of equal values: the prefix ends inside one
    logits[2, rng.random(30_000) < 0.5] = -np.inf
    root = DraftTree.root_only(0)
    for penalty in (0.0, 0.5):  # also as adjusted rows
        draws = [
            DrawRequest(
                o, root, 70 + o, (o, 9), 0.9, presence_penalty=penalty, history_ids=NONE, history_counts=NONE, **options
            )
            for o in range(3)
        ]
        assert_equal(logits, draws)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"presence_penalty": 1.0}])
def test_accepted_chains_are_walked_to_their_end(options):
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(7, 300)).astype(np.float32)
    path: list[int] = []
    for depth in range(7):
        draw = DrawRequest(0, DraftTree.chain(0, path), 50, (1, 2), **options)
        path.append(int(assert_equal(logits, [draw]).tokens[depth]))
    assert min(path) >= 0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_bad_value_is_found_wherever_it_is(bad, temperature):
    root = DraftTree.root_only(0)
    for vocabulary in (1, 16, 37, 600):
        logits = np.zeros((vocabulary, vocabulary), np.float32)
        np.fill_diagonal(logits, bad)
        draws = [DrawRequest(o, root, 5, (1, 2), temperature) for o in range(vocabulary)]
        assert (native_draw(logits, draws).tokens == NOT_FINITE).all()


def test_each_row_of_a_tree_has_its_own_mask():
    logits = np.zeros((4, 70), np.float32)
    masks = np.zeros((4, 3), np.uint32)
    for row, token in enumerate((33, 69, 5, 2)):
        masks[row, token // 32] = 1 << token % 32
    tree = DraftTree((0, 33, 69, 69), (-1, 0, 1, 0), (1.0,) * 4)
    drawn = assert_equal(logits, [DrawRequest(0, tree, 50, (1, 2), 0.8, masks=masks)])
    assert drawn.tokens.tolist() == [33, 69, 5, -1]


def test_a_mask_without_a_token_is_not_finite_and_a_short_one_forbids_the_rest():
    logits = np.arange(70, dtype=np.float32)[None]
    root = DraftTree.root_only(0)
    none, short = np.zeros((1, 3), np.uint32), np.full((1, 1), 0xFFFFFFFF, np.uint32)
    for temperature in (0.0, 1.0):
        assert assert_equal(logits, [DrawRequest(0, root, 5, (1, 2), temperature, masks=none)]).tokens == [NOT_FINITE]
        assert assert_equal(logits, [DrawRequest(0, root, 5, (1, 2), temperature, masks=short)]).tokens < 32


def test_rows_may_be_apart_in_memory():
    wide = np.random.default_rng(1).normal(size=(5, 100)).astype(np.float32)
    draws = [DrawRequest(o, DraftTree.root_only(0), 5, (1, o), 1.0) for o in range(5)]
    assert native_draw(wide[:, :90], draws).tokens.tolist() == oracle_draw(wide[:, :90].copy(), draws).tokens.tolist()


def test_a_request_outside_the_logits_is_refused():
    logits = np.zeros((2, 9), np.float32)
    with pytest.raises(ValueError, match="row of logits"):
        native_draw(logits, [DrawRequest(1, DraftTree.chain(0, [1]), 5, (1, 2))])


def g_statistic(counts, probs):
    expected = probs * counts.sum()
    keep = counts > 0
    return 2 * float((counts[keep] * np.log(counts[keep] / expected[keep])).sum())


def test_draws_follow_the_processed_distribution_and_a_wrong_temperature_is_found():
    """200 000 draws over 32 bins: a total variation of 0.0125 is found with probability above .999 at 1e-6."""
    row = (np.random.default_rng(2).normal(size=32)).astype(np.float32)
    logits, num_steps = np.broadcast_to(row, (2000, 32)).copy(), 100
    root, key = DraftTree.root_only(0), make_key(99, 0)
    request = DrawRequest(0, root, 0, key, 1.0)
    probs = processed_probs(row, request, 0, History(request))
    statistics = {}
    for temperature in (1.0, 1.03):
        counts = np.zeros(32)
        for step in range(num_steps):
            draws = [DrawRequest(o, root, step * 2000 + o, key, temperature) for o in range(2000)]
            counts += np.bincount(native_draw(logits, draws, TABLES[:1]).tokens, minlength=32)
        statistics[temperature] = g_statistic(counts, probs)
    critical = 82.9  # chi-squared, 31 degrees of freedom, upper 1e-6
    assert statistics[1.0] < critical < statistics[1.03]
