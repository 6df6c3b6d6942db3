"""Progress of a download: a type on its own, so that the command line can name it without loading the network code."""

from typing import Protocol


class Progress(Protocol):
    """Receives the number of bytes done and in total; a total of 0 means that it is not known."""

    def __call__(self, done: int, total: int) -> None: ...
