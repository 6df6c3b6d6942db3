"""What the commands print through: results on stdout, everything else on stderr.

With `--json` a command prints exactly one document by `print_json` and nothing else on stdout. Progress is shown on a
terminal and never in a pipe.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console

from forerun.models.progress import Progress

PIPE_WIDTH = 160  # a table that is not on a terminal is not cut to 80 columns


def stdout() -> Console:
    """The console of results."""
    return Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False)


def stderr() -> Console:
    """The console of notes and progress."""
    return Console(stderr=True, highlight=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


@contextlib.contextmanager
def progress(description: str, unit: str = "bytes") -> Iterator[Progress]:
    """A progress bar on stderr, fed by calling the yielded function with the amount done and in total (0: not known).

    The bar appears with the first call, so work that turns out to be done already shows none.
    """
    if not sys.stderr.isatty():
        yield _ignore
        return
    from rich import progress as bars

    amount = bars.DownloadColumn() if unit == "bytes" else bars.MofNCompleteColumn()
    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), amount, bars.TimeRemainingColumn())
    bar = bars.Progress(*columns, console=stderr(), transient=True)
    task = bar.add_task(description, total=None)

    def report(done: int, total: int) -> None:
        bar.start()  # once; later calls do nothing
        bar.update(task, completed=done, total=total or None)

    try:
        yield report
    finally:
        bar.stop()


def _ignore(done: int, total: int) -> None:
    """Progress in a pipe."""
