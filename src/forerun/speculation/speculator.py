"""Speculator: asks the drafters, checks, merges and cuts their trees, and keeps the statistics.

It stands between the scheduler's selection and the batch. A drafter that fails or proposes nonsense costs speed only:
its nodes are dropped here and the sequence decodes plainly.
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field

from forerun.backends.base import ForwardResult
from forerun.batch import Batch, Outcome
from forerun.errors import RequestError
from forerun.sampling.grammar import cut_to_grammar
from forerun.sequence import Request, Sequence
from forerun.speculation.budget import Budget, StepFacts
from forerun.speculation.drafter import Ask, Computed, Drafter, HiddenStateDrafter, Seen
from forerun.speculation.failures import DraftFailures
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.rule import has_sound_probs

QUIET_STEPS = 4  # without proposals: the budget sees the last of so many


@dataclass
class DrafterStats:
    """Totals of one drafter. Nodes count for the drafter whose name they bear.

    drafted_at, accepted_at  nodes by depth: entry d counts depth d + 1
    """

    drafts: int = 0  # trees with at least one of its nodes
    drafted: int = 0
    accepted: int = 0
    drafted_at: list[int] = field(default_factory=list)
    accepted_at: list[int] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0  # in propose and observe


@dataclass
class SpeculationStats:
    """Totals over the speculator's life.

    bonus      tokens that came without having been drafted, in steps with a draft: one a draft
    verify_s   time of the forward passes and draws of steps that verified a draft
    decisions  what the budget decided, by reason, counted for every sequence in every step
    """

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    bonus: int = 0
    verify_s: float = 0.0
    dropped_nodes: int = 0  # out-of-range ids and what hung below them; trees with impossible distributions
    refused_nodes: int = 0  # forbidden by the request's grammar, and what hung below them
    drafter_errors: int = 0
    by_drafter: dict[str, DrafterStats] = field(default_factory=dict)
    decisions: Counter[str] = field(default_factory=Counter)


class Speculator:
    """Proposes one tree per decoding sequence. Without drafters it is plain decoding.

    guides  free drafters that are asked first, for sequences whose request guides them (Sequence.is_guided) only
    budget  decides who is asked for how much, and which of the proposed nodes are verified
    """

    def __init__(self, drafters: Seq[Drafter], budget: Budget, vocab_size: int, guides: Seq[Drafter] = ()) -> None:
        self.drafters = tuple(drafters)
        self.guides = tuple(guides)
        self.budget = budget
        self._vocab_size = vocab_size
        self.failures = DraftFailures()
        self._use(self.guides + self.drafters)
        self._has_proposals = False  # in this step
        self._num_quiet = 0  # steps without proposals since the budget last saw one
        self._rests = False  # nobody is asked in the coming step
        self._observe_s = 0.0  # in the last step's observe, which is over when its facts are known
        self.stats = SpeculationStats(
            by_drafter={drafter.name: DrafterStats() for drafter in drafters}, decisions=budget.decisions
        )

    def _use(self, drafters: Seq[Drafter]) -> None:
        """Draft with these from now on; requests may still name the others, and are decoded plainly."""
        self._active = tuple(drafters)
        self._unguided = tuple(drafter for drafter in drafters if drafter not in self.guides)
        self._learners = [drafter for drafter in drafters if getattr(drafter, "learns", True)]
        self._readers = [drafter for drafter in drafters if isinstance(drafter, HiddenStateDrafter)]

    @property
    def drafter_name(self) -> str:
        """Names of the drafters joined by "+", "off" without one."""
        return "+".join(drafter.name for drafter in self.drafters) or "off"

    @property
    def names(self) -> list[str]:
        """Drafters that a request may name: also those that draft only for requests which guide them."""
        return [drafter.name for drafter in (*self.drafters, *self.guides)]

    def check(self, request: Request) -> None:
        """Refuse a request that names a drafter that is not loaded. Raises RequestError."""
        wanted = request.params.speculation
        if wanted.drafter not in (None, "off", *self.names):
            known = ", ".join(["off", *self.names])
            raise RequestError(
                f"drafter {wanted.drafter!r} is not loaded here: choose one of {known}", param="speculation"
            )

    def room(self, sequence: Sequence, num_decoding: int) -> int:
        """Draft nodes that the scheduler shall reserve slots for."""
        if self._rests or not self._allowed(sequence):
            return 0
        return self.budget.room(sequence, num_decoding)

    def broke(self, call: str, error: Exception) -> None:
        """The exception that is being handled came from a call as a whole, so from the budget: when that goes on,
        nobody drafts any more."""
        self.stats.drafter_errors += 1
        if self.failures.failed("speculation", call, error):
            self._use(())

    def begin(self, sequence: Sequence) -> None:
        """A sequence joins."""
        for drafter in self._those_for(sequence):
            with self._guard(drafter, "begin"):
                drafter.begin(sequence)

    def end(self, sequence: Sequence) -> None:
        """A sequence leaves."""
        for drafter in self._those_for(sequence):
            with self._guard(drafter, "end"):
                drafter.end(sequence.id)
        self.budget.end(sequence.id)

    def propose(self, sequences: Seq[Sequence], rooms: Seq[int], num_other_rows: int = 0) -> list[DraftTree]:
        """A tree per sequence rooted at its last token, with at most `rooms[i]` nodes; root only where nothing fits.

        num_other_rows  rows of the step that do not draw, such as prefill
        """
        trees = [DraftTree.root_only(sequence.tokens[-1]) for sequence in sequences]
        self._has_proposals = False
        if not self._active or not any(rooms):
            return trees
        for drafter in self._active if any(sequence.is_guided for sequence in sequences) else self._unguided:
            allowed = [i for i, sequence in enumerate(sequences) if rooms[i] > 0 and drafter in self._allowed(sequence)]
            asks = self.budget.asks(drafter, allowed, sequences, rooms, trees) if allowed else {}
            if asks:
                start = time.perf_counter()
                depth = self._ask(drafter, asks, trees)
                seconds = time.perf_counter() - start
                self._stats_of(drafter.name).seconds += seconds
                self.budget.drafted(drafter, list(asks.values()), depth, seconds)
        return self.budget.choose(sequences, rooms, trees, num_other_rows)

    def observe(
        self, sequences: Seq[Sequence], outcomes: Seq[Outcome], batch: Batch, result: ForwardResult, facts: StepFacts
    ) -> None:
        """Count what was verified, and tell budget and drafters. sequences, outcomes  one per Batch.draws entry"""
        if not self._active:
            return
        start = time.perf_counter()
        self._num_quiet += 1
        drafted = [outcome for outcome in outcomes if len(outcome.tree.tokens) > 1]
        for outcome in drafted:
            self._count(outcome)
        if drafted:
            self.stats.verify_s += facts.forward_s
        if drafted or self._has_proposals or self._num_quiet >= QUIET_STEPS:  # of steps alike one in a few is enough
            # The last step's own observation was not over when its facts were taken: it counts as drafting in this one.
            late = self._observe_s
            draft_s, total_s = facts.draft_s + late, facts.total_s + late
            facts = StepFacts(facts.rows, facts.keys, draft_s, facts.forward_s, total_s, self._num_quiet)
            self.budget.observe(sequences, outcomes, facts)
            self._num_quiet = 0
        if self._learners:
            self._teach(sequences, outcomes, batch, result)
        # What a request says of its own text is asked for at every step: it costs next to nothing and is mostly right.
        self._rests = self.budget.rests(len(outcomes)) and not any(sequence.is_guided for sequence in sequences)
        self._observe_s = time.perf_counter() - start

    def _teach(self, sequences: Seq[Sequence], outcomes: Seq[Outcome], batch: Batch, result: ForwardResult) -> None:
        """Show drafters that learn from outcomes what became of their sequences."""
        seen = [
            Seen(sequence, outcome, draw.first_output, result)
            for sequence, outcome, draw in zip(sequences, outcomes, batch.draws, strict=True)
        ]
        for drafter in self._learners:
            mine = [one for one in seen if drafter in self._allowed(one.sequence)]
            if mine:
                with self._guard(drafter, "observe"):
                    drafter.observe(mine)

    def collect(
        self, sequences: Seq[Sequence], outcomes: Seq[Outcome | None], batch: Batch, result: ForwardResult
    ) -> None:
        """Hand hidden states of committed tokens to the drafters that read them, while the sequences have their blocks.

        sequences, outcomes  one per sequence of the batch; None where nothing was drawn
        """
        if not self._readers:
            return
        computed = [
            Computed(sequence, int(batch.context_len[index]), committed_rows(batch, index, outcome), result)
            for index, (sequence, outcome) in enumerate(zip(sequences, outcomes, strict=True))
            if outcome is None or outcome.is_finite
        ]
        for drafter in self._readers:
            mine = [one for one in computed if drafter in self._allowed(one.sequence)]
            if mine:
                with self._guard(drafter, "collect"):
                    drafter.collect(mine)

    def _allowed(self, sequence: Sequence) -> tuple[Drafter, ...]:
        """Drafters that the request lets draft."""
        wanted = sequence.params.speculation.drafter
        active = self._active if sequence.is_guided else self._unguided
        return active if wanted is None else tuple(drafter for drafter in active if drafter.name == wanted)

    def _those_for(self, sequence: Sequence) -> tuple[Drafter, ...]:
        """Drafters that are told of the sequence, also those that are switched off."""
        return self.guides + self.drafters if sequence.is_guided else self.drafters

    def _ask(self, drafter: Drafter, asks: Mapping[int, Ask], trees: list[DraftTree]) -> int:
        """Merge what a drafter proposes into `trees`; returns how deep the deepest of its own is, 0 without any."""
        deepest = 0
        try:
            proposed = drafter.propose(list(asks.values()))
            for (i, ask), tree in zip(asks.items(), proposed, strict=True):
                if tree is None or tree.tokens[0] != trees[i].tokens[0] or tree.num_nodes == 0:
                    continue
                self._has_proposals = True
                deepest = max(deepest, *tree.depths)
                tree = self._allowed_of(ask.sequence, self._sound(tree)).prune(ask.max_nodes, ask.max_depth)
                tree = self.budget.calibrate(drafter, ask.sequence, tree)
                if trees[i].num_nodes == 0:
                    trees[i] = tree
                elif not (tree.draft_probs or trees[i].draft_probs):  # drawn trees stand alone: the first one stays
                    trees[i] = trees[i].merge(tree)
        except Exception as error:
            self._failed(drafter, "propose", error)
        else:
            self.failures.succeeded(drafter.name, "propose")
        return deepest

    def _count(self, outcome: Outcome) -> None:
        tree = outcome.tree
        self.stats.drafts += 1
        self.stats.drafted += tree.num_nodes
        self.stats.accepted += len(outcome.accepted)
        self.stats.bonus += len(outcome.tokens) - len(outcome.accepted)
        for name in set(tree.sources[1:]):
            self._stats_of(name).drafts += 1
        for row in range(1, len(tree)):
            stats = self._stats_of(tree.sources[row])
            stats.drafted += 1
            _raise(stats.drafted_at, tree.depths[row] - 1)
        for row in outcome.accepted:
            stats = self._stats_of(tree.sources[row])
            stats.accepted += 1
            _raise(stats.accepted_at, tree.depths[row] - 1)

    def _stats_of(self, name: str) -> DrafterStats:
        return self.stats.by_drafter.setdefault(name, DrafterStats())

    @contextmanager
    def _guard(self, drafter: Drafter, call: str) -> Iterator[None]:
        """A drafter must never take the engine down: what it raises is counted and logged. Its time is counted too."""
        stats, start = self._stats_of(drafter.name), time.perf_counter()
        try:
            yield
        except Exception as error:
            self._failed(drafter, call, error)
        else:
            self.failures.succeeded(drafter.name, call)
        finally:
            stats.seconds += time.perf_counter() - start

    def _failed(self, drafter: Drafter, call: str, error: Exception) -> None:
        """Count and log the exception that is being handled; a drafter that keeps failing is asked no more."""
        self.stats.drafter_errors += 1
        self._stats_of(drafter.name).errors += 1
        if self.failures.failed(drafter.name, call, error):
            self._use([other for other in self._active if other is not drafter])

    def _sound(self, tree: DraftTree) -> DraftTree:
        """The tree without ids that the target does not know, nor anything below them; none of a tree whose nodes
        cannot have been drawn as it says."""
        if not has_sound_probs(tree, self._vocab_size):
            self.stats.dropped_nodes += tree.num_nodes
            return DraftTree.root_only(tree.tokens[0])
        if min(tree.tokens) >= 0 and max(tree.tokens) < self._vocab_size:
            return tree
        bad = {row for row in range(1, len(tree)) if not 0 <= tree.tokens[row] < self._vocab_size}
        keep = [row for row in range(1, len(tree)) if not any(tree.ancestors[row] >> b & 1 for b in bad)]
        self.stats.dropped_nodes += len(tree) - 1 - len(keep)
        return tree.keep(keep)

    def _allowed_of(self, sequence: Sequence, tree: DraftTree) -> DraftTree:
        """The tree without nodes that the request's grammar forbids. Drawn trees stay whole: which of their nodes are
        verified may not depend on what was drawn."""
        if sequence.token_mask is None or tree.draft_probs:
            return tree
        kept = cut_to_grammar(sequence, tree)
        self.stats.refused_nodes += tree.num_nodes - kept.num_nodes
        return kept


def committed_rows(batch: Batch, index: int, outcome: Outcome | None) -> list[int]:
    """Rows of the batch whose tokens sequence `index` keeps: pending tokens, and accepted nodes in depth order."""
    first, end = int(batch.query_start[index]), int(batch.query_start[index + 1])
    if outcome is None:
        return list(range(first, end))
    root = end - len(outcome.tree)
    return [*range(first, root + 1), *(root + row for row in outcome.accepted)]


def _raise(counts: list[int], index: int) -> None:
    counts.extend([0] * (index + 1 - len(counts)))
    counts[index] += 1
