"""Inbox: commands from other threads to one that serves them between its own work; none is ever left unanswered."""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """Something to do. Exactly one of the two is called, on the thread that serves the inbox.

    refuse  when it will never be done, because the inbox was closed before its turn
    """

    do: Callable[[], None]
    refuse: Callable[[], None] = lambda: None


class Inbox:
    """A queue of commands that can be closed."""

    def __init__(self) -> None:
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()  # between the last look at `is_closed` and putting
        self._is_closed = False

    def put(self, command: Command) -> bool:
        """Add a command; False, and nothing is called, when the inbox is closed."""
        with self._lock:
            if not self._is_closed:
                self._commands.put(command)
            return not self._is_closed

    def take(self, wait: bool) -> Command | None:
        """The next command. Without one, wait for it, or give None."""
        try:
            return self._commands.get(block=wait)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Refuse what is there and take nothing more."""
        with self._lock:
            self._is_closed = True
        while (command := self.take(wait=False)) is not None:
            command.refuse()
