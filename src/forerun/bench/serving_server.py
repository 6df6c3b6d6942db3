"""A `forerun serve` of our own, in a process of its own, for as long as it is measured."""

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.errors import ForerunError

START_S = 600.0


@dataclass(frozen=True)
class OwnServer:
    """url: base URL; start_s: from starting the process to the first good answer of /health"""

    url: str
    start_s: float
    pid: int


@contextlib.contextmanager
def own_server(arguments: Seq[str]) -> Iterator[OwnServer]:
    """Start `forerun serve` with further arguments on a free port and end it afterwards. Raises ForerunError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "forerun", "serve", "--host", "127.0.0.1", "--port", str(port), *arguments]
    with tempfile.TemporaryFile("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while not _is_ready(url):
                if process.poll() is not None or time.perf_counter() - start > START_S:
                    output.seek(0)
                    last = (output.read().strip().splitlines() or ["it said nothing"])[-1]
                    raise ForerunError(f"the server did not start: {last}")
                time.sleep(0.02)
            yield OwnServer(f"{url}/v1", time.perf_counter() - start, process.pid)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
