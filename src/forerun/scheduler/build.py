"""build_batch: flatten the shares of a step and their draft trees into a Batch (see batch.py for the picture).

Numbers are gathered in lists. Right after the weights have passed through the caches the first call of a library
function costs ten times its time, so that one function of numpy for all is cheaper than several that fit better.
"""

from array import array
from collections.abc import Sequence as Seq
from dataclasses import replace

import numpy as np

from forerun.batch import Batch, DrawRequest
from forerun.sampling.grammar import cut_to_limits, mask_rows
from forerun.sampling.prompt_scores import make_score, scored_positions
from forerun.sampling.request import make_draw
from forerun.scheduler.scheduler import Share
from forerun.speculation.tree import DraftTree


def build_batch(shares: Seq[Share], trees: Seq[DraftTree | None], block_size: int) -> Batch:
    """The step's input. trees[i] is the draft of shares[i], None when that share does not draw.

    A drawing share's last row is its tree's root; node i follows i rows behind it and writes logical slot root + i.
    """
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    query_start = [0]
    output_rows: list[int] = []
    tree_root: list[int] = []
    ancestors: list[int] = []
    draws: list[DrawRequest] = []
    scores: list[DrawRequest] = []
    for share, tree in zip(shares, trees, strict=True):
        sequence = share.sequence
        start, stop = sequence.num_computed, sequence.num_computed + share.num_tokens
        for position in scored_positions(sequence, start, stop):
            scores.append(make_score(sequence, position, len(output_rows)))
            output_rows.append(len(tokens) + position - start)
        tokens += sequence.tokens[start:stop]
        positions += range(start, stop)
        masks: Seq[int] = ()
        if tree is not None:
            tree = cut_to_limits(sequence, tree)
            root_row, root = len(tokens) - 1, stop - 1
            draw = make_draw(sequence, tree, len(output_rows))
            if sequence.token_mask is not None:
                draw = replace(draw, masks=mask_rows(sequence, tree))
            draws.append(draw)
            output_rows += range(root_row, root_row + len(tree))
            tokens += tree.tokens[1:]
            positions += (root + depth for depth in tree.depths[1:])
            stop += tree.num_nodes
            if not tree.is_chain:
                masks = tree.ancestors
        blocks = sequence.block_ids
        slots += [blocks[index // block_size] * block_size + index % block_size for index in range(start, stop)]
        tree_root.append(stop - len(masks) if masks else -1)
        ancestors += [0] * (stop - start - len(masks))
        ancestors += masks
        query_start.append(len(tokens))
    return Batch(
        tokens=np.array(tokens, np.int32),
        positions=np.array(positions, np.int32),
        slots=np.array(slots, np.int32),
        query_start=np.array(query_start, np.int32),
        context_len=np.array([share.sequence.num_computed for share in shares], np.int32),
        block_table=_block_table(shares),
        tree_root=np.array(tree_root, np.int32),
        ancestors=np.array(ancestors, np.uint64),
        output_rows=np.array(output_rows, np.int32),
        draws=tuple(draws),
        scores=tuple(scores),
    )


def _block_table(shares: Seq[Share]) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    """[B, M] physical blocks in logical order, -1 behind the end."""
    longest = max(len(share.sequence.block_ids) for share in shares)
    table = array("i")
    for share in shares:
        blocks = share.sequence.block_ids
        table.extend(blocks)
        table.extend([-1] * (longest - len(blocks)))
    return np.array(table, np.int32).reshape(len(shares), longest)
