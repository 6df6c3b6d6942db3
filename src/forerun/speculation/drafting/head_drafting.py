"""What drafters with a trained head share: options, sizes of their programs, a pass over features alone."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from forerun.backends.base import DraftProgram, Limits
from forerun.errors import UsageError
from forerun.speculation.drafting.draft_rows import SequenceRows, make_rows
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES

PASS_ROWS = 128  # rows of one pass at most, where there are many


def check_options(name: str, head: str, width: int, max_depth: int) -> Path:
    """The path of the checkpoint. Raises UsageError on an option that makes no sense."""
    if not head:
        raise UsageError(f"{name} needs a trained head: give its file or folder as the option {name}.head=PATH")
    if not 1 <= width <= 16:
        raise UsageError(f"{name}.width must be between 1 and 16, got {width}")
    if not 1 <= max_depth <= MAX_NODES:
        raise UsageError(f"{name}.max_depth must be between 1 and {MAX_NODES}, got {max_depth}")
    return Path(head)


def head_limits(host: DraftHost, rows_of_each: int = 1) -> Limits:
    """Sizes of a program's batches. rows_of_each  rows that every sequence may bring at once"""
    outputs = max(host.max_rows, host.max_num_seqs * rows_of_each, rows_of_each)
    return Limits(max(PASS_ROWS, outputs), outputs, host.max_model_len)


def run_rows(program: DraftProgram, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """[R, C] results of a pass that reads nothing but features [R, ...], in parts of PASS_ROWS rows."""
    results = []
    for start in range(0, len(features), PASS_ROWS):
        part = np.ascontiguousarray(features[start : start + PASS_ROWS])
        count = len(part)
        rows = SequenceRows([0], [0] * count, [0] * count, [0] * count, [0] * count, -1, count)
        results.append(program.forward(make_rows([rows], PASS_ROWS), part).logits(range(count)))
    return np.concatenate(results)
