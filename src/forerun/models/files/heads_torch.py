"""read_torch: the tensors of a PyTorch checkpoint, without PyTorch and without running what the file says.

    a .bin or .pt file   zip archive, stored without compression
      */data.pkl         pickled mapping name -> tensor; a tensor names its storage, offset, shape and strides
      */data/<key>       the storages' bytes

A pickle may call anything, so only the names that a mapping of tensors needs are known here; any other is refused.
"""

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError, UnsupportedModel

DTYPES = {
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "BoolStorage": "BOOL",
}
ITEM_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "BOOL": 1}
MAX_PICKLE_BYTES = 10_000_000  # names and shapes only

Tensor = tuple[tuple[int, ...], str, npt.NDArray[np.uint8]]  # shape, data type, row-major bytes


def read_torch(path: Path) -> dict[str, Tensor]:
    """Tensors by name. Raises ModelFileError on a damaged file, UnsupportedModel when it holds more than tensors."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _tensors(path, archive)
    except (zipfile.BadZipFile, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path} is no PyTorch checkpoint that can be read: {error}; fetch it again") from error
    except pickle.UnpicklingError as error:
        raise UnsupportedModel(f"{path}: {error}; convert it to safetensors") from error


def _tensors(path: Path, archive: zipfile.ZipFile) -> dict[str, Tensor]:
    pickles = [info for info in archive.infolist() if info.filename.endswith("/data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE_BYTES:
        raise ModelFileError(f"{path} has no single data.pkl; fetch it again")
    folder = pickles[0].filename.removesuffix("data.pkl") + "data/"
    found = _Tensors(io.BytesIO(archive.read(pickles[0])), archive, folder).load()
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise pickle.UnpicklingError("it holds something else than tensors by name")
    for name, tensor in found.items():
        if not isinstance(tensor, tuple):
            raise pickle.UnpicklingError(f"{name!r:.60} is not a tensor")
    return found


class _Mapping(dict[str, Any]):
    """Stands for OrderedDict: a module's state has an attribute beside its tensors, which a plain dict cannot take."""


class _Tensors(pickle.Unpickler):
    """Unpickles a mapping of tensors, and nothing else."""

    def __init__(self, file: io.BytesIO, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self._archive, self._folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Mapping
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        raise pickle.UnpicklingError(f"it refers to {module}.{name}"[:100])

    def persistent_load(self, pid: Any) -> tuple[str, npt.NDArray[np.uint8]]:
        kind, dtype, key, _, size = pid
        if kind != "storage" or dtype not in ITEM_BYTES:
            raise pickle.UnpicklingError(f"its storage is of the kind {dtype!r:.60}")
        data = np.frombuffer(self._archive.read(f"{self._folder}{key}"), np.uint8)
        if len(data) != size * ITEM_BYTES[dtype]:
            raise ValueError(f"storage {key} has {len(data)} bytes, expected {size * ITEM_BYTES[dtype]}")
        return dtype, data


def _rebuild(
    storage: tuple[str, npt.NDArray[np.uint8]], offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any
) -> Tensor:
    dtype, data = storage
    wanted, step = [], 1
    for size in reversed(shape):
        wanted.append(step)
        step *= size
    if any(have != want for have, want, size in zip(stride, reversed(wanted), shape, strict=True) if size > 1):
        raise pickle.UnpicklingError("a tensor is not stored row by row")
    item = ITEM_BYTES[dtype]
    if offset < 0 or (offset + step) * item > len(data):
        raise ValueError("a tensor runs past the end of its storage")
    return tuple(shape), dtype, data[offset * item : (offset + step) * item]
