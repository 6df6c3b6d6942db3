"""LevelDrafting: how a drafter with a program of its own makes its trees. Built once, used by every such drafter.

Place in the step: `propose` runs before the target's pass, `observe` after the commit.

    1 catch up   rows for the tokens that the drafter's stack has not computed, up to the last one, which is the root:
                 its logits give the first level. A long prompt takes several steps, with no draft meanwhile, and
                more of them while other sequences decode (CatchUpPace)
    2 levels     one pass per level over the frontiers of all sequences; node i writes logical slot root + i, behind the
                 last token, where slots are reserved
    3 observe    KV of accepted nodes stays where the verified tree's row holds the node that was computed in its slot;
                 everything else is computed again by the next catch-up, in the same pass as the root

A drafter builds it in `load` and hands its calls on:

    program = host.backend.add_program(ProgramSpec(name, model, forward, draft_limits(host, settings)))
    self._drafting = LevelDrafting(program, settings, host)                 # a stack of its own
    LevelDrafting(program, replace(settings, is_target=True), host)         # part of the target over the target's KV

Source: chains, Leviathan et al., arXiv:2211.17192; trees, EAGLE-2 (tree_search).
"""

import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from forerun.backends.base import DraftProgram, Limits
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen
from forerun.speculation.drafting.catch_up_pace import FEWEST_ROWS, CatchUpPace
from forerun.speculation.drafting.chooser import Chooser, LikeliestText
from forerun.speculation.drafting.draft_kv import DraftKv, StackKv
from forerun.speculation.drafting.draft_rows import SequenceRows, make_rows, split_rows
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import DraftTree
from forerun.speculation.tree_search import TreeSearch
from forerun.speculation.vocabularies.draft_vocabulary import DraftVocabulary, SameVocabulary

CATCH_UP_ROWS = 128  # rows of known tokens that one step computes for all sequences, fewer where others decode


@dataclass(frozen=True)
class DraftSettings:
    """How a drafter drafts.

    name          its name: source of its nodes, and key of its progress in Sequence.seen_by
    is_target     it reads and writes the target's own KV layers
    width         children of a node, and nodes of a level; 1 is a chain
    max_depth     longest path
    min_survival  a path less likely than this is not followed further
    max_context   positions that the draft model was made for
    catch_up_rows rows of known tokens that one step computes
    """

    name: str
    is_target: bool = False
    width: int = 1
    max_depth: int = 63
    min_survival: float = 0.0
    max_context: int = 1 << 30
    catch_up_rows: int = CATCH_UP_ROWS


def draft_limits(host: DraftHost, settings: DraftSettings) -> Limits:
    """Sizes of a draft program's batches."""
    outputs = max(host.max_rows, host.max_num_seqs, settings.width)
    rows = max(settings.catch_up_rows, outputs, 2 * host.max_num_seqs)
    return Limits(rows, outputs, min(host.max_model_len, settings.max_context))


@dataclass
class _Run:
    """One sequence's draft of the current step. root  position of its last token"""

    sequence: Sequence
    search: TreeSearch
    chooser: Chooser | LikeliestText
    root: int


class LevelDrafting:
    """Drafts with one program. Calls as in Drafter.

    vocabulary  None: the target's own
    kv          None: a stack in the target's blocks, or the target's own with settings.is_target
    """

    def __init__(
        self,
        program: DraftProgram,
        settings: DraftSettings,
        host: DraftHost,
        vocabulary: DraftVocabulary | None = None,
        kv: DraftKv | None = None,
    ) -> None:
        assert host.layout is not None, "a drafter loads when the KV memory is there"
        self._program, self._settings, self._host = program, settings, host
        self._limits = draft_limits(host, settings)
        self._vocabulary: DraftVocabulary = vocabulary or SameVocabulary(host.target.model.spec.vocab_size)
        size, is_target = host.layout.block_size, settings.is_target
        self._kv: DraftKv = kv or StackKv(settings.name, size, self._vocabulary, is_target)
        self._runs: dict[int, _Run] = {}  # sequence id -> draft that is being verified
        self._pace = CatchUpPace()
        self._num_drew = 0  # sequences, in the last step
        self._proposed_s = 0.0  # end of the last proposal that no step followed yet

    # ---- the drafter's calls ----

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        """One tree per ask; None while a prompt is caught up, and where the context is full."""
        self._runs = {}
        num_decoding = max(len(asks), self._num_drew)
        runs = [self._start(ask) for ask in asks]
        self._catch_up([run for run in runs if run is not None], num_decoding)
        growing = list(self._runs.values())
        while growing := [run for run in growing if run.search.grow()]:
            self._compute(growing, [self._frontier(run) for run in growing])
        self._proposed_s = time.perf_counter()
        return [self._tree(run) for run in runs]

    def observe(self, seen: Seq[Seen]) -> None:
        """Keep the KV of accepted nodes that lie where their tokens belong."""
        if self._proposed_s:
            self._pace.stepped(time.perf_counter() - self._proposed_s)
        self._num_drew, self._proposed_s = len(seen), 0.0
        for one in seen:
            run = self._runs.pop(one.sequence.id, None)
            if not one.sequence.is_finished:
                search, root = (run.search, run.root) if run else (None, 0)
                self._kv.observe(one.sequence, one.outcome, search, root)

    def end(self, sequence_id: int) -> None:
        """The sequence is gone."""
        self._runs.pop(sequence_id, None)
        self._kv.end(sequence_id)

    # ---- the passes ----

    def _start(self, ask: Ask) -> _Run | None:
        """A search without candidates, None when the sequence cannot be drafted for."""
        sequence, settings = ask.sequence, self._settings
        if not self._kv.is_ready(sequence):
            return None
        length = self._kv.length(sequence)
        left = min(self._limits.max_model_len, self._kv.capacity(sequence)) - length
        depth = min(ask.max_depth, ask.max_nodes, settings.max_depth, left)
        if depth < 1:
            return None
        vocabulary = self._vocabulary
        chooser = (
            Chooser(sequence, vocabulary.columns, settings.width, self._host)
            if vocabulary.proposes_ids
            else LikeliestText(vocabulary.columns)
        )
        root, most = sequence.tokens[-1], min(ask.max_nodes, left)
        search = TreeSearch(root, most, depth, chooser.width, settings.min_survival, ask.worth)
        return _Run(sequence, search, chooser, length - 1)

    def _catch_up(self, runs: list[_Run], num_decoding: int) -> None:
        """Compute what the stack has not seen, those who lack least first; the complete ones enter self._runs."""
        self._vocabulary.prepare([run.sequence for run in runs])
        lacking = sorted((run.root + 1 - self._kv.num_seen(run.sequence), index) for index, run in enumerate(runs))
        rows_left = self._limits.max_rows
        long_left = self._pace.rows(num_decoding, rows_left)  # for those who lack more than the last step's tokens
        parts, complete, ends = [], [], []
        for num_lacking, index in lacking:
            run, count = runs[index], min(num_lacking, rows_left)
            if num_lacking > FEWEST_ROWS:
                count = min(count, long_left)
                long_left -= count
            if count == 0:
                break
            rows_left -= count
            start = run.root + 1 - num_lacking
            tokens, blocks = self._kv.tokens(run.sequence, start, start + count), self._kv.blocks(run.sequence)
            span = range(start, start + count)
            is_complete = count == num_lacking
            parts.append(SequenceRows(blocks, tokens, span, span, [0] * count, run.root, int(is_complete)))
            self._kv.write(run.sequence, start, start + count)
            ends.append((run.sequence, start + count))
            if is_complete:
                complete.append(run)
        if not parts:
            return
        self._compute(complete, parts)  # at most the last part is cut short and has no output
        for sequence, end in ends:
            self._kv.advance(sequence, end)
        self._runs = {run.sequence.id: run for run in complete}

    def _frontier(self, run: _Run) -> SequenceRows:
        search = run.search
        nodes = search.frontier
        logical = [run.root + search.number(node) for node in nodes]
        self._kv.write(run.sequence, logical[0], logical[-1] + 1)
        return SequenceRows(
            self._kv.blocks(run.sequence),
            self._vocabulary.to_draft([search.token(node) for node in nodes]),
            [run.root + search.depth(node) for node in nodes],
            logical,
            [search.ancestors(node) for node in nodes],
            run.root,
            len(nodes),
        )

    def _compute(self, runs: list[_Run], parts: list[SequenceRows]) -> None:
        """Run the parts, and add what each frontier row proposes to its search. Parts with outputs belong to `runs`."""
        waiting = iter(runs)
        for group in split_rows(parts, self._limits.max_rows, self._limits.max_outputs):
            start = time.perf_counter()
            result = self._program.forward(make_rows(group, self._kv.block_size))
            self._pace.passed(sum(len(part.tokens) for part in group), time.perf_counter() - start)
            output = 0
            for part in group:
                if part.outputs == 0:
                    continue
                run = next(waiting)
                for node in run.search.frontier:
                    found = run.chooser.successors(result.logits((output,))[0], run.search.path(node))
                    run.search.add(node, found.tokens, found.scores, found.probs)
                    output += 1

    def _tree(self, run: _Run | None) -> DraftTree | None:
        if run is None or run.sequence.id not in self._runs:
            return None
        return self._vocabulary.tree(run.search, self._settings.name)
