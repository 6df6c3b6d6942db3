"""Scheduler: who computes what in a step, and which blocks hold it.

`select` runs before the step and reserves blocks; `commit` runs after it and appends tokens one by one. Laws:

    order      sequences run and wait in order of arrival; when blocks are short the youngest gives its blocks back and
               returns to its place in the queue, so the oldest can always finish and nobody waits for ever
    drafts     get the blocks that are left when every token and every newcomer has its own
    blocks     a running sequence has blocks for all its tokens; draft slots are added by select, trimmed by commit
    writing    a block is written only by its sole owner and only if the prefix index does not describe it: anybody else
               copies it first (n > 1, and prefix hits that end inside a block)
"""

from array import array
from bisect import bisect
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from forerun.batch import Drawn, Outcome
from forerun.cache.block_pool import BlockPool
from forerun.cache.prefix_index import PrefixIndex, PrefixMatch
from forerun.config import CacheConfig, SchedulerConfig
from forerun.errors import RequestError
from forerun.scheduler.finish import append_tokens
from forerun.scheduler.step_time import StepTime
from forerun.sequence import FinishReason, Sequence

MIN_PREFILL_ROWS = 16  # a prompt advances at least this far per step, however slow the step is predicted to be


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
    advanced: list[Sequence] = field(default_factory=list)  # sequences that got tokens or finished
    finished: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Holds the waiting and running sequences. Not thread-safe."""

    def __init__(self, config: SchedulerConfig, cache: CacheConfig, step_time: StepTime | None = None) -> None:
        self.config = config
        self.waiting: deque[Sequence] = deque()  # oldest first
        self.running: list[Sequence] = []  # oldest first
        self.step_time = step_time or StepTime()
        self.num_preemptions = 0
        self._cache = cache
        self.index = PrefixIndex(cache.block_size, cache.codecs)
        self.pool = BlockPool(cache.num_blocks, on_reuse=self.index.forget)

    # ---- requests come and go ----

    def check_fits(self, num_prompt: int, max_tokens: int | None) -> None:
        """Refuse at once what could never run. Raises RequestError with the numbers."""
        limit = self.config.max_model_len
        if num_prompt < 1:
            raise RequestError("the prompt is empty: give it at least one token", param="prompt")
        if num_prompt >= limit:
            raise RequestError(
                f"the prompt has {num_prompt} tokens but the context holds {limit}, one of them for the answer: "
                "shorten the prompt or raise max_model_len",
                param="prompt",
            )
        longest = limit if max_tokens is None else min(limit, num_prompt + max_tokens)
        capacity = self.pool.num_blocks * self._cache.block_size
        if longest > capacity:
            raise RequestError(
                f"the request may grow to {longest} tokens but the KV cache holds {capacity}: "
                "lower max_tokens or raise kv_cache_bytes",
                param="max_tokens",
            )

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that `check_fits` accepted."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence, reason: FinishReason) -> None:
        """End a sequence now, running or waiting, and free its blocks."""
        sequence.finish = reason
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._release(sequence)

    @property
    def block_size(self) -> int:
        return self._cache.block_size

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    # ---- before the step ----

    def select(self, room: Callable[[Sequence, int], int]) -> Selection:
        """Choose the step's work and reserve its blocks; `room(sequence, num_decoding)` is the draft nodes wanted."""
        selection = Selection()
        self._keep_decoding(selection)
        self._admit(selection)
        self._select_decoding(selection, room)
        self._select_prefill(selection)
        return selection

    def _keep_decoding(self, selection: Selection) -> None:
        """A slot for the next token of everybody who decodes, oldest first; the youngest pay for it."""
        for sequence in [sequence for sequence in self.running if sequence.num_pending == 1]:
            while sequence in self.running and not self._reserve(sequence, 0, selection):
                self._preempt(self.running[-1])

    def _select_decoding(self, selection: Selection, room: Callable[[Sequence, int], int]) -> None:
        decoding = [sequence for sequence in self.running if sequence.num_pending == 1]
        # Every running sequence can draw one token; what is left of rows and outputs may carry draft nodes.
        nodes_left = min(self.config.max_rows, self.config.max_outputs) - len(self.running)
        for sequence in decoding:
            nodes = max(0, min(room(sequence, len(decoding)), nodes_left))
            if not self._reserve(sequence, nodes, selection):  # then what its last block still holds
                nodes = len(sequence.block_ids) * self._cache.block_size - len(sequence.tokens)
            selection.shares.append(Share(sequence, 1, nodes))
            nodes_left -= nodes

    def _admit(self, selection: Selection) -> None:
        for sequence in list(self.waiting):
            if len(self.running) >= self.config.max_num_seqs:
                return
            if self._waits_for_fork(sequence):
                continue
            if not self._take_blocks(sequence, selection):
                return  # nobody overtakes: that would starve large requests
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.running.sort(key=lambda other: other.id)

    def _select_prefill(self, selection: Selection) -> None:
        chosen = {share.sequence.id for share in selection.shares}
        prefilling = [sequence for sequence in self.running if sequence.id not in chosen]
        rows = sum(1 + share.max_nodes for share in selection.shares)
        keys = sum((1 + share.max_nodes) * len(share.sequence.tokens) for share in selection.shares)
        rows_left = self.config.max_rows - rows  # drafting left a row and an output to each of them
        if selection.shares and prefilling:
            left_s = self.config.prefill_step_s - self.step_time.predict(rows, keys)
            context = max(sequence.num_computed for sequence in prefilling)
            within = self.step_time.rows_within(left_s, context, rows_left)
            rows_left = min(rows_left, max(within, MIN_PREFILL_ROWS, len(prefilling)))
        # Several prompts share the rows evenly; what a short one leaves over goes to the longer ones.
        prefilling.sort(key=lambda sequence: (sequence.num_pending, sequence.id))
        for index, sequence in enumerate(prefilling):
            part = -(-rows_left // (len(prefilling) - index))
            count = min(sequence.num_pending, part, self.config.max_chunk or part)
            rows_left -= count
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
            best = self.index.match(sequence.tokens, sequence.request.salt, limit=len(sequence.tokens) - 1)
        source = self._fork_source(sequence)
        if source is not None and source in self.running:
            usable = min(source.num_computed, sequence.num_prompt - 1)
            if usable > best.num_tokens:
                best = PrefixMatch(tuple(source.block_ids[: -(-usable // size)]), usable)
        return best

    def _fork_source(self, sequence: Sequence) -> Sequence | None:
        source = sequence.fork_of
        return source if source is not None and not source.is_finished else None

    def _waits_for_fork(self, sequence: Sequence) -> bool:
        """A choice of a request with n > 1 waits until the first one has computed the prompt they share."""
        source = self._fork_source(sequence)
        return source is not None and source.num_computed < source.num_prompt - 1

    def _preempt(self, sequence: Sequence) -> None:
        """Take back all blocks; the sequence will recompute (or find cached) what it had."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.stats.preemptions += 1
        self.num_preemptions += 1
        self.waiting.insert(bisect(self.waiting, sequence.id, key=lambda other: other.id), sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_ids)
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
            kept = append_tokens(sequence, outcome, drawn, self.config.max_model_len, now)
            sequence.num_computed = root + 1 + len(kept.accepted)
            if not kept.tree.is_chain:
                changes.moves += self._moves(sequence, root, kept.accepted)
            changes.outcomes.append(kept)
            changes.advanced.append(sequence)
            if sequence.is_finished:
                changes.finished.append(sequence)
        return changes

    def settle(self, shares: list[Share], outcomes: list[Outcome | None]) -> None:
        """After moves are done: publish what is complete, trim draft slots, free what finished."""
        size = self._cache.block_size
        for share, outcome in zip(shares, outcomes, strict=True):
            sequence = share.sequence
            # A drawn, finite row vouches for the KV before it, since NaN in any key would have reached it; so a prompt
            # enters the index only when its last row has been drawn.
            if self._cache.prefix_caching and outcome is not None and outcome.is_finite:
                for block in self.index.publish(sequence, sequence.num_computed):
                    self.pool.mark_indexed(block)
            if sequence.is_finished:
                self.running.remove(sequence)
                self._release(sequence)
                continue
            keep = -(-len(sequence.tokens) // size)
            self.pool.release(sequence.block_ids[keep:])
            del sequence.block_ids[keep:]

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
        for queue in (self.running, self.waiting):
            ids = [sequence.id for sequence in queue]
            assert ids == sorted(set(ids)), "a queue is not in order of arrival"
        for sequence in self.running:
            assert sequence.num_computed < len(sequence.tokens), "a running sequence has nothing pending"
            assert len(sequence.block_ids) * self._cache.block_size >= sequence.num_computed, "KV without a block"
            self._check_writable(sequence)
        assert not any(sequence.block_ids for sequence in self.waiting), "a waiting sequence owns blocks"

    def _check_writable(self, sequence: Sequence) -> None:
        first = sequence.num_computed // self._cache.block_size
        for block in sequence.block_ids[first:]:
            assert self.pool.is_writable(block), "a sequence would write a block that others may read"
