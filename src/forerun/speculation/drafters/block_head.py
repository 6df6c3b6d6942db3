"""block-head: one pass guesses a whole block of tokens, and a small table lets each guess depend on the one before.

    slot      0    ...  c - 1     c                      c + 1         c + 2
    row       KV of hidden states | last token,          mask token,   mask token,      causal inside the block
                                  | state before it      learned       learned
    scores of                     token c + 1            c + 2         c + 3

Options

    head       a block head's file or folder, see models/files/heads_block; required
    width      successors of a node that are considered; 1 drafts a chain
    max_depth  rows of a block that are used

KV of a committed token comes from the target's hidden states at its own position alone, so it is written once, with the
step that computes them, and is the same in every sequence with the same prefix. Where the head has the table, scores of
row j are corrected by A[token before] B, left to right along each path; where it has a confidence, that replaces the
probability of the best token as its estimated acceptance.

After a prompt that came from the cache but for its last token there is no hidden state to start from, so the first step
is not drafted; nor is a sequence whose cached blocks are not known to be filled (head_kv).

Source: parallel drafting with mask tokens, P-EAGLE, arXiv:2602.01469; KV from hidden states, DFlash, arXiv:2602.06036;
correction and confidence, DSpark, arXiv:2607.05147.
"""

from collections.abc import Sequence as Seq
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from forerun.backends.base import DraftProgram, Forward, ProgramSpec
from forerun.cache.layout import KvStack
from forerun.models.files.heads_block import BlockHead, read_block_head
from forerun.models.heads import STATE, block, inject
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Computed, Seen, register
from forerun.speculation.drafting.best_first import best_first
from forerun.speculation.drafting.candidates import Candidates
from forerun.speculation.drafting.chooser import Chooser
from forerun.speculation.drafting.draft_rows import SequenceRows, make_rows, split_rows
from forerun.speculation.drafting.head_drafting import PASS_ROWS, check_options, head_limits
from forerun.speculation.drafting.head_kv import HeadKv
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES, DraftTree

Float32 = npt.NDArray[np.float32]


class BlockHeadDrafter:
    """Drafts with a block head. Implements Drafter, HostedDrafter and HiddenStateDrafter."""

    name = "block-head"
    is_paid = True

    def __init__(self, head: str = "", width: int = 4, max_depth: int = MAX_NODES) -> None:
        self._path = check_options(self.name, head, width, max_depth)
        self._width, self._max_depth = width, max_depth
        self._head: BlockHead | None = None
        self._host: DraftHost
        self._kv: HeadKv
        self._inject: DraftProgram
        self._block: DraftProgram
        self._last: dict[int, tuple[int, Float32]] = {}  # sequence id -> computed tokens, fused state of the last [E]

    # ---- where it lives ----

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        layers = self._open(host).spec.layers
        return (
            KvStack(self.name, len(layers), layers[0].mixer.num_kv_heads, layers[0].mixer.head_dim, host.kv_format),
        )

    def captures(self, host: DraftHost) -> Seq[int]:
        return self._open(host).spec.captures

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        assert host.layout is not None, "a drafter loads when the KV memory is there"
        head, model = self._open(host), host.target.model
        spec = head.spec
        self._limits = head_limits(host, spec.size)
        shapes = {**model.spec.weight_shapes(), **spec.weight_shapes()}

        def program(name: str, forward: Forward) -> DraftProgram:
            return host.backend.add_program(ProgramSpec(name, model, forward, self._limits, None, shapes, head.weights))

        self._inject = program("block-head inject", lambda ops: inject(spec, first_kv_layer, ops))
        self._block = program(self.name, lambda ops: block(spec, first_kv_layer, ops))
        self._host, self._block_size = host, host.layout.block_size
        self._kv = HeadKv(self.name, host)
        learned = head.arrays["head.mask_hidden"] + head.arrays["head.positions"]
        self._learned: Float32 = learned  # [K - 1, E] features of the rows without a token

    # ---- drafting ----

    def begin(self, sequence: Sequence) -> None:
        """Nothing is known of it yet."""

    def collect(self, computed: Seq[Computed]) -> None:
        parts: list[SequenceRows] = []
        owners: list[Computed] = []
        for one in computed:
            self._kv.follow(one)
            self._kv.write(one.sequence, one.start, one.stop)
            for first, last in pairwise([*range(one.start, one.stop, PASS_ROWS), one.stop]):
                span, none = range(first, last), [0] * (last - first)
                parts.append(SequenceRows(one.sequence.block_ids, none, span, span, none, last - 1, 1))
                owners.append(one)
        captures = self._open(self._host).spec.captures
        hidden = np.concatenate([one.hidden(captures) for one in computed])
        done = 0
        for group in split_rows(parts, self._limits.max_rows, self._limits.max_outputs):
            rows = sum(len(part.tokens) for part in group)
            result = self._inject.forward(make_rows(group, self._block_size), hidden[done : done + rows])
            done += rows
            for state in result.logits(range(len(group))):
                one = owners.pop(0)
                self._last[one.sequence.id] = one.stop, state
        for one in computed:
            self._kv.fill(one.sequence, one.stop)

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        ready = [ask for ask in asks if ask.sequence.id in self._last and self._kv.can_draft(ask.sequence)]
        depths = [min(ask.max_depth, ask.max_nodes, self._max_depth, self._learned.shape[0] + 1) for ask in ready]
        parts = [self._rows(ask.sequence, depth) for ask, depth in zip(ready, depths, strict=True)]
        trees: dict[int, DraftTree | None] = {}
        waiting = iter(ready)
        for group in split_rows(parts, self._limits.max_rows, self._limits.max_outputs):
            mine = [next(waiting) for _ in group]
            features = [
                part_features
                for ask, part in zip(mine, group, strict=True)
                for part_features in (self._last[ask.sequence.id][1][None], self._learned[: part.outputs - 1])
            ]
            result = self._block.forward(make_rows(group, self._block_size), np.concatenate(features))
            output = 0
            for ask, part in zip(mine, group, strict=True):
                rows = range(output, output + part.outputs)
                trees[ask.sequence.id] = self._tree(ask, result.logits(rows), result.captured(STATE, rows))
                output += part.outputs
        return [trees.get(ask.sequence.id) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Note which blocks are filled."""
        for one in seen:
            if one.sequence.id in self._last:
                self._kv.observe(one, self._last[one.sequence.id][0])

    def end(self, sequence_id: int) -> None:
        self._last.pop(sequence_id, None)
        self._kv.end(sequence_id)

    def _rows(self, sequence: Sequence, count: int) -> SequenceRows:
        """The last token's row and those behind it."""
        root = len(sequence.tokens) - 1
        self._kv.write(sequence, root, root + count)
        mask = self._open(self._host).spec.mask_token
        tokens, span = [sequence.tokens[-1], *[mask] * (count - 1)], range(root, root + count)
        return SequenceRows(sequence.block_ids, tokens, span, span, [0] * count, root, count)

    def _tree(self, ask: Ask, scores: Float32, states: Float32) -> DraftTree | None:
        """scores  [d, C] of each depth; states  [d, E] behind them"""
        head = self._open(self._host)
        chooser = Chooser(ask.sequence, head.columns, self._width, self._host)
        root = ask.sequence.tokens[-1]
        before, after = head.arrays.get("head.markov.before"), head.arrays.get("head.markov.after")

        def expand(path: Seq[int]) -> Candidates:
            row = scores[len(path)]
            if before is not None and after is not None:
                row = row + before[path[-1] if path else root] @ after
            return self._with_confidence(chooser.successors(row, path), row, states[len(path)])

        return best_first(root, ask.max_nodes, len(scores), expand, self.name)

    def _with_confidence(self, found: Candidates, row: Float32, state: Float32) -> Candidates:
        """The candidates with the head's own estimate for the best of them, the others in proportion."""
        weights = self._open(self._host).arrays.get("head.confidence")
        if weights is None or not found.tokens:
            return found
        exponents = row.astype(np.float64) - row.max()
        probs = np.exp(exponents) / np.exp(exponents).sum()
        entropy = -np.sum(probs * np.log(np.maximum(probs, np.finfo(np.float64).tiny)))
        bias = self._open(self._host).arrays["head.confidence.bias"][0]
        z = weights[:-2] @ state + weights[-2] * probs.max() + weights[-1] * entropy + bias
        scale = float(1.0 / (1.0 + np.exp(-z))) / found.scores[0]
        return Candidates(found.tokens, tuple(score * scale for score in found.scores), found.probs)

    def _open(self, host: DraftHost) -> BlockHead:
        if self._head is None:
            self._head = read_block_head(self._path, host.target.model.spec)
        return self._head


register("block-head", BlockHeadDrafter)
