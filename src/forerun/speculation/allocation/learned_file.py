"""LearnedFile: what engines have learned about one subject, kept from one process to the next.

What it holds only ever changes speed, so it is read without trust and written without haste: a file that is damaged,
huge, or about something else, is ignored; a folder that cannot be written to is, too, after one line in the log.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence as Seq
from pathlib import Path

log = logging.getLogger(__name__)
MAX_BYTES = 1 << 20  # of a file that is read


class LearnedFile:
    """One file for one identity: everything that what was learned depends on, as texts.

    kind       begins the file's name, and says in messages what is kept
    version    of the form of its content
    max_files  of this kind in the folder, those not written for longest deleted first; None: no limit
    """

    def __init__(self, folder: Path, kind: str, version: int, identity: Seq[str], max_files: int | None = None) -> None:
        self._kind, self._format, self._identity = kind, f"forerun-{kind}-{version}", list(identity)
        self._max_files = max_files
        digest = hashlib.blake2b(json.dumps(self._identity).encode(), digest_size=10).hexdigest()
        self.path = folder / f"{kind}-{digest}.json"
        self._may_write = True

    def load(self) -> object:
        """The content that was kept, None when there is nothing of use."""
        try:
            with self.path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            document = json.loads(data) if len(data) <= MAX_BYTES else {}
            if document["format"] != self._format or document["identity"] != self._identity:
                return None
            content: object = document["content"]
            return content
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def keep(self, content: object) -> None:
        """Write, as a whole or not at all."""
        if not self._may_write:
            return
        document = {"format": self._format, "identity": self._identity, "content": content}
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix=f".{self._kind}-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(document, file)
                os.replace(name, self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._forget_oldest()
        except OSError as error:
            self._may_write = False
            log.info("%s files are not kept: %s", self._kind, error)

    def _forget_oldest(self) -> None:
        if self._max_files is None:
            return
        files = sorted(self.path.parent.glob(f"{self._kind}-*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[: max(0, len(files) - self._max_files)]:
            path.unlink(missing_ok=True)
