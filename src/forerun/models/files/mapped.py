"""A file under a read-only memory map, shared by the GGUF and the safetensors reader.

A map reads only the pages that are touched, and `release` gives them back after a tensor was decoded, so a model's file
does not count twice in the process's memory. The file must not be truncated while it is mapped: replace model files by
renaming, as the hub does.
"""

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.errors import ModelFileError

MAX_NAME = 128  # characters of a tensor name: twice what GGUF allows; keeps errors to one readable line
RELEASE_BYTES = 1 << 20  # giving back less is not worth the system call


class MappedFile:
    """The bytes of a non-empty file. Raises ModelFileError when it cannot be opened or is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.size = file.seek(0, 2)
                if self.size == 0:
                    raise ModelFileError(f"{path} is empty; fetch it again")
                self.map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise ModelFileError(f"cannot read {path}: {error.strerror}; check the path and its permissions") from error

    def bytes_at(self, start: int, count: int) -> npt.NDArray[np.uint8]:
        """[count] uint8 view; the caller has checked the range against `size`."""
        return np.frombuffer(self.map, np.uint8, count, start)

    def release(self, start: int, count: int) -> None:
        """Drop the range's pages from this process; they are read again if touched again."""
        if count >= RELEASE_BYTES and hasattr(mmap, "MADV_DONTNEED"):
            first = start // mmap.PAGESIZE * mmap.PAGESIZE
            self.map.madvise(mmap.MADV_DONTNEED, first, start + count - first)
