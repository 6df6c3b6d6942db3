"""FeatureDrafting: trees of a head whose rows hold a token and the hidden state before it, level by level.

Place in the step: `collect` after the commit, `propose` before the target's next pass.

    slot        0        1        2      ...   c          c + 1 ...
    token       t0       t1       t2           root       drafted
    feature     zeros    h0       h1           h(c-1)     state of the parent's row

    1 collect    hidden states of committed tokens; many rows at once, and those of a sequence that ends, are filled in
    2 catch up   rows for the tokens since the last draft, up to the root, in one pass: the first level's scores
    3 levels     one pass a level over the frontiers of all sequences, each row with its parent's own state

A row whose feature the target has computed is right for good, so slots up to the root's are never written again.
Drafted rows are scratch: the states they saw were guesses, and the next catch-up writes their slots with the target's.

After a prefix hit of n tokens nobody has the state of token n - 1: slot n keeps what the copied block has there.

Source: EAGLE, arXiv:2401.15077; trees, EAGLE-2, arXiv:2406.16858 (tree_search).
Differs: the published code has no row for the first token, which nothing precedes; here its feature is zeros, because
every slot of a block must hold its own token's row, so that blocks can be shared.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from forerun.backends.base import DraftProgram, Limits
from forerun.models.heads import STATE
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Computed, Seen
from forerun.speculation.drafting.chooser import Chooser
from forerun.speculation.drafting.draft_rows import SequenceRows, make_rows, split_rows
from forerun.speculation.drafting.head_drafting import PASS_ROWS, head_limits
from forerun.speculation.drafting.head_kv import HeadKv
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import DraftTree
from forerun.speculation.tree_search import TreeSearch

FLUSH_ROWS = 32  # rows of a sequence that may wait for the next draft

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class FeatureSettings:
    """How a drafter drafts.

    name          its name: source of its nodes
    width         children of a node, and nodes of a level; 1 is a chain
    max_depth     longest path
    min_survival  a path less likely than this is not followed further
    """

    name: str
    width: int
    max_depth: int
    min_survival: float = 0.0


@dataclass
class _Known:
    """What waits of one sequence. features  [n, F] of positions start .. start + n - 1; filled  slots that are right"""

    filled: int
    start: int
    features: Float32

    @property
    def stop(self) -> int:
        return self.start + len(self.features)

    def of_slots(self, first: int, last: int) -> Float32:
        """[last - first, F] features of the rows of slots first .. last - 1."""
        before = self.features[max(0, first - 1 - self.start) : last - 1 - self.start]
        if first == 0:
            before = np.concatenate([np.zeros_like(self.features[:1]), before])
        return before

    def fill(self, filled: int) -> None:
        """Slots up to `filled` are right: drop the features that were needed for them."""
        self.filled = filled
        used = min(max(0, filled - 1 - self.start), len(self.features))
        self.start, self.features = self.start + used, self.features[used:]


@dataclass
class _Run:
    """One sequence's draft. states  candidate -> [F] state of its row"""

    sequence: Sequence
    search: TreeSearch
    chooser: Chooser
    root: int
    states: dict[int, Float32] = field(default_factory=dict)


@dataclass(frozen=True)
class _Part:
    """Rows of one sequence in a pass, with their features [n, F]. run  whose frontier its output rows are"""

    rows: SequenceRows
    features: Float32
    run: _Run | None = None


def feature_limits(host: DraftHost, settings: FeatureSettings) -> Limits:
    """Sizes of the program's batches."""
    return head_limits(host, settings.width)


class FeatureDrafting:
    """Drafts with one program that reads features and captures STATE, both of width F. Calls as in Drafter.

    columns  [C] target id of each column of its scores, -1 where there is none
    """

    def __init__(
        self, program: DraftProgram, columns: npt.NDArray[np.int32], settings: FeatureSettings, host: DraftHost
    ) -> None:
        assert host.layout is not None, "a drafter loads when the KV memory is there"
        self._program, self._columns, self._settings, self._host = program, columns, settings, host
        self._limits = feature_limits(host, settings)
        self._block_size = host.layout.block_size
        self._kv = HeadKv(settings.name, host)
        self._known: dict[int, _Known] = {}

    # ---- the drafter's calls ----

    def collect(self, computed: Seq[Computed], features: Seq[Float32]) -> None:
        """Take over the features [len(rows), F] of what a step has computed."""
        many = []
        for one, rows in zip(computed, features, strict=True):
            sequence = one.sequence
            known = self._known.get(sequence.id)
            if self._kv.follow(one) and known is not None and known.stop == one.start:
                known.features = np.concatenate([known.features, rows])
            else:
                known = self._known[sequence.id] = _Known(one.start + 1 if one.start else 0, one.start, rows)
            if sequence.is_finished or known.stop - known.filled > FLUSH_ROWS:
                many.append((sequence, known))
        parts = []
        for sequence, known in many:
            cuts = [*range(known.filled, known.stop, PASS_ROWS), known.stop]
            parts += [self._known_rows(sequence, known, first, last) for first, last in pairwise(cuts)]
        self._compute(parts)
        for sequence, known in many:
            known.fill(max(known.filled, known.stop))
            self._kv.fill(sequence, known.filled)

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        """One tree per ask; None where hidden states are missing and where the context is full."""
        runs = [self._start(ask) for ask in asks]
        growing = [run for run in runs if run is not None]
        self._compute([self._root_rows(run) for run in growing])
        while growing := [run for run in growing if run.search.grow()]:
            self._compute([self._frontier(run) for run in growing])
        return [None if run is None else run.search.tree(self._settings.name) for run in runs]

    def observe(self, seen: Seq[Seen]) -> None:
        """Note which blocks are filled."""
        for one in seen:
            known = self._known.get(one.sequence.id)
            if known is not None:
                self._kv.observe(one, known.filled)

    def end(self, sequence_id: int) -> None:
        """The sequence is gone."""
        self._known.pop(sequence_id, None)
        self._kv.end(sequence_id)

    # ---- the passes ----

    def _start(self, ask: Ask) -> _Run | None:
        sequence, settings = ask.sequence, self._settings
        depth = min(ask.max_depth, ask.max_nodes, settings.max_depth, self._limits.max_model_len - len(sequence.tokens))
        if depth < 1 or sequence.id not in self._known or not self._kv.can_draft(sequence):
            return None
        chooser = Chooser(sequence, self._columns, settings.width, self._host)
        search = TreeSearch(sequence.tokens[-1], ask.max_nodes, depth, chooser.width, settings.min_survival, ask.worth)
        return _Run(sequence, search, chooser, len(sequence.tokens) - 1)

    def _known_rows(self, sequence: Sequence, known: _Known, first: int, last: int, run: _Run | None = None) -> _Part:
        """Rows of committed tokens in slots first .. last - 1; the last one is the root of `run`."""
        self._kv.write(sequence, first, last)
        span = range(first, last)
        rows = SequenceRows(
            sequence.block_ids, sequence.tokens[first:last], span, span, [0] * len(span), last - 1, int(run is not None)
        )
        return _Part(rows, known.of_slots(first, last), run)

    def _root_rows(self, run: _Run) -> _Part:
        known, last = self._known[run.sequence.id], run.root + 1
        part = self._known_rows(run.sequence, known, known.filled, last, run)
        known.fill(last)
        self._kv.fill(run.sequence, last)
        return part

    def _frontier(self, run: _Run) -> _Part:
        search, nodes = run.search, run.search.frontier
        logical = [run.root + search.number(node) for node in nodes]
        self._kv.write(run.sequence, logical[0], logical[-1] + 1)
        rows = SequenceRows(
            run.sequence.block_ids,
            [search.token(node) for node in nodes],
            [run.root + search.depth(node) for node in nodes],
            logical,
            [search.ancestors(node) for node in nodes],
            run.root,
            len(nodes),
        )
        return _Part(rows, np.stack([run.states[search.parent(node)] for node in nodes]), run)

    def _compute(self, parts: Seq[_Part]) -> None:
        """Run the parts, and add what each frontier row proposes to its search."""
        waiting = iter(parts)
        for group in split_rows([part.rows for part in parts], self._limits.max_rows, self._limits.max_outputs):
            mine = [next(waiting) for _ in group]
            features = np.concatenate([part.features for part in mine])
            result = self._program.forward(make_rows(group, self._block_size), features)
            row = output = 0
            for part in mine:
                row += len(part.rows.tokens)
                if part.run is None:
                    continue
                run, nodes = part.run, part.run.search.frontier
                states = result.captured(STATE, range(row - len(nodes), row))
                for node, state in zip(nodes, states, strict=True):
                    run.states[node] = state
                    scores = result.logits((output,))[0]
                    found = run.chooser.successors(scores, run.search.path(node))
                    run.search.add(node, found.tokens, found.scores, found.probs)
                    output += 1
