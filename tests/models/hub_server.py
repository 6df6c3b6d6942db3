"""FakeHub: the part of the Hugging Face hub's HTTP interface that forerun uses, on 127.0.0.1, with faults on demand."""

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from forerun.models.aliases import cache_folder

COMMIT = "c0ffee" * 6 + "cafe"
WEIGHTS = os.urandom(3_000_000)
OTHER = os.urandom(5_000)


@dataclass
class FakeHub:
    """Repositories by name, each a dictionary of files; the other fields are faults and records."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cuts: dict[str, list[int]] = field(default_factory=dict)  # file -> after how many bytes to cut, one per request
    corrupt: set[str] = field(default_factory=set)  # files served with a flipped last byte
    missing: set[str] = field(default_factory=set)  # files that are listed and answer 404
    status: int | None = None  # answer everything with this status
    honour_ranges: bool = True
    redirect: bool = False  # send file requests to another host name, as the hub does for large files
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    url: str = ""

    def requests_of(self, name: str) -> list[dict[str, str]]:
        """Headers of the requests for one file."""
        return [headers for path, headers in self.requests if path.endswith(f"/{name}")]

    def listing(self, repo: str) -> dict[str, Any]:
        """The answer of /api/models/REPO?blobs=true; files over 1000 bytes are in LFS, as weights are."""
        siblings: list[dict[str, Any]] = []
        for name, data in self.repositories[repo].items():
            blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            entry: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": blob}
            if len(data) > 1000:
                entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        return {"id": repo, "modelId": repo, "sha": COMMIT, "siblings": siblings}


@contextlib.contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve `hub` until the block ends."""

    class Handler(_Handler):
        state = hub

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: FakeHub

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def do_GET(self) -> None:
        hub, path = self.state, unquote(urlsplit(self.path).path)
        hub.requests.append((path, dict(self.headers)))
        if hub.status is not None:
            self._answer(hub.status, b"")
        elif path.startswith("/api/models/"):
            self._list(path.removeprefix("/api/models/").partition("/revision/")[0])
        elif path.startswith("/cdn/"):
            self._file(path.removeprefix("/cdn/"))
        elif hub.redirect:
            port = hub.url.rpartition(":")[2]
            self._answer(302, b"", {"Location": f"http://localhost:{port}/cdn{path}"})
        else:
            self._file(path.removeprefix("/"))

    def _list(self, repo: str) -> None:
        if repo in self.state.repositories:
            self._answer(200, json.dumps(self.state.listing(repo)).encode())
        else:
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _file(self, path: str) -> None:
        hub = self.state
        repo, _, rest = path.partition("/resolve/")
        name = rest.partition("/")[2]
        if repo in hub.gated or name in hub.missing:
            self._answer(403 if repo in hub.gated else 404, b"")
            return
        data = hub.repositories[repo][name]
        if name in hub.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and hub.honour_ranges else 0
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        cuts = hub.cuts.get(name, [])
        self._answer(206 if start else 200, data[start:], headers, cuts.pop(0) if cuts else None)

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut_after: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:cut_after])


def leftovers() -> list[str]:
    """Names of the part files in the cache."""
    paths = [path for path in cache_folder().rglob("*") if not path.is_dir()]
    return [path.name for path in paths if ".part" in path.name]
