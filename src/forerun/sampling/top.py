"""top_ids: the ids of a row's largest logits, the definition of what native/top.cpp computes."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def top_ids(logits: npt.NDArray[np.float32], rows: Sequence[int], count: int) -> npt.NDArray[np.int32]:
    """[len(rows), count] ids of the largest of logits[row], largest first, the lowest id among equals.

    logits  [R, V]. NaN counts as the smallest. Raises ValueError when `count` exceeds V.
    """
    check_count(count, logits.shape[1])
    found = np.empty((len(rows), count), np.int32)
    for at, row in enumerate(rows):
        values = np.nan_to_num(logits[row], nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        least = np.partition(values, len(values) - count)[len(values) - count]
        candidates = np.flatnonzero(values >= least)  # ids ascend, so a stable sort keeps the lowest first
        found[at] = candidates[np.argsort(-values[candidates], kind="stable")[:count]]
    return found


def check_count(count: int, vocab_size: int) -> None:
    """Raises ValueError when a row of `vocab_size` values has no `count` largest."""
    if not 1 <= count <= vocab_size:
        raise ValueError(f"count must be between 1 and {vocab_size}, got {count}")
