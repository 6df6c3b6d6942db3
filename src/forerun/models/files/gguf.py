"""GGUF files, version 2 and 3, whole or split into parts: metadata and tensors.

Place: read once when a model is opened. The header is parsed here over a memory map, because no size in it may be
trusted: every count, length and offset is checked against the file's length before anything is allocated for it.
Type numbers and block sizes come from the `gguf` package.

    header   "GGUF", version u32, number of tensors u64, number of keys u64
    keys     name, value type u32, value                          a string is its length u64, then UTF-8
    tensors  name, number of dimensions u32, dimensions u64 (fastest first), type u32, offset u64
    data     from the next multiple of general.alignment on; offsets count from there
"""

import re
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError, UnsupportedModel
from forerun.models.files.dequantise import dequantise
from forerun.models.files.mapped import MAX_NAME, MappedFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
FORMATS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
MAX_DIMENSIONS = 4
MAX_SHOWN = 60  # characters of a key in an error; keys may have 64 kB
PART_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")

SCALARS = {  # value type -> little-endian code of struct and numpy
    gguf.GGUFValueType.UINT8: "<u1",
    gguf.GGUFValueType.INT8: "<i1",
    gguf.GGUFValueType.UINT16: "<u2",
    gguf.GGUFValueType.INT16: "<i2",
    gguf.GGUFValueType.UINT32: "<u4",
    gguf.GGUFValueType.INT32: "<i4",
    gguf.GGUFValueType.FLOAT32: "<f4",
    gguf.GGUFValueType.BOOL: "?",
    gguf.GGUFValueType.UINT64: "<u8",
    gguf.GGUFValueType.INT64: "<i8",
    gguf.GGUFValueType.FLOAT64: "<f8",
}
# Fewest bytes that one entry can take: bounds a count before the loop over it.
MIN_KEY_BYTES = 8 + 4 + 1
MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """Where a tensor lies. shape is row-major (slowest first), start counts from the beginning of its part."""

    name: str
    shape: tuple[int, ...]
    kind: gguf.GGMLQuantizationType
    start: int
    num_bytes: int


class _Cursor:
    """Reads the header forwards; every step is checked against the file's end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.at = 0

    def corrupt(self, fact: str) -> ModelFileError:
        return ModelFileError(f"{self.file.path} is truncated or corrupt: {fact}; fetch it again")

    def need(self, count: int, what: str) -> None:
        if count > self.file.size - self.at:
            raise self.corrupt(f"{what} at byte {self.at} runs past the end of the file ({self.file.size} bytes)")

    def take(self, count: int, what: str) -> bytes:
        self.need(count, what)
        self.at += count
        return self.file.map[self.at - count : self.at]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def text(self, what: str) -> str:
        raw = self.take(self.u64(what), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.corrupt(f"{what} before byte {self.at} is not UTF-8") from error

    def texts(self, count: int, what: str) -> list[str]:
        """An array of strings: the loop that decides how fast a file with a big vocabulary opens."""
        self.need(8 * count, what)
        data, at, end = self.file.map, self.at, self.file.size
        length_at = struct.Struct("<Q").unpack_from
        out = []
        try:
            for _ in range(count):
                (length,) = length_at(data, at)
                start = at + 8
                at = start + length
                if at > end:
                    raise self.corrupt(f"{what}: a string at byte {start} runs past the end of the file")
                out.append(data[start:at].decode("utf-8"))
        except (struct.error, UnicodeDecodeError) as error:
            raise self.corrupt(f"{what}: the string at byte {at} is cut off or not UTF-8") from error
        self.at = at
        return out

    def value(self, key: str) -> Any:
        what = f"the value of {key[:MAX_SHOWN]!r}"
        kind = self.u32(what)
        if kind == gguf.GGUFValueType.STRING:
            return self.text(what)
        if kind != gguf.GGUFValueType.ARRAY:
            return self.numbers(kind, 1, what)[0]
        kind, count = self.u32(what), self.u64(what)
        if kind == gguf.GGUFValueType.STRING:
            return self.texts(count, what)
        if kind == gguf.GGUFValueType.ARRAY:
            raise UnsupportedModel(f"{self.file.path}: {what} is an array of arrays; use a file without it")
        return self.numbers(kind, count, what)

    def numbers(self, kind: int, count: int, what: str) -> list[Any]:
        code = SCALARS.get(kind)  # type: ignore[call-overload]
        if code is None:
            raise self.corrupt(f"{what} has the unknown type {kind}")
        dtype = np.dtype(code)
        self.need(count * dtype.itemsize, what)
        raw = self.take(count * dtype.itemsize, what)
        if dtype.kind == "b":
            return [byte != 0 for byte in raw]
        out: list[Any] = np.frombuffer(raw, dtype).tolist()
        return out

    def tensor(self, index: int) -> tuple[str, tuple[int, ...], int, int]:
        """Name, row-major shape, type number and offset."""
        name = self.text(f"the name of tensor {index}")
        if len(name) > MAX_NAME:
            raise self.corrupt(f"the name of tensor {index} has {len(name)} characters")
        what = f"the entry of tensor {name!r}"
        dimensions = self.u32(what)
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.corrupt(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self.u64(what) for _ in range(dimensions))[::-1]
        return name, shape, self.u32(what), self.u64(what)


class GgufPart:
    """One file: its metadata and where its tensors lie. Raises ModelFileError, UnsupportedModel."""

    def __init__(self, path: Path) -> None:
        self.file = MappedFile(path)
        cursor = _Cursor(self.file)
        if cursor.take(4, "the magic") != MAGIC:
            raise ModelFileError(f"{path} is not a GGUF file; give a .gguf file or a Hugging Face folder")
        version = cursor.u32("the version")
        if version not in VERSIONS:
            order = "big-endian" if version & 0xFFFF == 0 and version else f"version {version}"
            raise UnsupportedModel(f"{path} is a {order} GGUF file; convert it to little-endian version 3")
        num_tensors, num_keys = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
        cursor.need(num_keys * MIN_KEY_BYTES + num_tensors * MIN_TENSOR_BYTES, "the list of keys and tensors")
        self.metadata: dict[str, Any] = {}
        for index in range(num_keys):
            key = cursor.text(f"the name of key {index}")
            if key in self.metadata:
                raise cursor.corrupt(f"the key {key[:MAX_SHOWN]!r} stands twice")
            self.metadata[key] = cursor.value(key)
        entries = [cursor.tensor(index) for index in range(num_tensors)]
        alignment = self._alignment(cursor)
        data_start = -(-cursor.at // alignment) * alignment
        self.tensors: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in entries:
            if name in self.tensors:
                raise cursor.corrupt(f"the tensor {name!r} stands twice")
            if offset % alignment:
                raise cursor.corrupt(f"tensor {name!r} starts at {offset}, not a multiple of {alignment}")
            self.tensors[name] = self._tensor(cursor, name, shape, kind, data_start + offset)
        self._check_overlap(cursor)

    def _alignment(self, cursor: _Cursor) -> int:
        value = self.metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value < 1 or value & (value - 1):
            raise cursor.corrupt(f"general.alignment is {value!r:.60}, not a power of two")
        return value

    def _tensor(self, cursor: _Cursor, name: str, shape: tuple[int, ...], number: int, start: int) -> GgufTensor:
        try:
            kind = gguf.GGMLQuantizationType(number)
        except ValueError:
            kind = None
        if kind is None or kind.name not in FORMATS:
            shown = f"type {number}" if kind is None else kind.name
            raise UnsupportedModel(
                f"{self.file.path}: tensor {name!r} is stored as {shown}; use a file with one of {', '.join(FORMATS)}"
            )
        block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        count = 1
        for size in shape:
            count *= size
        if count == 0 or shape[-1] % block_size:
            raise cursor.corrupt(f"tensor {name!r} of shape {shape} cannot hold blocks of {block_size} ({kind.name})")
        num_bytes = count // block_size * block_bytes
        if start + num_bytes > self.file.size:
            raise cursor.corrupt(f"tensor {name!r} ends at byte {start + num_bytes}, the file at {self.file.size}")
        return GgufTensor(name, shape, kind, start, num_bytes)

    def _check_overlap(self, cursor: _Cursor) -> None:
        end, before = 0, ""
        for tensor in sorted(self.tensors.values(), key=lambda tensor: tensor.start):
            if tensor.start < end:
                raise cursor.corrupt(f"the data of tensors {before!r} and {tensor.name!r} overlap")
            end, before = tensor.start + tensor.num_bytes, tensor.name


class GgufFile:
    """A GGUF model in one file or several parts. Implements `TensorFile`.

    `path` may name any part; metadata is that of the first. Raises ModelFileError, UnsupportedModel.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        opened = GgufPart(path)
        paths = _part_paths(path, opened.metadata)
        self.parts = tuple(opened if part == path else GgufPart(part) for part in paths)
        self.metadata = self.parts[0].metadata
        self.size_bytes = sum(part.file.size for part in self.parts)
        for index, part in enumerate(self.parts):
            if len(self.parts) > 1 and part.metadata.get("split.no") != index:
                raise ModelFileError(
                    f"{part.file.path} says it is part {part.metadata.get('split.no')!r:.60}, expected {index}; "
                    "restore the parts' original names"
                )
        total = self.metadata.get("split.tensors.count")
        if len(self.parts) > 1 and total != len(self._places):
            raise ModelFileError(
                f"{path}: the parts hold {len(self._places)} tensors of {total!r:.60}; fetch them again"
            )

    @cached_property
    def _places(self) -> dict[str, tuple[GgufPart, GgufTensor]]:
        places: dict[str, tuple[GgufPart, GgufTensor]] = {}
        for part in self.parts:
            for name, tensor in part.tensors.items():
                if name in places:
                    raise ModelFileError(f"{part.file.path}: tensor {name!r} is in two parts; fetch the parts again")
                places[name] = part, tensor
        return places

    def names(self) -> tuple[str, ...]:
        """Tensor names in file order."""
        return tuple(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Row-major shape."""
        return self._places[name][1].shape

    def stored_format(self, name: str) -> str:
        """Name of the GGML type."""
        return self._places[name][1].kind.name

    def num_bytes(self, name: str) -> int:
        """Bytes in the file."""
        return self._places[name][1].num_bytes

    def read(self, name: str, start: int, stop: int) -> npt.NDArray[np.float32]:
        """Entries start..stop of the first axis, dequantised."""
        part, tensor = self._places[name]
        if len(tensor.shape) == 1:  # a vector is a single row of blocks
            whole = self._decode(part, tensor, tensor.start, tensor.num_bytes, tensor.shape)
            return np.ascontiguousarray(whole[start:stop])
        row_bytes = tensor.num_bytes // tensor.shape[0]
        shape = (stop - start, *tensor.shape[1:])
        return self._decode(part, tensor, tensor.start + start * row_bytes, (stop - start) * row_bytes, shape)

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows start..stop of a matrix as they are: [stop - start, bytes of a row]."""
        part, tensor = self._places[name]
        row_bytes = tensor.num_bytes // tensor.shape[0]
        first, count = tensor.start + start * row_bytes, (stop - start) * row_bytes
        return part.file.bytes_at(first, count).reshape(stop - start, row_bytes)

    @staticmethod
    def _decode(
        part: GgufPart, tensor: GgufTensor, start: int, count: int, shape: tuple[int, ...]
    ) -> npt.NDArray[np.float32]:
        numbers = dequantise(part.file.bytes_at(start, count), tensor.kind, int(np.prod(shape)))
        part.file.release(start, count)
        return numbers.reshape(shape)


def _part_paths(path: Path, metadata: dict[str, Any]) -> list[Path]:
    """Paths of all parts in order. Raises ModelFileError naming the first one that is missing."""
    count = metadata.get("split.count", 1)
    if type(count) is not int:
        raise ModelFileError(f"{path} is corrupt: split.count is {count!r:.60}; fetch it again")
    if count in (0, 1):
        return [path]
    match = PART_NAME.fullmatch(path.name)
    if match is None or int(match["count"]) != count:
        raise ModelFileError(
            f"{path} is one of {count} parts, but its name does not end in -0000N-of-{count:05d}.gguf; "
            "restore the parts' original names"
        )
    paths = [path.with_name(f"{match['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
    for part in paths:
        if not part.is_file():
            raise ModelFileError(f"{part} is missing, one of {count} parts of the model; fetch it into the same folder")
    return paths
