"""The trimmed output matrix: its columns are the kept tokens, context tokens get rows, and each row is the file's."""

import numpy as np
import pytest

from forerun.backends.base import LoadedModel
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.vocabularies import trimmed_vocabulary
from forerun.speculation.vocabularies.trimmed_vocabulary import KEPT, TrimmedVocabulary
from tests.tiny import RandomWeights, tiny_spec

VOCAB = 300


@pytest.fixture
def model() -> LoadedModel:
    spec = tiny_spec(tied=False, vocab=VOCAB)
    return LoadedModel(spec, RandomWeights(spec, 1))


def a_text(number: int, *tokens: int) -> Sequence:
    return Sequence(number, Request("r", tokens, SamplingParams()), 0, 0, (0, 0), list(tokens), len(tokens))


@pytest.fixture
def small(model, monkeypatch) -> TrimmedVocabulary:
    """64 kept tokens, control tokens 250 and 251, 16 rows for others; reloads are recorded."""
    monkeypatch.setattr(trimmed_vocabulary, "EXTRA", 16)
    vocabulary = TrimmedVocabulary(model, 60, 280, lambda token: token in (250, 251, 290))
    vocabulary.reloaded = []
    vocabulary.reload = lambda *call: vocabulary.reloaded.append(call)
    return vocabulary


def test_kept_tokens_and_control_tokens_have_columns(small) -> None:
    columns = small.columns.tolist()
    assert columns == [*range(64), 250, 251, *[-1] * 14, *[-1] * 16]
    assert small.shapes[KEPT] == (96, 64)


def test_rows_are_the_files(small, model) -> None:
    small.prepare([a_text(0, 100, 5, 200)])
    weights, whole = small.trimmed.weights, model.weights.read("output")
    assert weights.shape(KEPT) == (96, 64)
    used = small.columns >= 0
    assert np.array_equal(weights.read(KEPT)[used], whole[small.columns[used]])
    assert np.array_equal(weights.read_stored(KEPT, 80, 82), model.weights.read_stored("output", 0, VOCAB)[[100, 200]])
    assert np.array_equal(weights.read("embed"), model.weights.read("embed"))
    assert weights.stored_format(KEPT) == "F32"
    assert weights.num_bytes(KEPT) == 96 * 64 * 4
    assert KEPT in weights


def test_context_tokens_get_columns_once(small) -> None:
    text = a_text(0, 3, 100, 101, 100)
    small.prepare([text])
    assert small.columns[80:83].tolist() == [100, 101, -1]
    assert small.reloaded == [(KEPT, 80, 96)]
    small.prepare([text])
    text.tokens.append(101)
    small.prepare([text])
    assert len(small.reloaded) == 1  # nothing new, nothing packed
    text.tokens += [102, 295]  # the second is unknown to the target
    small.prepare([text])
    assert small.columns[80:84].tolist() == [100, 101, 102, -1]


def test_the_least_recently_seen_token_is_replaced(small) -> None:
    text = a_text(0, *range(100, 116))
    small.prepare([text])
    text.tokens += [100, 120, 121]
    small.prepare([text])
    held = small.columns[80:96].tolist()
    assert 100 in held
    assert 101 not in held
    assert 102 not in held
    assert sorted(held) == [100, *range(103, 116), 120, 121]


def test_ids_that_the_draft_does_not_know_are_read_as_another(small) -> None:
    assert list(small.to_draft([5, 279, 280, 299])) == [5, 279, 0, 0]
