"""Sums of what several generations count, for answers and logs."""

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq


def total_by_name(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sums by name, names in order."""
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(sorted(total.items()))


def total_by_depth(counts: Iterable[Seq[int]]) -> list[int]:
    """Sums by place, as long as the longest."""
    return [sum(depth) for depth in itertools.zip_longest(*counts, fillvalue=0)]
