"""How long loading a model takes from a warm page cache, and how much memory it needs at its peak.

Memory is the process's own: pages that the system can drop, such as those of the mapped file, do not count.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from forerun.llm import LLM

_STATUS = Path("/proc/self/status")
SAMPLE_S = 0.002


@dataclass(frozen=True)
class LoadCost:
    """Loading a model, tokenizer and KV store included.

    peak_bytes, kept_bytes  more than before loading, at most and afterwards; None where the system does not tell
    """

    seconds: float
    file_bytes: int
    peak_bytes: int | None
    kept_bytes: int | None


def warm(path: Path) -> None:
    """Read a model's files once, so that loading does not wait for a disk. path  as `resolve` gives it"""
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
    else:
        files = sorted(path.parent.glob(path.name.replace("-00001-of-", "-*-of-")))  # all parts of a split file
    buffer = bytearray(8 << 20)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def measure_load(load: Callable[[], LLM]) -> tuple[LLM, LoadCost]:
    """Load, watching the memory. The files should be `warm`."""
    before = _private_bytes()
    highest = before or 0
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(SAMPLE_S):
            highest = max(highest, _private_bytes() or 0)

    watcher = threading.Thread(target=watch, daemon=True)
    if before is not None:
        watcher.start()
    start = time.perf_counter()
    try:
        llm = load()
        seconds = time.perf_counter() - start
    finally:
        done.set()
        if before is not None:
            watcher.join()
    after = _private_bytes()
    if before is None or after is None:
        return llm, LoadCost(seconds, llm.files.size_bytes, None, None)
    return llm, LoadCost(seconds, llm.files.size_bytes, max(highest, after) - before, after - before)


def _private_bytes() -> int | None:
    """Resident memory of this process without file pages."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
