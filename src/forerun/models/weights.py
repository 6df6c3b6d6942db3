"""FileWeights: a file's tensors under logical names, in the shapes and the row order that the decoder expects.

Place: between a file reader (`files/*`) and a backend's load. `TensorFile` is what both readers implement; a family
says which tensor each logical weight comes from.

GGUF stores Llama's q and k with each head's rows interleaved for adjacent rotary pairs. Undoing it moves rows only:

    file row of head h     2 j + t        (pair j, first or second element t)
    logical row of head h  t D / 2 + j
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from forerun.backends.base import LoadedModel, Weights
from forerun.errors import ModelFileError
from forerun.models.spec import ModelSpec

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]
T = TypeVar("T", bound=np.generic)

VOCABULARY = ("embed", "output")  # logical weights with one row per token


class TensorFile(Protocol):
    """A model file or folder, read by tensor."""

    def names(self) -> tuple[str, ...]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def stored_format(self, name: str) -> str: ...

    def num_bytes(self, name: str) -> int: ...

    def read(self, name: str, start: int, stop: int) -> Float32: ...

    def read_stored(self, name: str, start: int, stop: int) -> UInt8: ...


@dataclass(frozen=True)
class TensorSource:
    """The tensor behind a logical weight. interleaved_heads  D when the rows of each head of D must be reordered."""

    tensor: str
    interleaved_heads: int | None = None


class FileWeights:
    """Implements `Weights` over a file. Raises ModelFileError when a tensor is missing or has a wrong shape."""

    def __init__(
        self,
        file: TensorFile,
        spec: ModelSpec,
        sources: Mapping[str, TensorSource],
        ignored: frozenset[str],
        where: str,
    ) -> None:
        """ignored  tensors that may be in the file though no weight comes from them."""
        self._file = file
        self._sources = sources
        present = set(file.names())
        for name, shape in spec.weight_shapes().items():
            tensor = sources[name].tensor
            if tensor not in present:
                raise ModelFileError(f"{where}: tensor {tensor!r} of shape {shape} is missing; fetch the model again")
            found = file.shape(tensor)
            if found != shape:
                raise ModelFileError(
                    f"{where}: tensor {tensor!r} has shape {found}, expected {shape}; fetch the model again"
                )
        unread = present - {source.tensor for source in sources.values()} - ignored
        if unread:
            raise ModelFileError(
                f"{where}: tensor {min(unread)!r} ({len(unread)} in all) is not part of a {spec.family} model as its "
                "configuration describes it; use an unmodified checkpoint"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._sources

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape."""
        return self._file.shape(self._sources[name].tensor)

    def stored_format(self, name: str) -> str:
        """Format in the file."""
        return self._file.stored_format(self._sources[name].tensor)

    def num_bytes(self, name: str) -> int:
        """Bytes in the file."""
        return self._file.num_bytes(self._sources[name].tensor)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Rows start..stop as float32, C-contiguous."""
        stop = self.shape(name)[0] if stop is None else stop
        return self._in_order(name, start, stop, self._file.read)

    def read_stored(self, name: str, start: int, stop: int) -> UInt8:
        """Rows start..stop as the file has them: [stop - start, bytes of a row], C-contiguous."""
        return self._in_order(name, start, stop, self._file.read_stored)

    def _in_order(
        self, name: str, start: int, stop: int, read: Callable[[str, int, int], npt.NDArray[T]]
    ) -> npt.NDArray[T]:
        source = self._sources[name]
        if source.interleaved_heads is None:
            return read(source.tensor, start, stop)
        head_dim = source.interleaved_heads
        first = start // head_dim * head_dim  # whole heads, because a half-split row may come from anywhere in its head
        rows = read(source.tensor, first, -(-stop // head_dim) * head_dim)
        halves = rows.reshape(-1, head_dim // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
        return np.ascontiguousarray(halves[start - first : stop - first])


class TrimmedWeights:
    """`Weights` whose vocabulary matrices end at row `vocab_size`: padding rows behind it are never read."""

    def __init__(self, weights: Weights, vocab_size: int) -> None:
        self._weights = weights
        self._vocab_size = vocab_size

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape."""
        shape = self._weights.shape(name)
        return (self._vocab_size, *shape[1:]) if name in VOCABULARY else shape

    def stored_format(self, name: str) -> str:
        """Format in the file."""
        return self._weights.stored_format(name)

    def num_bytes(self, name: str) -> int:
        """Bytes in the file, of the rows that are read."""
        stored = self._weights.num_bytes(name)
        return stored * self.shape(name)[0] // self._weights.shape(name)[0]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Rows start..stop as float32."""
        return self._weights.read(name, start, self.shape(name)[0] if stop is None else stop)

    def read_stored(self, name: str, start: int, stop: int) -> UInt8:
        """Rows start..stop as the file has them."""
        return self._weights.read_stored(name, start, stop)


def trim_vocabulary(model: LoadedModel, vocab_size: int) -> LoadedModel:
    """The model without the rows that pad its vocabulary, so that no id without a text can be drawn."""
    if vocab_size >= model.spec.vocab_size:
        return model
    return LoadedModel(replace(model.spec, vocab_size=vocab_size), TrimmedWeights(model.weights, vocab_size))
