"""FileWeights: row ranges of interleaved heads, and tensors that are missing, misshapen or left over."""

import numpy as np
import pytest

from forerun.errors import ModelFileError
from forerun.models.weights import FileWeights, Float32, TensorSource
from tests.tiny import RandomWeights, interleave_pairs, tiny_spec

SPEC = tiny_spec("llama", layers=1)
Q = "layers.0.attn.q"


class MemoryFile:
    """A TensorFile over arrays."""

    def __init__(self, arrays: dict[str, Float32]) -> None:
        self.arrays = arrays

    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.arrays[name].shape

    def stored_format(self, name: str) -> str:
        return "F32"

    def num_bytes(self, name: str) -> int:
        return self.arrays[name].nbytes

    def read(self, name: str, start: int, stop: int) -> Float32:
        return self.arrays[name][start:stop]


def arrays() -> dict[str, Float32]:
    return {name: RandomWeights(SPEC).read(name) for name in SPEC.weight_shapes()}


def open_weights(contents: dict[str, Float32], ignored: frozenset[str] = frozenset()) -> FileWeights:
    sources = {name: TensorSource(name) for name in SPEC.weight_shapes()}
    return FileWeights(MemoryFile(contents), SPEC, sources, ignored, "model")


def test_any_row_range_of_interleaved_heads() -> None:
    contents = arrays()
    expected = contents[Q]
    contents[Q] = interleave_pairs(expected, 16)
    sources = {name: TensorSource(name, 16 if name == Q else None) for name in SPEC.weight_shapes()}
    weights = FileWeights(MemoryFile(contents), SPEC, sources, frozenset(), "model")
    assert not np.array_equal(contents[Q], expected)
    for start in range(0, 64, 5):
        for stop in range(start, 65, 7):
            rows = weights.read(Q, start, stop)
            assert rows.flags.c_contiguous
            np.testing.assert_array_equal(rows, expected[start:stop])
    np.testing.assert_array_equal(weights.read(Q), expected)


def test_weights_protocol() -> None:
    weights = open_weights(arrays())
    assert Q in weights
    assert "output" not in weights
    assert (weights.shape(Q), weights.stored_format(Q), weights.num_bytes(Q)) == ((64, 64), "F32", 64 * 64 * 4)


def test_missing_misshapen_and_unread_tensors_are_named() -> None:
    contents = arrays()
    del contents[Q]
    with pytest.raises(ModelFileError, match=r"'layers\.0\.attn\.q' of shape \(64, 64\) is missing"):
        open_weights(contents)
    contents = arrays() | {Q: np.zeros((64, 63), np.float32)}
    with pytest.raises(ModelFileError, match=r"has shape \(64, 63\), expected \(64, 64\)"):
        open_weights(contents)
    contents = arrays() | {"extra": np.zeros(3, np.float32)}
    with pytest.raises(ModelFileError, match="'extra'"):
        open_weights(contents)
    assert Q in open_weights(contents, frozenset({"extra"}))
