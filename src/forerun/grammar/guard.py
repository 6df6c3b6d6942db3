"""GrammarGuard: a stranger's grammar is compiled in a process of its own first, so that it can be stopped.

Some short grammars take hours or gigabytes: the intersection of twenty patterns, a `multipleOf` of nine digits. A
thread cannot be ended, a process can. It compiles without the model's tokens, which takes as long within a few
milliseconds, because what explodes is the grammar. It stays for the next grammar, and ends with its parent.
"""

import json
import signal
import subprocess
import sys
import threading
from queue import Empty, SimpleQueue

from forerun.errors import CapacityError
from forerun.grammar.source import Grammar

TIME_LIMIT_S = 3.0  # of a processor
PATIENCE = 20  # as often as that on the wall's clock
MEMORY_LIMIT = 1 << 30  # address space of the process, of which the library itself takes a part
START_LIMIT_S = 60.0  # on a machine that is busy


class GrammarGuard:
    """Tries grammars one after another. May be called from any thread; each call waits for its turn."""

    def __init__(self, time_limit_s: float = TIME_LIMIT_S, memory_limit: int = MEMORY_LIMIT) -> None:
        self._time_limit_s, self._memory_limit = time_limit_s, memory_limit
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._answers: SimpleQueue[str] = SimpleQueue()

    def check(self, grammar: Grammar) -> None:
        """Return when the grammar can be compiled. Raises RequestError when it cannot be, within the limits."""
        with self._lock:
            process = self._running()
            wrong = self._ask(process, grammar)
        if wrong:
            raise grammar.error(wrong)

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._stop()

    def _ask(self, process: "subprocess.Popen[str]", grammar: Grammar) -> str:
        """What is wrong with it, "" if nothing."""
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps([grammar.kind, grammar.text]) + "\n")
            process.stdin.flush()
            answer = self._answers.get(timeout=PATIENCE * self._time_limit_s)
        except (BrokenPipeError, Empty):
            answer = ""
        if not answer:
            self._stop()
            if process.returncode in (-signal.SIGPROF, -signal.SIGKILL):
                return f"compiling it takes more than {self._time_limit_s:g} s"
            return f"compiling it takes more than {self._memory_limit >> 20} MiB"
        wrong: str = json.loads(answer)
        return wrong

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None:
            self._stop()
            answers: SimpleQueue[str] = SimpleQueue()
            self._answers = answers
            self._process = process = subprocess.Popen(
                [sys.executable, "-m", "forerun.grammar.trial", str(self._memory_limit), str(self._time_limit_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
            threading.Thread(target=_read, args=(process, answers), name="forerun-grammars", daemon=True).start()
            try:
                ready = answers.get(timeout=START_LIMIT_S)
            except Empty:
                ready = ""
            if not ready:
                self._stop()
                raise CapacityError("the process that tries grammars did not start: try again")
        return self._process

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(0.05)  # it may be ending by itself, for a reason worth knowing
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue


def _read(process: "subprocess.Popen[str]", answers: "SimpleQueue[str]") -> None:
    """Lines of the process as they come; "" when it has ended."""
    assert process.stdout is not None
    try:
        for line in process.stdout:
            answers.put(line)
    except ValueError:  # closed while it was read
        pass
    answers.put("")
