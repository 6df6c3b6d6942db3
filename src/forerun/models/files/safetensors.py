"""Hugging Face folders: config.json and the weights in model.safetensors, or in shards listed by an index.

    a safetensors file   length of the header u64, header JSON {name: {dtype, shape, data_offsets}}, data

The header is parsed here, so that its sizes are checked against the file's length before use and bfloat16 needs neither
torch nor a third numpy type.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.files.dequantise import PLAIN
from forerun.models.files.mapped import MAX_NAME, MappedFile

ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
MAX_JSON_BYTES = 100_000_000  # the format's own limit for a header


@dataclass(frozen=True)
class SafetensorsTensor:
    """Where a tensor lies; start counts from the beginning of its file."""

    shape: tuple[int, ...]
    dtype: str
    start: int
    num_bytes: int


class SafetensorsFile:
    """One file. Raises ModelFileError, UnsupportedModel.

    item_bytes  data types that may occur, with the bytes of a number
    metadata    texts by name that the file carries beside its tensors
    """

    def __init__(self, path: Path, item_bytes: Mapping[str, int] = ITEM_BYTES) -> None:
        self._item_bytes = item_bytes
        self.file = MappedFile(path)
        length = int.from_bytes(self.file.map[:8], "little")
        if self.file.size < 8 or length > min(self.file.size - 8, MAX_JSON_BYTES):
            raise self._corrupt(f"its header of {length} bytes runs past the end of the file")
        try:
            header = json.loads(self.file.map[8 : 8 + length])
        except (ValueError, RecursionError) as error:
            raise self._corrupt("its header is not JSON") from error
        if not isinstance(header, dict):
            raise self._corrupt("its header is not a JSON object")
        self.metadata: Any = header.pop("__metadata__", {})
        self.tensors = {name: self._tensor(name, entry, 8 + length) for name, entry in header.items()}
        end, before = 0, ""
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1].start):
            if tensor.start < end:
                raise self._corrupt(f"the data of tensors {before!r} and {name!r} overlap")
            end, before = tensor.start + tensor.num_bytes, name

    def _corrupt(self, fact: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path} is truncated or corrupt: {fact}; fetch it again")

    def _tensor(self, name: str, entry: Any, data_start: int) -> SafetensorsTensor:
        if len(name) > MAX_NAME:
            raise self._corrupt(f"a tensor's name has {len(name)} characters")
        try:
            dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
            sizes_are_whole = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        except (TypeError, KeyError, ValueError) as error:
            raise self._corrupt(f"the entry of tensor {name!r} is incomplete") from error
        if not sizes_are_whole or begin > end or data_start + end > self.file.size:
            raise self._corrupt(f"tensor {name!r} lies outside the file")
        if dtype not in self._item_bytes:
            known = ", ".join(self._item_bytes)
            raise UnsupportedModel(f"{self.file.path}: tensor {name!r} is stored as {dtype!r:.60}; use one of {known}")
        if math.prod(shape) * self._item_bytes[dtype] != end - begin:
            raise self._corrupt(f"tensor {name!r} of shape {shape!s:.60} does not fill its {end - begin} bytes")
        return SafetensorsTensor(shape, dtype, data_start + begin, end - begin)


class SafetensorsFolder:
    """A Hugging Face folder. Implements `TensorFile`. Raises ModelFileError, UnsupportedModel."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        if not (folder / CONFIG).is_file():
            raise ModelFileError(f"{folder} has no {CONFIG}; give a Hugging Face model folder or a .gguf file")
        self.config = read_json(folder / CONFIG)
        self.files = tuple(SafetensorsFile(path) for path in self._paths())
        self.size_bytes = sum(file.file.size for file in self.files)
        self._places: dict[str, tuple[SafetensorsFile, SafetensorsTensor]] = {}
        for file in self.files:
            for name, tensor in file.tensors.items():
                if name in self._places:
                    raise ModelFileError(f"{file.file.path}: tensor {name!r} is in two shards; fetch the model again")
                self._places[name] = file, tensor

    def _paths(self) -> list[Path]:
        if not (self.path / INDEX).is_file():
            if not (self.path / SINGLE).is_file():
                raise ModelFileError(f"{self.path} has neither {SINGLE} nor {INDEX}; fetch the safetensors weights")
            return [self.path / SINGLE]
        weight_map = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFileError(f"{self.path / INDEX} has no weight_map; fetch it again")
        if not all(isinstance(shard, str) and Path(shard).name == shard for shard in weight_map.values()):
            raise ModelFileError(f"{self.path / INDEX} names shards outside the folder; fetch it again")
        paths = [self.path / shard for shard in sorted(set(weight_map.values()))]
        for path in paths:
            if not path.is_file():
                raise ModelFileError(f"{path} is missing, one of {len(paths)} shards; fetch it into the same folder")
        return paths

    def names(self) -> tuple[str, ...]:
        """Tensor names in file order."""
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Row-major shape."""
        return self._places[name][1].shape

    def stored_format(self, name: str) -> str:
        """Name of the data type."""
        return self._places[name][1].dtype

    def num_bytes(self, name: str) -> int:
        """Bytes in the file."""
        return self._places[name][1].num_bytes

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Entries start..stop of the first axis as float32."""
        file, tensor = self._places[name]
        row_bytes = tensor.num_bytes // tensor.shape[0]
        begin, count = tensor.start + start * row_bytes, (stop - start) * row_bytes
        numbers = PLAIN[tensor.dtype](file.file.bytes_at(begin, count))
        file.file.release(begin, count)
        return numbers.reshape(stop - start, *tensor.shape[1:])

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows start..stop of a matrix as they are: [stop - start, bytes of a row]."""
        file, tensor = self._places[name]
        row_bytes = tensor.num_bytes // tensor.shape[0]
        rows = file.file.bytes_at(tensor.start + start * row_bytes, (stop - start) * row_bytes)
        return rows.reshape(stop - start, row_bytes)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object in a file. Raises ModelFileError."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelFileError(f"{path} is too large for a JSON description; fetch it again")
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelFileError(f"cannot read {path}: {error.strerror}; check its permissions") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path} is not JSON: {error}; fetch it again") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{path} is not a JSON object; fetch it again")
    return value
