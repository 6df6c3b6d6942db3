"""Rows that pad the vocabulary are neither read nor drawn."""

import numpy as np

from forerun.backends.base import LoadedModel
from forerun.models.weights import trim_vocabulary
from tests.tiny import RandomWeights, tiny_spec


def model(tied: bool) -> LoadedModel:
    spec = tiny_spec(vocab=96, tied=tied)
    return LoadedModel(spec, RandomWeights(spec, 0))


def test_every_vocabulary_matrix_ends_with_the_last_token() -> None:
    whole = model(tied=False)
    trimmed = trim_vocabulary(whole, 90)
    assert trimmed.spec.vocab_size == 90
    for name, shape in trimmed.spec.weight_shapes().items():
        assert trimmed.weights.shape(name) == shape
        assert np.array_equal(trimmed.weights.read(name), whole.weights.read(name)[: shape[0]])
    assert trimmed.weights.num_bytes("embed") == whole.weights.num_bytes("embed") * 90 // 96


def test_a_vocabulary_without_padding_stays_as_it_is() -> None:
    whole = model(tied=True)
    assert trim_vocabulary(whole, 96) is whole
