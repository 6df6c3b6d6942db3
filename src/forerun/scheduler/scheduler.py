"""Scheduler: who computes what in a step, and which blocks hold it.

`select` runs before the step and reserves blocks; `commit` runs after it and appends tokens one by one. Laws:

    order      sequences run and wait in the order of their claims (queue.py): by priority and arrival; when blocks are
               short the last one that runs gives its blocks back and returns to its place in the queue, so the first
               can always finish and nobody waits for ever. Nobody who runs is sent back for one who waits
    drafts     get the blocks that are left when every token and every newcomer has its own
    blocks     a running sequence has blocks for all its tokens; draft slots are added by select, trimmed by commit
    writing    a block is written only by its sole owner and only if the prefix index does not describe it: anybody else
               copies it first (n > 1, and prefix hits that end inside a block)
"""

import itertools
import logging
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from forerun.batch import Drawn, Outcome
from forerun.cache.block_pool import BlockPool
from forerun.cache.prefix_index import PrefixIndex, PrefixMatch
from forerun.config import CacheConfig, SchedulerConfig
from forerun.errors import one_line
from forerun.sampling.prompt_scores import num_unscored
from forerun.scheduler.finish import append_tokens
from forerun.scheduler.fits import check_fits
from forerun.scheduler.prefill import MIN_ROWS, divide, rows_beside
from forerun.scheduler.queue import SequenceQueue
from forerun.scheduler.step_time import StepTime
from forerun.sequence import FinishReason, Sequence

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Share:
    """One sequence's part of a step: its next `num_tokens` pending tokens, and room for draft nodes behind them."""

    sequence: Sequence
    num_tokens: int
    max_nodes: int = 0

    @property
    def draws(self) -> bool:
        """True when the last known token is computed, so that the next one can be drawn."""
        return self.num_tokens == self.sequence.num_pending


@dataclass
class Selection:
    """What a step does, and the blocks to copy (source, target) before it."""

    shares: list[Share] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Changes:
    """What the engine must carry out after a commit: slot moves (source, target) first, then the rest.

    outcomes  per share, what was really appended: cut behind the token that finished the sequence
    """

    outcomes: list[Outcome | None] = field(default_factory=list)
    moves: list[tuple[int, int]] = field(default_factory=list)
    moved: list[tuple[Sequence, int]] = field(default_factory=list)  # whose KV moves, and tokens before the first move
    advanced: list[Sequence] = field(default_factory=list)  # sequences that got tokens or finished
    finished: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Holds the waiting and running sequences. Not thread-safe."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, step_time: StepTime | None = None) -> None:
        self.config = config
        self.waiting = SequenceQueue(config.priority_s)
        self.running = SequenceQueue(config.priority_s)
        self.step_time = step_time or StepTime()
        self.num_preemptions = 0
        self._cache = cache
        self._matches: dict[int, tuple[int, PrefixMatch]] = {}  # waiting sequence -> version of the index, its match
        self.index = PrefixIndex(cache.block_size, cache.codecs)
        self.pool = BlockPool(cache.num_blocks, on_reuse=self.index.forget)

    # ---- requests come and go ----

    def check_fits(self, num_prompt: int, max_tokens: int | None, min_tokens: int = 0) -> None:
        """Refuse at once what could never run. Raises RequestError with the numbers."""
        capacity = self.pool.num_blocks * self._cache.block_size
        check_fits(num_prompt, max_tokens, min_tokens, context=self.config.max_model_len, capacity=capacity)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that `check_fits` accepted."""
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence now, running or waiting, and free its blocks."""
        sequence.finish = reason
        if not self.running.discard(sequence):
            self.waiting.discard(sequence)
        self._release(sequence)
        self._matches.pop(sequence.id, None)

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    # ---- before the step ----

    def select(self, room: Callable[[Sequence, int], int], only: Sequence | None = None) -> Selection:
        """Choose the step's work and reserve its blocks.

        room  the draft nodes wanted, of (sequence, num_decoding)
        only  who may take part, None for everybody

        When it raises, `reset` makes sequences and blocks agree again.
        """
        selection = Selection()
        self._keep_decoding(selection, only)
        self._admit(selection, only)
        taking_part = [sequence for sequence in self.running if only in (None, sequence)]
        decoding = [sequence for sequence in taking_part if sequence.num_pending == 1]
        prefilling = [sequence for sequence in taking_part if sequence.num_pending > 1]
        beside = rows_beside(decoding, prefilling, self.step_time, self.config.prefill_slowdown)
        # Time that prompts can use is not spent on drafts: their rows are never in vain.
        self._select_decoding(selection, decoding, room if beside is None else lambda *_: 0)
        if prefilling and beside != 0:
            self._select_prefill(selection, prefilling, beside)
        return selection

    def reset(self) -> None:
        """Everybody who runs waits again and owns nothing; nothing is lost but the KV that was not in the index."""
        for sequence in [*self.running.clear(), *self.waiting.clear()]:
            self._forget_blocks(sequence)
            self.waiting.add(sequence)
        self._matches.clear()
        self.pool.reset()

    def first_in_line(self) -> list[Sequence]:
        """Those who wait and could run together, in order; after `reset` that is everybody."""
        return list(itertools.islice(self.waiting, self.config.max_num_seqs))

    def _keep_decoding(self, selection: Selection, only: Sequence | None) -> None:
        """A slot for the next token of everybody who decodes, in order; the last ones pay for it."""
        decoding = [s for s in self.running if s.num_pending == 1 and only in (None, s)]
        for sequence in decoding:
            while sequence in self.running and not self._reserve(sequence, 0, selection):
                self._preempt(self.running[-1])

    def _select_decoding(
        self, selection: Selection, decoding: list[Sequence], room: Callable[[Sequence, int], int]
    ) -> None:
        # Every running sequence can draw one token; what is left of rows and outputs may carry draft nodes.
        nodes_left = min(self.config.max_rows, self.config.max_outputs) - len(self.running)
        if any(num_unscored(sequence) for sequence in self.running):  # their prompts need outputs too
            nodes_left = max(0, nodes_left - MIN_ROWS)
        for sequence in decoding:
            nodes = max(0, min(room(sequence, len(decoding)), nodes_left))
            if not self._reserve(sequence, nodes, selection):  # then what its last block still holds
                nodes = len(sequence.block_ids) * self._cache.block_size - len(sequence.tokens)
            selection.shares.append(Share(sequence, 1, nodes))
            nodes_left -= nodes

    def _admit(self, selection: Selection, only: Sequence | None) -> None:
        place = 0  # before it stand choices that wait for their first one
        while place < len(self.waiting) and len(self.running) < self.config.max_num_seqs:
            sequence = self.waiting[place]
            if self._waits_for_fork(sequence) or only not in (None, sequence):
                place += 1
                continue
            if not self._take_blocks(sequence, selection):
                return  # nobody overtakes: that would starve large requests
            self.waiting.discard(sequence)
            self._matches.pop(sequence.id, None)
            self.running.add(sequence)

    def _select_prefill(self, selection: Selection, prefilling: list[Sequence], beside: int | None) -> None:
        outputs = sum(1 + share.max_nodes for share in selection.shares)  # they left one, and a row, to each prompt
        rows_left = self.config.max_rows - outputs
        outputs_left = self.config.max_outputs - outputs - len(prefilling)
        for sequence, count in divide(
            rows_left if beside is None else min(rows_left, beside), outputs_left, prefilling, self.config.max_chunk
        ):
            selection.shares.append(Share(sequence, count))

    # ---- blocks ----

    def _reserve(self, sequence: Sequence, nodes: int, selection: Selection) -> bool:
        """Make slots num_computed .. len(tokens) + nodes - 1 writable; False, nothing taken, when blocks are short."""
        size = self._cache.block_size
        needed = -(-(len(sequence.tokens) + nodes) // size) - len(sequence.block_ids)
        first = sequence.num_computed // size
        must_copy = first < len(sequence.block_ids) and not self.pool.is_writable(sequence.block_ids[first])
        fresh = self.pool.allocate(max(0, needed) + must_copy)
        if fresh is None:
            return False
        if must_copy:
            self._replace_by_copy(sequence, first, fresh.pop(), selection)
        sequence.block_ids.extend(fresh)
        return True

    def _replace_by_copy(self, sequence: Sequence, index: int, fresh: int, selection: Selection) -> None:
        shared = sequence.block_ids[index]
        selection.copies.append((shared, fresh))
        sequence.block_ids[index] = fresh
        self.pool.release([shared])

    def _take_blocks(self, sequence: Sequence, selection: Selection) -> bool:
        """Blocks for a sequence that joins: known prefix shared, the rest fresh. False when they are not there."""
        match = self._known_prefix(sequence)
        # The block that a hit uses in part must be copied; where even that is too much, do without the part.
        whole = match.num_tokens // self._cache.block_size
        without_part = PrefixMatch(match.blocks[:whole], whole * self._cache.block_size)
        for prefix in (match, without_part) if without_part != match else (match,):
            if self._take_after(prefix, sequence, selection):
                if sequence.stats.preemptions == 0:
                    sequence.stats.cached_prompt_tokens = prefix.num_tokens
                return True
        return False

    def _take_after(self, prefix: PrefixMatch, sequence: Sequence, selection: Selection) -> bool:
        for block in prefix.blocks:
            self.pool.share(block)
        sequence.block_ids = array("i", prefix.blocks)
        sequence.num_computed = prefix.num_tokens
        # Leave each running sequence a block to grow into, else the newcomer would soon be preempted again.
        size = self._cache.block_size
        fresh = -(-len(sequence.tokens) // size) - len(prefix.blocks) + (prefix.num_tokens % size != 0)
        if self.pool.num_free >= fresh + len(self.running) and self._reserve(sequence, 0, selection):
            return True
        self._release(sequence)
        return False

    def _known_prefix(self, sequence: Sequence) -> PrefixMatch:
        """The longest prefix whose KV exists: a sibling's prompt (n > 1) or the prefix index. At least one token is
        left to compute, for its logits."""
        size = self._cache.block_size
        best = PrefixMatch((), 0)
        if self._cache.prefix_caching:
            best = self._indexed_prefix(sequence)
        source = self._fork_source(sequence)
        if source is not None and source in self.running:
            usable = min(source.num_computed, sequence.num_prompt - 1)
            if usable > best.num_tokens:
                best = PrefixMatch(tuple(source.block_ids[: -(-usable // size)]), usable)
        return best

    def _indexed_prefix(self, sequence: Sequence) -> PrefixMatch:
        """What the index knows of a waiting sequence, asked again only when the index has changed."""
        version, match = self._matches.get(sequence.id, (-1, PrefixMatch((), 0)))
        if version != self.index.version:
            limit = len(sequence.prompt_logprobs) if num_unscored(sequence) else len(sequence.tokens) - 1
            match = self.index.match(sequence.tokens, sequence.request.salt, limit, sequence.prefix_digests)
            self._matches[sequence.id] = self.index.version, match
        return match

    def _fork_source(self, sequence: Sequence) -> Sequence | None:
        source = sequence.fork_of
        return source if source is not None and not source.is_finished else None

    def _waits_for_fork(self, sequence: Sequence) -> bool:
        """A choice of a request with n > 1 waits until the first one has computed the prompt they share."""
        source = self._fork_source(sequence)
        return source is not None and source.num_computed < source.num_prompt - 1

    def _preempt(self, sequence: Sequence) -> None:
        """Take back all blocks; the sequence will recompute (or find cached) what it had."""
        self.running.discard(sequence)
        self._release(sequence)
        sequence.stats.preemptions += 1
        self.num_preemptions += 1
        self.waiting.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_ids)
        self._forget_blocks(sequence)

    def _forget_blocks(self, sequence: Sequence) -> None:
        sequence.block_ids = array("i")
        sequence.block_digests = []
        sequence.num_computed = 0
        sequence.seen_by.clear()  # a drafter's KV lay in those blocks

    # ---- after the step ----

    def commit(self, shares: list[Share], outcomes: list[Outcome | None], drawn: Drawn, now: float) -> Changes:
        """Append each outcome's tokens through the finish rule, one by one, and advance num_computed.

        outcomes  per share, None for a share that did not draw
        now       time of the step's end on time.perf_counter's clock
        """
        changes = Changes()
        for share, outcome in zip(shares, outcomes, strict=True):
            sequence = share.sequence
            if outcome is None:
                sequence.num_computed += share.num_tokens
                changes.outcomes.append(None)
                continue
            root = len(sequence.tokens) - 1
            try:
                kept = append_tokens(sequence, outcome, drawn, self.config.max_model_len, now)
            except Exception as error:  # what was drawn for one sequence cannot be appended: it ends, the others go on
                log.exception("tokens of sequence %d could not be committed", sequence.id)
                sequence.truncate(root + 1)
                sequence.finish, sequence.error, sequence.stats.finished_s = FinishReason.ERROR, one_line(error), now
                kept = replace(outcome, accepted=(), tokens=(), rows=(), is_finite=False)
            sequence.num_computed = root + 1 + len(kept.accepted)
            moves = [] if kept.tree.is_chain else self._moves(sequence, root, kept.accepted)
            if moves:
                changes.moves += moves
                changes.moved.append((sequence, root + 1))
            changes.outcomes.append(kept)
            changes.advanced.append(sequence)
            if sequence.is_finished:
                changes.finished.append(sequence)
        return changes

    def take_back(self, sequence: Sequence, num_computed: int) -> None:
        """The KV behind so many tokens is lost: the tokens stand, and are computed again."""
        sequence.num_computed = min(sequence.num_computed, num_computed)
        for name, seen in sequence.seen_by.items():
            sequence.seen_by[name] = min(seen, num_computed)

    def settle(self, shares: list[Share], outcomes: list[Outcome | None]) -> None:
        """After moves are done: publish what is complete, trim draft slots, free what finished."""
        size = self._cache.block_size
        for share, outcome in zip(shares, outcomes, strict=True):
            sequence = share.sequence
            # A drawn, finite row vouches for the KV before it, since NaN in any key would have reached it; so a prompt
            # enters the index only when its last row has been drawn.
            if self._cache.prefix_caching and outcome is not None and outcome.is_finite:
                self._publish(sequence)
            if sequence.is_finished:
                self.running.discard(sequence)
                self._release(sequence)
                continue
            keep = -(-len(sequence.tokens) // size)
            self.pool.release(sequence.block_ids[keep:])
            del sequence.block_ids[keep:]

    def _publish(self, sequence: Sequence) -> None:
        try:
            for block in self.index.publish(sequence, sequence.num_computed):
                self.pool.mark_indexed(block)
        except Exception:  # then others do not find it, and that is all
            log.exception("the prefix of sequence %d was not published", sequence.id)
            for block in sequence.block_ids:
                if not self.pool.is_indexed(block):
                    self.index.forget(block)

    def _moves(self, sequence: Sequence, root: int, rows: tuple[int, ...]) -> list[tuple[int, int]]:
        """Bring accepted nodes from the slots of their rows to those of their depths. In ascending depth a target never
        is the source of a later move, because a row number is at least its depth."""
        moves = []
        for depth, row in enumerate(rows, start=1):
            if row != depth:
                moves.append((self.slot(sequence, root + row), self.slot(sequence, root + depth)))
        return moves

    def slot(self, sequence: Sequence, index: int) -> int:
        """Physical slot of a sequence's logical slot."""
        block, offset = divmod(index, self._cache.block_size)
        return sequence.block_ids[block] * self._cache.block_size + offset

    def check(self) -> None:
        """Assert block conservation and the sequences' own laws; for tests and idle moments."""
        self.pool.check(sequence.block_ids for sequence in (*self.running, *self.waiting))
        self.running.check()
        self.waiting.check()
        for sequence in self.running:
            assert sequence.num_computed < len(sequence.tokens), "a running sequence has nothing pending"
            assert len(sequence.block_ids) * self._cache.block_size >= sequence.num_computed, "KV without a block"
            self._check_writable(sequence)
        assert not any(sequence.block_ids for sequence in self.waiting), "a waiting sequence owns blocks"

    def _check_writable(self, sequence: Sequence) -> None:
        first = sequence.num_computed // self._cache.block_size
        for block in sequence.block_ids[first:]:
            assert self.pool.is_writable(block), "a sequence would write a block that others may read"
