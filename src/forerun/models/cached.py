"""ModelFolder: one repository's files in the local cache, with a record of the complete ones.

    <cache>/models/<organisation>--<name>/.forerun.json     the record: name -> length, hash, origin
                                         /.lock             held while a process downloads into the folder
                                         /<files>           complete; `.part` files beside them are not

A file counts as present only if the record names it and its length agrees; the record is written after the file.
"""

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from forerun.models.aliases import cache_folder
from forerun.models.download import disk_errors, sync_folder

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


@dataclass(frozen=True)
class FileRecord:
    """One complete file: its length, its SHA-256 (or git's SHA-1), and where it came from."""

    size: int
    digest: str
    origin: str


@dataclass
class _Record:
    snapshot: bool = False  # every file of a safetensors repository is here
    files: dict[str, FileRecord] = field(default_factory=dict)


class ModelFolder:
    """The cached files of one repository. Reading needs no lock, changing does."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of(cls, source: str) -> "ModelFolder":
        """The folder of a hub repository "organisation/name", or of a wheel's package."""
        return cls(cache_folder() / "models" / source.replace("/", "--"))

    @classmethod
    def all(cls) -> "list[ModelFolder]":
        """Every folder that holds a complete file."""
        records = sorted((cache_folder() / "models").glob("*/.forerun.json"))
        return [folder for path in records if (folder := cls(path.parent)).files()]

    @property
    def source(self) -> str:
        return self.root.name.replace("--", "/", 1)

    def files(self) -> dict[str, FileRecord]:
        """The complete files by name."""
        return {name: entry for name, entry in self._read().files.items() if self._complete(name, entry)}

    def is_snapshot(self) -> bool:
        """Whether every file of a safetensors repository is here."""
        record = self._read()
        return record.snapshot and all(self._complete(name, entry) for name, entry in record.files.items())

    def add(self, files: dict[str, FileRecord]) -> None:
        """Record complete files."""
        record = self._read()
        self._write(_Record(record.snapshot, record.files | files))

    def mark_snapshot(self) -> None:
        """Record that every file of a safetensors repository is here."""
        self._write(_Record(True, self._read().files))

    def drop(self, names: Iterable[str]) -> None:
        """Delete files of another version, before the folder takes files of the wanted one."""
        record = self._read()
        stale = set(names) & record.files.keys()
        if stale:
            self._write(_Record(False, {name: entry for name, entry in record.files.items() if name not in stale}))
            with disk_errors(self.root):
                for name in stale:
                    (self.root / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from changing this folder; waits for one that does. A dead process lets go."""
        with disk_errors(self.root):
            self.root.mkdir(parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("wb")
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _complete(self, name: str, entry: FileRecord) -> bool:
        path = self.root / name
        return path.is_file() and path.stat().st_size == entry.size

    def _read(self) -> _Record:
        try:
            document = json.loads((self.root / ".forerun.json").read_text(encoding="utf-8"))
            files = {name: FileRecord(**entry) for name, entry in document["files"].items()}
            return _Record(document["snapshot"] is True, files)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return _Record()  # a damaged record only costs a check or a download

    def _write(self, record: _Record) -> None:
        part = self.root / ".forerun.json.part"
        with disk_errors(self.root):
            with part.open("w", encoding="utf-8") as out:
                json.dump(asdict(record), out, indent=1)
                out.flush()
                os.fsync(out.fileno())
            part.replace(self.root / ".forerun.json")
            sync_folder(self.root)


def gguf_groups(names: Iterable[str]) -> dict[str, list[str]]:
    """Group GGUF files into models: the parts of a split model, in order, under their common name.

    ["a.gguf", "b-00002-of-00002.gguf", "b-00001-of-00002.gguf"] gives {"a.gguf": [...], "b.gguf": [part 1, part 2]}.
    A split model that lacks a part is left out.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(names):
        if match := _SPLIT.fullmatch(name):
            groups.setdefault(f"{match['stem']}.gguf", []).append(name)
        elif name.lower().endswith(".gguf"):
            groups.setdefault(name, []).append(name)
    return {key: members for key, members in groups.items() if _has_all_parts(members)}


def _has_all_parts(members: list[str]) -> bool:
    match = _SPLIT.fullmatch(members[0])
    return match is None or [f"{n:05d}" for n in range(1, int(match["count"]) + 1)] == [
        m["part"] for m in map(_SPLIT.fullmatch, members) if m is not None
    ]


def model_files(path: Path) -> list[Path]:
    """The files of the model at `path`: all parts of a split GGUF, or what a folder holds."""
    if path.is_dir():
        return sorted(entry for entry in path.iterdir() if entry.is_file() and not entry.name.startswith("."))
    for members in gguf_groups(entry.name for entry in path.parent.iterdir()).values():
        if path.name in members:
            return [path.parent / member for member in members]
    return [path]


def stored_bytes(path: Path) -> int:
    """Bytes on the disk of the model at `path`."""
    return sum(file.stat().st_size for file in model_files(path))
