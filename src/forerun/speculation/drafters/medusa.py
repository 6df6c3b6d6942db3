"""medusa: heads over the last hidden state guess several positions at once, each on its own.

    hidden state before the last token   ── head 0 ── scores of the token behind it
                                         ── head 1 ── scores of the one after that ...

Options

    head       folder or file of a Medusa checkpoint; required
    width      successors of a node that are considered; 1 drafts a chain
    max_depth  heads that are used

One pass over a row a sequence gives all scores; the tree of the most likely paths is built from them (best_first).
After a prompt that came from the cache but for its last token there is no hidden state to start from, so the first step
is not drafted.

Source: Medusa, Cai et al., arXiv:2401.10774.
Differs: the tree is made for every step from the heads' own probabilities, not from a fixed list of shapes.
"""

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from forerun.backends.base import DraftProgram, ProgramSpec
from forerun.cache.layout import KvStack
from forerun.models.files.heads_medusa import read_medusa
from forerun.models.heads import MedusaSpec, medusa, scores_name
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Computed, Seen, register
from forerun.speculation.drafting.best_first import best_first
from forerun.speculation.drafting.candidates import Candidates
from forerun.speculation.drafting.chooser import Chooser
from forerun.speculation.drafting.draft_rows import SequenceRows, make_rows
from forerun.speculation.drafting.head_drafting import check_options, head_limits
from forerun.speculation.drafting.head_kv import follow, is_complete
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import MAX_NODES, DraftTree

Float32 = npt.NDArray[np.float32]


class MedusaDrafter:
    """Drafts with Medusa heads. Implements Drafter, HostedDrafter and HiddenStateDrafter."""

    name = "medusa"
    is_paid = True

    def __init__(self, head: str = "", width: int = 4, max_depth: int = MAX_NODES) -> None:
        self._path = check_options(self.name, head, width, max_depth)
        self._width, self._max_depth = width, max_depth
        self._host: DraftHost
        self._spec: MedusaSpec
        self._program: DraftProgram
        self._columns: npt.NDArray[np.int32]
        self._last: dict[int, Float32] = {}  # sequence id -> [E] hidden state of its last computed token

    # ---- where it lives ----

    def kv_stacks(self, host: DraftHost) -> Seq[KvStack]:
        """None: its heads attend to nothing."""
        return ()

    def captures(self, host: DraftHost) -> Seq[int]:
        return (host.target.model.spec.num_layers,)

    def load(self, host: DraftHost, first_kv_layer: int) -> None:
        assert host.layout is not None, "a drafter loads when the KV memory is there"
        model = host.target.model
        spec, weights = read_medusa(self._path, model.spec)
        program = ProgramSpec(
            self.name,
            model,
            lambda ops: medusa(spec, model.spec, ops),
            head_limits(host),
            shapes={**model.spec.weight_shapes(), **spec.weight_shapes()},
            further=weights,
        )
        self._program = host.backend.add_program(program)
        self._host, self._spec, self._block_size = host, spec, host.layout.block_size
        ids = np.arange(spec.num_columns or model.spec.vocab_size, dtype=np.int32)
        self._columns = np.where(ids < model.spec.vocab_size, ids, -1).astype(np.int32)

    # ---- drafting ----

    def begin(self, sequence: Sequence) -> None:
        """Nothing is known of it yet."""

    def collect(self, computed: Seq[Computed]) -> None:
        for one in computed:
            follow(self.name, one)
            last = Computed(one.sequence, one.stop - 1, one.rows[-1:], one.result)
            self._last[one.sequence.id] = last.hidden(self.captures(self._host))[0]

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        ready = [ask for ask in asks if ask.sequence.id in self._last and is_complete(self.name, ask.sequence)]
        if not ready:
            return [None] * len(asks)
        parts = [_one_row(ask.sequence) for ask in ready]
        features = np.stack([self._last[ask.sequence.id] for ask in ready])
        result = self._program.forward(make_rows(parts, self._block_size), features)
        depth = min(self._max_depth, self._spec.num_heads, max(ask.max_depth for ask in ready))
        scores = [result.captured(scores_name(head), range(len(ready))) for head in range(depth)]
        trees = {ask.sequence.id: self._tree(ask, [rows[index] for rows in scores]) for index, ask in enumerate(ready)}
        return [trees.get(ask.sequence.id) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Nothing to learn: hidden states come through `collect`."""

    def end(self, sequence_id: int) -> None:
        self._last.pop(sequence_id, None)

    def _tree(self, ask: Ask, scores: Seq[Float32]) -> DraftTree | None:
        """scores  [C] of each depth"""
        chooser = Chooser(ask.sequence, self._columns, self._width, self._host)
        by_depth: dict[int, Candidates] = {}  # heads do not see what the others guess

        def expand(path: Seq[int]) -> Candidates:
            found = None if chooser.depends_on_path else by_depth.get(len(path))
            if found is None:
                found = by_depth[len(path)] = chooser.successors(scores[len(path)], path)
            return found

        depth = min(ask.max_depth, len(scores))
        return best_first(ask.sequence.tokens[-1], ask.max_nodes, depth, expand, self.name)


def _one_row(sequence: Sequence) -> SequenceRows:
    """The last token's row; the pass reads neither its token nor its slot."""
    last = [len(sequence.tokens) - 1]
    return SequenceRows(sequence.block_ids, [0], last, last, [0], last[0], 1)


register("medusa", MedusaDrafter)
