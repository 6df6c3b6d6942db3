"""SuccessorTable: for every token, what was likely to follow it the last time; its file; and the tables of all tenants.

What one tenant's requests have taught must not reach another's drafts: their speed would tell what others were
answered. So every salt has a table of its own.

The file belongs to one target: its name is a hash of the target's, and it holds that name's hash, the shape and a
checksum. Anything else is ignored, because a table can be learned again.

    magic 16 bytes | name hash 16 | vocabulary, width uint32 | checksum uint32 | table int32 [V, width] | hits float64
"""

import hashlib
import logging
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Sequence as Seq
from pathlib import Path

import numpy as np
import numpy.typing as npt

log = logging.getLogger(__name__)

MAGIC = b"forerun-recycle1"
HEADER = struct.Struct("<16s16sIII")
EMPTY = -1


class SuccessorTable:
    """[V, width] ids, most likely first, EMPTY where nothing is known; and how often each rank came true.

    hits  [width + 1] discounted number of draws that were the successor of rank r; the last entry: none of them
    """

    def __init__(self, vocab_size: int, hits: Seq[float]) -> None:
        self.width = len(hits) - 1
        self.ids: npt.NDArray[np.int32] = np.full((vocab_size, self.width), EMPTY, np.int32)
        self.hits: npt.NDArray[np.float64] = np.array(hits, np.float64)

    def update(self, tokens: Seq[int], successors: npt.NDArray[np.int32]) -> None:
        """Replace the successors of `tokens`; of equal tokens the last one counts. successors  [len(tokens), <= width]

        The table grows to hold unknown tokens.
        """
        most = max(tokens)
        if most >= len(self.ids):
            grown = np.full((max(most + 1, 2 * len(self.ids)), self.width), EMPTY, np.int32)
            grown[: len(self.ids)] = self.ids
            self.ids = grown
        self.ids[list(tokens), : successors.shape[1]] = successors

    def of(self, token: int) -> list[int]:
        """Known successors of a token, most likely first."""
        if token >= len(self.ids):
            return []
        row: list[int] = self.ids[token].tolist()
        return row if row[-1] != EMPTY else [successor for successor in row if successor != EMPTY]

    @property
    def num_bytes(self) -> int:
        """Memory that it takes."""
        return self.ids.nbytes + self.hits.nbytes

    # ---- file ----

    def save(self, folder: Path, model_name: str) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        path = file_of(folder, model_name)
        body = self.ids.tobytes() + self.hits.tobytes()
        head = HEADER.pack(MAGIC, name_hash(model_name), *self.ids.shape, zlib.crc32(body))
        folder.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}.tmp")  # other processes may save the same table
        try:
            draft.write_bytes(head + body)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)

    def load(self, folder: Path, model_name: str) -> bool:
        """Take over what the file holds, if there is one and it is sound; a line in the log says when it is not."""
        path = file_of(folder, model_name)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("successor table %s cannot be read and is ignored: %s", path, error)
            return False
        problem = self._take(data, name_hash(model_name))
        if problem:
            log.warning("successor table %s is ignored and will be learned again: %s", path, problem)
        return not problem

    def _take(self, data: bytes, name: bytes) -> str:
        """Take a file's content over; returns what is wrong with it."""
        ids_bytes, hits_bytes = self.ids.nbytes, self.hits.nbytes
        if len(data) != HEADER.size + ids_bytes + hits_bytes:
            return f"{len(data)} bytes instead of {HEADER.size + ids_bytes + hits_bytes}"
        magic, owner, vocab_size, width, checksum = HEADER.unpack_from(data)
        if magic != MAGIC or owner != name or (vocab_size, width) != self.ids.shape:
            return "it belongs to another version or another model"
        body = memoryview(data)[HEADER.size :]
        if zlib.crc32(body) != checksum:
            return "its checksum is wrong"
        ids = np.frombuffer(body[:ids_bytes], np.int32).reshape(self.ids.shape)
        hits = np.frombuffer(body[ids_bytes:], np.float64)
        if ids.min() < EMPTY or ids.max() >= vocab_size or not (np.isfinite(hits).all() and hits.min() >= 0):
            return "its numbers are out of range"
        if not hits.sum() > 0:
            return "its numbers are out of range"
        self.ids, self.hits = ids.copy(), hits.copy()
        return ""


class SuccessorTables:
    """A table for requests without a salt, and one for each salt within a budget of bytes, the least recently used one
    forgotten first.

    hits  what a new table begins with
    """

    def __init__(self, vocab_size: int, hits: Seq[float], max_salted_bytes: int) -> None:
        self._vocab_size, self._hits, self._max_bytes = vocab_size, hits, max_salted_bytes
        self.unsalted = SuccessorTable(vocab_size, hits)
        self._salted: OrderedDict[str, SuccessorTable] = OrderedDict()

    @property
    def salted_bytes(self) -> int:
        """Memory of all tables but the one without a salt."""
        return sum(table.num_bytes for table in list(self._salted.values()))  # a copy: asked while it works

    @property
    def num_bytes(self) -> int:
        """Memory of all tables."""
        return self.unsalted.num_bytes + self.salted_bytes

    def of(self, salt: str) -> SuccessorTable | None:
        """The table of a salt, a new one where there is none; None where not even one fits the budget."""
        if not salt:
            return self.unsalted
        table = self._salted.get(salt)
        if table is None:
            table = SuccessorTable(self._vocab_size, self._hits)
            while self._salted and self.salted_bytes + table.num_bytes > self._max_bytes:
                self._salted.popitem(last=False)
            if table.num_bytes > self._max_bytes:
                return None
            self._salted[salt] = table
        self._salted.move_to_end(salt)
        return table


def name_hash(model_name: str) -> bytes:
    """16 bytes that stand for a model's name."""
    return hashlib.blake2b(model_name.encode(), digest_size=16).digest()


def file_of(folder: Path, model_name: str) -> Path:
    """Where a model's table is kept."""
    return folder / f"recycle-{name_hash(model_name).hex()}.bin"
