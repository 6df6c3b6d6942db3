"""build_batch: every array of the picture in batch.py, for a prefill chunk, a chain and a branching tree."""

import numpy as np
import pytest

from forerun.scheduler.build import build_batch
from forerun.scheduler.scheduler import Share
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.tree import DraftTree
from tests.fakes import FiniteStateMask


def sequence_of(num_tokens, num_computed, blocks, number=0):
    tokens = list(range(100 * number, 100 * number + num_tokens))
    request = Request("r", tuple(tokens), SamplingParams(seed=0))
    return Sequence(number, request, 0, 0, (7, number), tokens, num_tokens, num_computed, list(blocks))


def test_a_chunk_a_tree_and_a_chain_in_one_batch():
    chunk = Share(sequence_of(7, 0, [4]), 3)
    tree = Share(sequence_of(15, 14, [2, 9], 1), 1, 3)
    chain = Share(sequence_of(33, 32, [5, 6, 0], 2), 1, 2)
    trees = [None, DraftTree((114, 1, 2, 3), (-1, 0, 1, 0), (1.0,) * 4), DraftTree.chain(232, [8, 9])]
    batch = build_batch([chunk, tree, chain], trees, 16)
    assert batch.tokens.tolist() == [0, 1, 2, 114, 1, 2, 3, 232, 8, 9]
    assert batch.positions.tolist() == [0, 1, 2, 14, 15, 16, 15, 32, 33, 34]
    block = lambda b: b * 16  # noqa: E731
    # The tree's logical slots are 14, 15, 16, 17: two in its first block, two in its second.
    assert batch.slots.tolist() == [
        *(block(4) + i for i in range(3)),
        *(block(2) + 14, block(2) + 15, block(9), block(9) + 1),
        *(block(0), block(0) + 1, block(0) + 2),
    ]
    assert batch.query_start.tolist() == [0, 3, 7, 10]
    assert batch.context_len.tolist() == [0, 14, 32]
    assert batch.block_table.tolist() == [[4, -1, -1], [2, 9, -1], [5, 6, 0]]
    assert batch.tree_root.tolist() == [-1, 14, -1]  # a chain's rows are causal rows
    assert batch.ancestors.tolist() == [0, 0, 0, 0b1, 0b11, 0b111, 0b1001, 0, 0, 0]
    assert batch.output_rows.tolist() == [3, 4, 5, 6, 7, 8, 9]
    assert [(draw.first_output, draw.position, draw.key) for draw in batch.draws] == [(0, 15, (7, 1)), (4, 33, (7, 2))]
    assert batch.num_rows == 10


def test_a_last_chunk_draws_behind_its_last_row():
    share = Share(sequence_of(20, 16, [3, 1]), 4)
    assert share.draws
    batch = build_batch([share], [DraftTree.root_only(19)], 16)
    assert batch.positions.tolist() == [16, 17, 18, 19]
    assert batch.output_rows.tolist() == [3]
    assert batch.draws[0].position == 20


def test_a_tree_behind_several_pending_tokens():
    share = Share(sequence_of(20, 17, [3, 1]), 3, 2)
    batch = build_batch([share], [DraftTree((19, 5, 6), (-1, 0, 0), (1.0,) * 3)], 16)
    assert batch.tree_root.tolist() == [19]
    assert batch.ancestors.tolist() == [0, 0, 0b1, 0b11, 0b101]
    assert batch.positions.tolist() == [17, 18, 19, 20, 20]
    assert batch.slots.tolist() == [17, 18, 19, 20, 21]
    assert batch.output_rows.tolist() == [2, 3, 4]


@pytest.mark.parametrize("name", ["tokens", "positions", "slots", "query_start", "context_len", "block_table"])
def test_types(name):
    batch = build_batch([Share(sequence_of(5, 0, [0]), 2)], [None], 16)
    assert getattr(batch, name).dtype == np.int32
    assert batch.ancestors.dtype == np.uint64
    assert batch.output_rows.dtype == np.int32
    assert batch.output_rows.size == 0
    assert batch.draws == ()


def test_the_largest_tree_uses_the_top_bit():
    tree = DraftTree.from_paths(0, [range(1, 62), [70], [71]])
    assert len(tree) == 64
    batch = build_batch([Share(sequence_of(1, 0, range(5)), 1, 63)], [tree], 16)
    assert int(batch.ancestors[-1]) == 1 << 63 | 1


def test_a_grammar_masks_every_row_of_its_own_sequence():
    masked, free = Share(sequence_of(3, 2, [4]), 1, 1), Share(sequence_of(3, 2, [5], 1), 1, 1)
    masked.sequence.token_mask = FiniteStateMask(1)
    batch = build_batch([masked, free], [DraftTree.chain(2, [6]), DraftTree.chain(102, [6])], 16)
    first, second = batch.draws
    assert first.masks.tolist() == [FiniteStateMask(1).allowed().tolist(), FiniteStateMask(3).allowed().tolist()]
    assert second.masks is None
