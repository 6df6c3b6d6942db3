"""Candidates of a row: the target's own draw comes first, in every sampling; drawn ones follow their distribution."""

from dataclasses import replace

import numpy as np
import pytest

from forerun.batch import DrawRequest
from forerun.sampling.processors import History, processed_probs
from forerun.sampling.walk import draw_row
from forerun.speculation.drafting.candidates import MOST, NONE, choose, draft_key, draw_one
from forerun.speculation.tree import DraftTree

VOCAB = 60
COLUMNS = np.arange(VOCAB, dtype=np.int32)
TREE = DraftTree.root_only(1)


def a_row(seed: int, size: int = VOCAB) -> np.ndarray:
    return (2 * np.random.default_rng(seed).standard_normal(size)).astype(np.float32)


def a_draw(**options) -> DrawRequest:
    return DrawRequest(0, TREE, position=40, key=(11, 22), **options)


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


DRAWS = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 1.3, "top_k": 12, "top_p": 0.8, "min_p": 0.05},
    "penalties": {"repetition_penalty": 1.8, "presence_penalty": 1.0, "frequency_penalty": 0.7},
    "bias": {"bias_ids": ids(7, 9), "bias_values": np.array([4.0, -50.0])},
    "banned": {"banned": ids(3, 4), "banned_until": 42, "temperature": 0.7},
}
HISTORY = {"history_ids": ids(*range(0, 60, 3)), "history_counts": ids(*[i % 3 for i in range(20)])}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("path", [[], [5, 9, 5]])
def test_the_first_candidate_is_what_the_target_draws(name: str, path: list[int]) -> None:
    draw = a_draw(**DRAWS[name], **(HISTORY if name == "penalties" else {}))
    for seed in range(40):
        row = a_row(seed)
        history = History(draw)
        for token in path:
            history.add(token)
        found = choose(row, COLUMNS, draw, path, 4)
        assert found.tokens[0] == draw_row(row, draw, 40 + len(path), history)
        assert len(set(found.tokens)) == len(found.tokens)
        assert list(found.scores) == sorted(found.scores, reverse=True)
        assert 0.0 < sum(found.scores) < 1.0 + 1e-6
        assert found.probs is None


@pytest.mark.parametrize("name", DRAWS)
def test_what_a_grammar_forbids_is_not_proposed(name: str) -> None:
    """Of a row with a mask those are proposed that the target may draw, the one that it draws first."""
    draw = a_draw(**DRAWS[name], **(HISTORY if name == "penalties" else {}))
    mask = np.array([0xAAAAAAAA, 0x0A], np.uint32)  # odd ids, and none above 36
    for seed in range(40):
        row = a_row(seed)
        found = choose(row, COLUMNS, draw, [], 4, mask)
        assert all(token % 2 and token < 36 for token in found.tokens)
        masked = replace(draw, masks=mask[None])
        assert found.tokens[0] == draw_row(row, masked, 40, History(masked))


def test_a_drawn_candidate_follows_the_masked_distribution() -> None:
    draw, row = a_draw(temperature=1.0), a_row(3)
    mask = np.array([0xAAAAAAAA, 0x0A], np.uint32)
    masked = replace(draw, masks=mask[None])
    want = processed_probs(row, masked, 40, History(masked))
    found = draw_one(row, COLUMNS, draw, [], VOCAB, mask)
    np.testing.assert_allclose(found.probs, want, atol=1e-12)
    assert want[found.tokens[0]] > 0


def test_a_grammar_applies_to_target_ids() -> None:
    columns = ids(*reversed(range(VOCAB)))
    found = choose(a_row(4), columns, a_draw(), [], VOCAB, np.array([0, 1 << 5], np.uint32))
    assert found.tokens == (37,)
    assert choose(a_row(4), columns, a_draw(), [], 4, np.zeros(2, np.uint32)) == NONE


def test_filters_leave_fewer_candidates_than_asked_for() -> None:
    assert len(choose(a_row(1), COLUMNS, a_draw(temperature=1.0, top_k=2), [], 5).tokens) == 2


def test_scores_of_a_greedy_draft_are_its_probabilities() -> None:
    row = a_row(2)
    found = choose(row, COLUMNS, a_draw(), [], 3)
    probs = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
    assert np.allclose(found.scores, np.sort(probs)[::-1][:3], rtol=1e-5)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"bias_ids": ids(1), "bias_values": np.array([1.0])}])
def test_columns_name_tokens_and_some_are_never_proposed(options) -> None:
    columns = np.where(COLUMNS % 2 == 0, COLUMNS * 10, -1).astype(np.int32)
    row = a_row(3)
    row[1] = 100.0  # a column without a token
    found = choose(row, columns, a_draw(**options), [], 6)
    assert found.tokens
    assert all(token % 20 == 0 for token in found.tokens)


def test_a_bias_lifts_a_token_from_anywhere() -> None:
    row = np.sort(a_row(4, 3 * MOST))[::-1].copy()
    last = len(row) - 1
    draw = a_draw(bias_ids=ids(last), bias_values=np.array([40.0]))
    columns = np.arange(len(row), dtype=np.int32)
    assert choose(row, columns, draw, [], 1).tokens == (last,)
    assert choose(row, columns, replace(draw, temperature=1.0), [], 1).tokens == (last,)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_damaged_row_proposes_nothing(bad: float, temperature: float) -> None:
    row = a_row(5)
    row[8] = bad
    draw = a_draw(temperature=temperature)
    assert choose(row, COLUMNS, draw, [], 2) == NONE
    assert draw_one(row, COLUMNS, replace(draw, temperature=1.0), [], VOCAB) == NONE


class TestDrawn:
    """Drafts for verification by rejection."""

    @pytest.mark.parametrize("name", ["sampled", "filtered", "banned"])
    def test_the_distribution_is_the_processed_one(self, name: str) -> None:
        draw, row = a_draw(**DRAWS[name]), a_row(6)
        found = draw_one(row, COLUMNS, draw, [], VOCAB)
        wanted = processed_probs(row, draw, 40, History(draw))
        assert found.probs is not None
        assert wanted is not None
        assert np.array_equal(found.probs, wanted)
        assert found.scores == (wanted.max(),)

    def test_tokens_are_drawn_from_it(self) -> None:
        """Chi-square over 4000 keys and 60 tokens, merged where fewer than 10 are expected; far below the 1e-6 tail."""
        row, n = a_row(7), 4000
        drawn = [draw_one(row, COLUMNS, replace(a_draw(temperature=1.0), key=(k, 5)), [], VOCAB) for k in range(n)]
        counts = np.bincount([found.tokens[0] for found in drawn], minlength=VOCAB)
        assert drawn[0].probs is not None
        expected = n * drawn[0].probs
        large = expected >= 10
        bins = [(counts[large], expected[large]), ([counts[~large].sum()], [expected[~large].sum()])]
        found, wanted = (np.concatenate(part) for part in zip(*bins, strict=True))
        assert ((found - wanted) ** 2 / wanted).sum() < len(wanted) + 6 * np.sqrt(2 * len(wanted))

    def test_it_is_not_the_target_s_noise(self) -> None:
        row, draw = a_row(8), a_draw(temperature=1.0)
        keys = [(k, 9) for k in range(200)]
        same = [
            draw_one(row, COLUMNS, replace(draw, key=key), [], VOCAB).tokens
            == choose(row, COLUMNS, replace(draw, key=key), [], 1).tokens
            for key in keys
        ]
        probs = processed_probs(row, draw, 40, History(draw))
        assert probs is not None
        assert np.mean(same) < (probs**2).sum() + 0.15
        assert draft_key((1, 2)) != (1, 2)
