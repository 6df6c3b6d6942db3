"""Batches built by hand, for tests of backends that must not depend on scheduler and engine."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from forerun.batch import Batch
from forerun.speculation.tree import DraftTree


@dataclass(frozen=True)
class Rows:
    """What one sequence brings to a batch: `tokens` after `context` computed ones, or a draft tree after them.

    With a tree, `tokens` holds pending tokens before the root (often none).
    """

    tokens: Sequence[int]
    context: int
    blocks: Sequence[int]
    tree: DraftTree | None = None


def make_batch(parts: Sequence[Rows], block_size: int, all_outputs: bool = True) -> Batch:
    """One Batch of several sequences; output rows are all rows, or the last row of each sequence."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    ancestors: list[int] = []
    starts, roots = [0], []
    for part in parts:
        nodes = part.tree.tokens if part.tree else ()
        masks = part.tree.ancestors if part.tree and not part.tree.is_chain else ()
        depths = part.tree.depths if part.tree else ()
        before = len(part.tokens)
        roots.append(part.context + before if masks else -1)
        logical = [part.context + i for i in range(before + len(nodes))]
        tokens += [*part.tokens, *nodes]
        positions += [*logical[:before], *(part.context + before + depth for depth in depths)]
        slots += [part.blocks[i // block_size] * block_size + i % block_size for i in logical]
        ancestors += [0] * before + list(masks or [0] * len(nodes))
        starts.append(len(tokens))
    table = np.full((len(parts), max(len(part.blocks) for part in parts)), -1, np.int32)
    for index, part in enumerate(parts):
        table[index, : len(part.blocks)] = part.blocks
    outputs = range(len(tokens)) if all_outputs else [start - 1 for start in starts[1:]]
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(starts, np.int32),
        context_len=np.array([part.context for part in parts], np.int32),
        block_table=table,
        tree_root=np.array(roots, np.int32),
        ancestors=np.array(ancestors, np.uint64),
        output_rows=np.array(outputs, np.int32),
        draws=(),
    )
