"""make_rows: the Batch of a drafter's own forward pass, from each sequence's rows."""

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from forerun.batch import Batch


@dataclass(frozen=True)
class SequenceRows:
    """What one sequence brings to a drafter's pass.

    blocks      physical blocks in logical order
    tokens      [n] ids as the draft program knows them
    positions   [n]
    logical     [n] logical slots
    ancestors   [n] 0 for causal rows
    root        position of the tree's root
    outputs     number of rows, the last ones, whose logits are wanted
    """

    blocks: Seq[int]
    tokens: Seq[int]
    positions: Seq[int]
    logical: Seq[int]
    ancestors: Seq[int]
    root: int
    outputs: int


def make_rows(parts: Seq[SequenceRows], block_size: int) -> Batch:
    """One Batch without draws; output rows are in the order of the parts."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    ancestors: list[int] = []
    query_start = [0]
    output_rows: list[int] = []
    for part in parts:
        blocks = part.blocks
        tokens += part.tokens
        positions += part.positions
        slots += [blocks[index // block_size] * block_size + index % block_size for index in part.logical]
        ancestors += part.ancestors
        output_rows += range(len(tokens) - part.outputs, len(tokens))
        query_start.append(len(tokens))
    longest = max(len(part.blocks) for part in parts)
    table = array("i")
    for part in parts:
        table.extend(part.blocks)
        table.extend([-1] * (longest - len(part.blocks)))
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(query_start, np.int32),
        context_len=np.array([part.positions[0] for part in parts], np.int32),
        block_table=np.array(table, np.int32).reshape(len(parts), longest),
        tree_root=np.array([part.root if any(part.ancestors) else -1 for part in parts], np.int32),
        ancestors=np.array(ancestors, np.uint64),
        output_rows=np.array(output_rows, np.int32),
        draws=(),
    )


def split_rows(parts: Seq[SequenceRows], max_rows: int, max_outputs: int) -> list[list[SequenceRows]]:
    """The parts in groups that fit a program's limits, in their order; a part is never cut."""
    groups: list[list[SequenceRows]] = []
    rows = outputs = 0
    for part in parts:
        rows, outputs = rows + len(part.tokens), outputs + part.outputs
        if not groups or rows > max_rows or outputs > max_outputs:
            groups.append([])
            rows, outputs = len(part.tokens), part.outputs
        groups[-1].append(part)
    return groups
