"""HeadFile: the checkpoint of a trained head, from safetensors or a PyTorch file, and its tensors under logical names.

A checkpoint is a folder with config.json and one weight file of a published name, or a weight file alone. Integer
tensors (maps between vocabularies) are read as numbers, everything else as float32.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError, ModelNotFound, UnsupportedModel
from forerun.models.files.dequantise import PLAIN
from forerun.models.files.heads_torch import read_torch
from forerun.models.files.safetensors import CONFIG, SafetensorsFile, read_json

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1}
INTEGERS = {"I64": np.int64, "I32": np.int32, "BOOL": np.uint8}
TORCH_ENDINGS = (".bin", ".pt", ".pth")


@dataclass(frozen=True)
class HeadTensor:
    """A tensor of a checkpoint. raw  (start, stop) -> bytes start .. stop-1 of its row-major data, little-endian"""

    shape: tuple[int, ...]
    dtype: str
    raw: Callable[[int, int], npt.NDArray[np.uint8]]

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry of the first axis."""
        return ITEM_BYTES[self.dtype] * int(np.prod(self.shape[1:], dtype=np.int64))

    def read(self, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Entries start..stop of the first axis."""
        numbers = PLAIN[self.dtype](self.raw(start * self.row_bytes, stop * self.row_bytes))
        return numbers.reshape(stop - start, *self.shape[1:])


class HeadFile:
    """An opened checkpoint. Raises ModelNotFound, ModelFileError, UnsupportedModel.

    where     its path, for messages              config    config.json, {} without one
    metadata  texts of a safetensors header       tensors   by name in the file
    """

    def __init__(self, path: Path, names: Seq[str]) -> None:
        """names  weight files that a folder may hold, in order of preference"""
        self.where = str(path)
        self.config: Mapping[str, Any] = {}
        self.metadata: Mapping[str, Any] = {}
        if not path.exists():
            raise ModelNotFound(f"{path} does not exist: give the folder or the file of a head's checkpoint")
        file = path
        if path.is_dir():
            file = next((path / name for name in names if (path / name).is_file()), path)
            if file is path:
                raise ModelFileError(f"{path} has none of {', '.join(names)}: fetch the head's weights")
        config = file.parent / CONFIG
        if config.is_file():
            self.config = read_json(config)
        self.tensors = self._torch(file) if file.suffix in TORCH_ENDINGS else self._safetensors(file)

    def _safetensors(self, path: Path) -> dict[str, HeadTensor]:
        file = SafetensorsFile(path, ITEM_BYTES)
        self.metadata = file.metadata if isinstance(file.metadata, dict) else {}

        def reader(start: int) -> Callable[[int, int], npt.NDArray[np.uint8]]:
            return lambda first, last: file.file.bytes_at(start + first, last - first)

        return {name: HeadTensor(t.shape, t.dtype, reader(t.start)) for name, t in file.tensors.items()}

    def _torch(self, path: Path) -> dict[str, HeadTensor]:
        def reader(data: npt.NDArray[np.uint8]) -> Callable[[int, int], npt.NDArray[np.uint8]]:
            return lambda first, last: data[first:last]

        return {name: HeadTensor(shape, dtype, reader(data)) for name, (shape, dtype, data) in read_torch(path).items()}

    def integers(self, name: str) -> npt.NDArray[np.int64]:
        """A whole tensor of integers."""
        tensor = self.tensors[name]
        if tensor.dtype not in INTEGERS:
            raise ModelFileError(f"{self.where}: tensor {name!r} is {tensor.dtype}, not integers; fetch it again")
        count = tensor.row_bytes * (tensor.shape[0] if tensor.shape else 1)
        return tensor.raw(0, count).view(INTEGERS[tensor.dtype]).astype(np.int64).reshape(tensor.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor. Raises ModelFileError when it is missing."""
        if name not in self.tensors:
            raise ModelFileError(f"{self.where}: tensor {name!r} is missing; fetch the head again")
        return self.tensors[name].shape


@dataclass(frozen=True)
class HeadSource:
    """Where a logical weight comes from: a tensor, or columns start..stop-1 of it."""

    tensor: str
    columns: tuple[int, int] | None = None


class HeadWeights:
    """A checkpoint's tensors under logical names. Implements `Weights`.

    Raises ModelFileError when a tensor is missing, has a wrong shape or is read by nobody.
    """

    def __init__(
        self,
        file: HeadFile,
        sources: Mapping[str, HeadSource],
        shapes: Mapping[str, tuple[int, ...]],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        """shapes  of the logical weights   ignored  tensors that no weight comes from"""
        self._tensors, self._sources, self._shapes = file.tensors, sources, dict(shapes)
        for name, shape in shapes.items():
            source = sources[name]
            found = file.shape(source.tensor)
            if source.columns is not None and len(found) == 2 and source.columns[1] <= found[1]:
                found = (found[0], source.columns[1] - source.columns[0])
            if found != shape:
                raise ModelFileError(
                    f"{file.where}: tensor {source.tensor!r} gives {name} the shape {found}, expected {shape}; "
                    "fetch the head again"
                )
            if file.tensors[source.tensor].dtype not in PLAIN:
                raise ModelFileError(f"{file.where}: tensor {source.tensor!r} holds integers; fetch the head again")
        unread = set(file.tensors) - {sources[name].tensor for name in shapes} - ignored
        if unread:
            raise UnsupportedModel(
                f"{file.where}: tensor {min(unread)!r} ({len(unread)} in all) is not part of a head that forerun "
                "knows; use an unmodified checkpoint"
            )

    def __contains__(self, name: str) -> bool:
        return name in self._shapes

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape."""
        return self._shapes[name]

    def stored_format(self, name: str) -> str:
        """Data type in the file."""
        return self._tensors[self._sources[name].tensor].dtype

    def num_bytes(self, name: str) -> int:
        """Bytes in the file."""
        return ITEM_BYTES[self.stored_format(name)] * int(np.prod(self._shapes[name], dtype=np.int64))

    def read(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.float32]:
        """Rows start..stop as float32, C-contiguous."""
        source = self._sources[name]
        rows = self._tensors[source.tensor].read(start, self._shapes[name][0] if stop is None else stop)
        if source.columns is not None:
            rows = rows[:, source.columns[0] : source.columns[1]]
        return np.ascontiguousarray(rows)

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows start..stop as float32 bytes: a head has no quantised formats."""
        return self.read(name, start, stop).view(np.uint8)
