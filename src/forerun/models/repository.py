"""Repository: what a Hugging Face repository holds, asked once with a deadline.

The `huggingface_hub` library knows the API and the user's token; the bytes are brought by models/download, which can
prove that a file is complete. All files of a Repository are of one commit.
"""

import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypeVar

from forerun.errors import DownloadError, ModelNotFound
from forerun.models.download import Content, RemoteFile

T = TypeVar("T")

REQUEST_TIMEOUT_S = 5.0
DEADLINE_S = 10.0  # name lookup included, which has no timeout of its own


@dataclass(frozen=True)
class Repository:
    """The files of one commit of a hub repository, by name."""

    repo_id: str
    commit: str
    files: dict[str, RemoteFile]


def list_repository(repo_id: str, revision: str | None = None) -> Repository:
    """Ask the hub what `repo_id` holds.

    Raises ModelNotFound when there is no such repository or revision, DownloadError when the hub cannot be asked.
    """
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    return _within_deadline(lambda: _list(repo_id, revision, endpoint), f"the hub at {endpoint} does not answer")


def _list(repo_id: str, revision: str | None, endpoint: str) -> Repository:
    from huggingface_hub import HfApi, errors, get_token, hf_hub_url

    where = f"{repo_id} at revision {revision}" if revision else repo_id
    try:
        info = HfApi(endpoint=endpoint).model_info(
            repo_id, revision=revision, files_metadata=True, timeout=REQUEST_TIMEOUT_S
        )
    except errors.GatedRepoError:
        raise DownloadError(
            f"{repo_id} is gated: accept its terms at {endpoint}/{repo_id}, then set HF_TOKEN to your access token"
        ) from None
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.HFValidationError):
        raise ModelNotFound(
            f"the hub has no {where} that you may read: check the spelling, or set HF_TOKEN if it is private"
        ) from None
    except Exception as error:  # the library's HTTP client, and so its exceptions, differ between its versions
        if getattr(getattr(error, "response", None), "status_code", None) in (401, 403):
            raise DownloadError(
                f"the hub refuses to show {where}: set HF_TOKEN to a valid access token that may read it"
            ) from None
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DownloadError(f"cannot ask the hub for {where}: {reason[0]}; check the network") from None
    commit = info.sha or revision or "main"
    token = get_token()
    headers = {"User-Agent": "forerun"} | ({"Authorization": f"Bearer {token}"} if token else {})
    files: dict[str, RemoteFile] = {}
    for entry in info.siblings or []:
        name = entry.rfilename
        if entry.size is None or not _is_plain(name):
            continue
        sha256 = entry.lfs.sha256 if entry.lfs else None
        url = hf_hub_url(repo_id, name, revision=commit, endpoint=endpoint)
        files[name] = RemoteFile(name, url, Content(entry.size, sha256, None if sha256 else entry.blob_id), headers)
    return Repository(repo_id, commit, files)


def _is_plain(name: str) -> bool:
    """Whether a file name from the network stays inside the folder that it is joined to."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name and not path.name.startswith(".")


def _within_deadline(call: Callable[[], T], complaint: str) -> T:
    answers: queue.Queue[T | BaseException] = queue.Queue()

    def work() -> None:
        try:
            answers.put(call())
        except BaseException as error:
            answers.put(error)

    # A daemon: a stuck name lookup must not keep the process alive.
    threading.Thread(target=work, daemon=True, name="forerun-hub").start()
    try:
        answer = answers.get(timeout=DEADLINE_S)
    except queue.Empty:
        raise DownloadError(f"{complaint} within {DEADLINE_S:.0f} s: check the network") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer
