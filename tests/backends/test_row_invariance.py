"""Row invariance, bit for bit, in every kernel table: a row's logits depend on its own history alone.

Not on the number of rows, their order of arrival, who shares the batch, the number of threads, where blocks lie, or on
whether the row came as plain decoding, a prompt chunk, or a node of a draft tree.
"""

import dataclasses

import numpy as np
import pytest

from forerun.backends.base import Limits, LoadedModel, SlotMove
from forerun.backends.cpu import CpuBackend
from forerun.cache.layout import KvLayout, KvStack
from forerun.speculation.tree import DraftTree
from tests.backends.native_ops import TABLES
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights, tiny_spec

VOCAB = 97
SPEC = tiny_spec(
    "qwen2", vocab=VOCAB, hidden=80, heads=6, kv_heads=2, head_dim=16, intermediate=72, max_context=1024, tied=False
)
NAN_TOKEN = VOCAB - 1  # its embedding is NaN
PROMPT = [int(t) for t in np.random.default_rng(1).integers(0, NAN_TOKEN, 600)]
NUM_BLOCKS, BLOCK = 128, 16


class WeightsWithNan(RandomWeights):
    """The embedding of NAN_TOKEN is NaN; with a matrix of its own for the output no other row sees it."""

    def read(self, name, start=0, stop=None):
        values = super().read(name, start, stop)
        if name == "embed":
            values[np.arange(start, start + len(values)) == NAN_TOKEN] = np.nan
        return values


pytestmark = [pytest.mark.parametrize("table", TABLES), pytest.mark.parametrize("codec", ["bf16", "fp32"])]


def backend(table, codec, threads=2, fault=None):
    cpu = CpuBackend(threads=threads, isa=table, fault=fault)
    cpu.load(LoadedModel(SPEC, WeightsWithNan(SPEC)), Limits(640, 640, 1024))
    cpu.allocate_kv(KvLayout(NUM_BLOCKS, BLOCK, (KvStack("target", SPEC.num_layers, 2, 16, codec),)))
    return cpu


def logits(cpu, *parts):
    batch = make_batch(parts, BLOCK)
    return cpu.forward(batch).logits(range(batch.num_rows))


def decode(cpu, tokens, blocks, start=0):
    """Logits of tokens[start:], computed one row at a time; the rows before `start` come in one batch."""
    if start:
        logits(cpu, Rows(tokens[:start], 0, blocks))
    return np.concatenate([logits(cpu, Rows([t], start + i, blocks)) for i, t in enumerate(tokens[start:])])


def same(left, right):
    np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32))


@pytest.mark.parametrize("num_rows", [1, 2, 3, 15, 16, 17, 33, 64])
def test_number_of_rows(table, codec, num_rows):
    cpu, tokens = backend(table, codec), PROMPT[:num_rows]
    alone = decode(cpu, tokens, [0, 1, 2, 3])
    assert np.isfinite(alone).all()
    same(logits(cpu, Rows(tokens, 0, [9, 4, 7, 5])), alone)


@pytest.mark.parametrize("chunks", [(600,), (1, 599), (64, 448, 88), (511, 1, 1, 87), (300, 7, 293)])
def test_any_chunking_of_a_prompt(table, codec, chunks):
    cpu, blocks = backend(table, codec), list(range(38))
    parts, done = [], 0
    for size in chunks:
        parts.append(logits(cpu, Rows(PROMPT[done : done + size], done, blocks)))
        done += size
    cut = np.concatenate(parts)
    other = list(range(100, 62, -1))
    reference = np.concatenate([logits(cpu, Rows(PROMPT[i : i + 37], i, other)) for i in range(0, 600, 37)])
    same(cut, reference)
    same(cut[590:], decode(cpu, PROMPT, other, 590))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_threads(table, codec, threads):
    one, many = backend(table, codec, 1), backend(table, codec, threads)
    blocks = list(range(38))
    same(logits(many, Rows(PROMPT, 0, blocks)), logits(one, Rows(PROMPT, 0, blocks)))
    for step in range(3):  # decoding behind two spans: with few queries the spans are computed apart
        row = Rows([step], 600 + step, blocks)
        same(logits(many, row), logits(one, row))


def test_batch_mates(table, codec):
    cpu = backend(table, codec)
    alone = decode(cpu, PROMPT[:70], [0, 1, 2, 3, 4], 60)
    logits(cpu, Rows(PROMPT[:60], 0, [10, 11, 12, 13, 14]), Rows(PROMPT[5:45], 0, [20, 21, 22]))
    got = []
    for i in range(10):
        mates = [Rows(PROMPT[100 : 100 + 3 * i], 0, [30, 31]), Rows([i], 40 + i, [20, 21, 22, 23])]
        mine = Rows([PROMPT[60 + i]], 60 + i, [10, 11, 12, 13, 14])
        parts = [*mates[:1][: min(i, 1)], mine, *mates[1:]]
        got.append(logits(cpu, *parts)[3 * i])
    same(np.array(got), alone)


def node_logits(cpu, tree, blocks, context, before=()):
    """Logits of the tree's rows after `context` computed tokens and pending ones."""
    return logits(cpu, Rows(list(before), context, blocks, tree))[len(before) :]


TREES = {
    "chain": DraftTree.chain(5, [6, 7, 8, 9, 10]),
    "two paths": DraftTree.from_paths(5, [[6, 7, 8], [6, 9], [11, 12, 13, 14]]),
    "star": DraftTree.from_paths(5, [[t] for t in range(20, 40)]),
    "deep and wide": DraftTree.from_paths(5, [list(range(30)), [50, 51], [0, 60, 61], list(range(70, 90))]),
}


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize("context", [0, 15, 62, 63, 120, 510])
def test_tree_rows_equal_plain_decoding(table, codec, tree, context):
    cpu, blocks, other = backend(table, codec), list(range(40)), list(range(90, 50, -1))
    for place in (blocks, other):
        if context:
            logits(cpu, Rows(PROMPT[:context], 0, place))
    got = node_logits(cpu, tree, blocks, context)
    for row in range(len(tree)):
        path = [tree.tokens[0], *(tree.tokens[node] for node in tree.path(row))]
        plain = [logits(cpu, Rows([t], context + i, other)) for i, t in enumerate(path)][-1]
        same(got[row : row + 1], plain)


def test_a_tree_may_come_level_by_level(table, codec):
    """As a drafter computes it: nodes of earlier levels are seen through the KV store, not as rows of the batch."""
    tree = DraftTree.from_paths(PROMPT[70], [[1, 2, 3], [1, 4], [5, 6, 7], [5, 6, 8], [9]])
    blocks = list(range(9))
    cpu = backend(table, codec)
    logits(cpu, Rows(PROMPT[:70], 0, blocks))
    whole = make_batch([Rows([], 70, blocks, tree)], BLOCK)
    expected = cpu.forward(whole).logits(range(whole.num_rows))
    cpu.clear_blocks([5, 6, 7, 8])
    logits(cpu, Rows(PROMPT[:70], 0, blocks))
    for depth in range(4):
        rows = [row for row in range(len(tree)) if tree.depths[row] == depth]
        fields = {name: getattr(whole, name)[rows] for name in ("tokens", "positions", "slots", "ancestors")}
        level = dataclasses.replace(
            whole,
            **fields,
            query_start=np.array([0, len(rows)], np.int32),
            output_rows=np.arange(len(rows), dtype=np.int32),
        )
        same(cpu.forward(level).logits(range(len(rows))), expected[rows])


def test_tree_behind_pending_tokens(table, codec):
    cpu, tree = backend(table, codec), TREES["two paths"]
    logits(cpu, Rows(PROMPT[:30], 0, [0, 1, 2, 3]), Rows(PROMPT[:40], 0, [4, 5, 6, 7]))
    same(
        node_logits(cpu, tree, [0, 1, 2, 3], 30, PROMPT[30:40]),
        node_logits(cpu, tree, [4, 5, 6, 7], 40),
    )


def test_accepted_path_moved_to_its_place_continues_like_plain_decoding(table, codec):
    cpu, tree, blocks, other = backend(table, codec), TREES["two paths"], [0, 1, 2], [3, 4, 5]
    logits(cpu, Rows(PROMPT[:20], 0, blocks), Rows(PROMPT[:20], 0, other))
    node_logits(cpu, tree, blocks, 20)
    accepted = tree.path(tree.child(tree.child(0, 11), 12))  # rows of 11, 12
    slot = [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(48)]
    cpu.move_kv([SlotMove(slot[20 + row], slot[21 + depth]) for depth, row in enumerate(accepted)])
    plain = [logits(cpu, Rows([t], 20 + i, other)) for i, t in enumerate([5, 11, 12, 33])][-1]
    same(logits(cpu, Rows([33], 23, blocks)), plain)


def test_nan_of_a_foreign_or_masked_slot_has_no_effect(table, codec):
    clean, poisoned = backend(table, codec), backend(table, codec)
    for first in range(0, NUM_BLOCKS, 32):  # fill every slot with NaN
        assert np.isnan(logits(poisoned, Rows([NAN_TOKEN] * 512, 0, list(range(first, first + 32))))).all()
    parts = Rows(PROMPT[:40], 0, [0, 1, 2]), Rows(PROMPT[:20], 0, [5, 6])
    same(logits(poisoned, *parts), logits(clean, *parts))
    same(node_logits(poisoned, TREES["two paths"], [5, 6], 20), node_logits(clean, TREES["two paths"], [5, 6], 20))
    mates = Rows(PROMPT[40:44], 40, [0, 1, 2]), Rows([NAN_TOKEN] * 3, 0, [9])
    same(logits(poisoned, *mates)[:4], logits(clean, *mates)[:4])


def test_the_fault_breaks_it(table, codec):
    """The control: with an error that depends on the number of rows these comparisons fail."""
    cpu = backend(table, codec, fault="row_ulp")
    together, alone = logits(cpu, Rows(PROMPT[:5], 0, [0])), decode(cpu, PROMPT[:5], [1])
    assert (together[:, 0] != alone[:, 0]).all()
    same(together[:, 1:].copy(), alone[:, 1:].copy())
