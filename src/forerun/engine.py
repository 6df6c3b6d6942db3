"""Engine: one step after the other, each readable in one screen.

    sequences arrive -> select -> copy -> propose -> build -> forward -> draw -> verify -> commit -> apply -> observe

A step either commits as a whole or not at all. When it fails, its sequences are retried alone, and only one that fails
again by itself is ended with an error; the others never notice. What each phase's failure costs:

    select, copy            every sequence gives its blocks back, then each has a selection of its own
    propose                 this step's drafts; speculation altogether when that goes on
    build, forward, draw    the step is repeated for each sequence alone
    append                  the sequence
    move                    the KV of accepted drafts: it is computed again
    publish                 a prefix is not found again
    collect, observe        what a drafter would have learned
    clear                   nothing: blocks are cleared later
"""

import itertools
import logging
import os
import time
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from forerun.backends.base import Backend, ForwardResult, SlotMove
from forerun.batch import Batch, Drawn, Outcome
from forerun.errors import RequestError, one_line
from forerun.profile import NoClock, StepClock
from forerun.sampling.noise import make_key, random_seed
from forerun.sampling.prompt_scores import read_scores, scored_positions
from forerun.scheduler.build import build_batch
from forerun.scheduler.scheduler import Changes, Scheduler, Selection, Share
from forerun.scheduler.watchdog import Watchdog
from forerun.sequence import FinishReason, Request, Sequence, TokenLogprob
from forerun.speculation.budget import StepFacts
from forerun.speculation.speculator import Speculator
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.verifier import CoupledVerifier, Verifier

CHECK_VARIABLE = "FORERUN_CHECK"

log = logging.getLogger(__name__)


@dataclass
class EngineStats:
    """Totals over the engine's life."""

    steps: int = 0
    rows: int = 0
    failed_steps: int = 0
    stuck: int = 0  # sequences that ended because nobody could run
    last_error: str = ""  # of a failed step, in one line
    forward_s: float = 0.0  # inside the backend: forward and draw
    total_s: float = 0.0  # whole steps


@dataclass(frozen=True)
class _Result:
    """What a computed, not yet committed, step came to."""

    shares: list[Share]
    outcomes: list[Outcome | None]
    drawn: Drawn
    batch: Batch
    logits: ForwardResult
    scores: list[TokenLogprob]  # of the prompts' tokens, share by share
    forward_s: float
    keys: int


class Engine:
    """Runs sequences on a backend. Not thread-safe: one thread adds, steps and aborts.

    clock  is told when a phase of a step ends
    """

    def __init__(
        self,
        backend: Backend,
        scheduler: Scheduler,
        speculator: Speculator,
        vocab_size: int,
        clock: StepClock | None = None,
        verifier: Verifier | None = None,
    ) -> None:  # size: the parts of an engine
        self._backend = backend
        self.scheduler = scheduler
        self.speculator = speculator
        self.stats = EngineStats()
        self._clock: StepClock = clock or NoClock()
        self._verifier: Verifier = verifier or CoupledVerifier()
        self._vocab_size = vocab_size
        self._block_size = scheduler.block_size
        self._ids = itertools.count()
        self._unclear: list[int] = []  # blocks that must be cleared still
        self._watchdog = Watchdog(scheduler)
        self._checks = os.environ.get(CHECK_VARIABLE) == "1"

    # ---- requests ----

    def check_request(self, request: Request) -> None:
        """Raise RequestError when a request can never be served; nothing is queued."""
        self._check(request)
        self.speculator.check(request)

    def add(self, request: Request) -> list[Sequence]:
        """Queue a request; returns its `n` sequences. Raises RequestError when it can never be served."""
        self.check_request(request)
        params = request.params
        seed = params.seed if params.seed is not None else random_seed()
        sequences: list[Sequence] = []
        for choice in range(params.n):
            sequence = Sequence(
                id=next(self._ids),
                request=request,
                choice=choice,
                seed=seed,
                key=make_key(seed, choice),
                tokens=list(request.prompt),
                num_prompt=len(request.prompt),
                fork_of=sequences[0] if sequences else None,
                is_lossy=self._verifier.is_lossy,
                stop_matcher=request.make_stop_matcher() if request.make_stop_matcher else None,
                token_mask=request.make_token_mask() if request.make_token_mask else None,
            )
            sequence.stats.arrived_s = time.perf_counter()
            sequences.append(sequence)
        for sequence in sequences:  # all or none: a stop matcher that cannot be made leaves nothing behind
            self.scheduler.add(sequence)
            self.speculator.begin(sequence)
        return sequences

    def abort(self, sequence: Sequence, reason: FinishReason = FinishReason.ABORTED) -> None:
        """End a sequence now; its blocks are free when this returns."""
        if not sequence.is_finished:
            self.scheduler.remove(sequence, reason)
            self._leave(sequence)
            sequence.stats.finished_s = time.perf_counter()

    def fail_all(self, error: Exception) -> list[Sequence]:
        """End everybody who runs, after a step that raised; returns them. Who waits goes on waiting, but where nobody
        runs the first in line ends, so that a step that always raises comes to an end."""
        ending = list(self.scheduler.running) or self.scheduler.first_in_line()[:1]
        self.stats.failed_steps += 1
        self.stats.last_error = one_line(error)
        self.scheduler.reset()
        return [self._fail(sequence, error) for sequence in ending]

    @property
    def verification(self) -> dict[str, str | bool]:
        """How drafts are verified, and what that promises."""
        verifier = self._verifier
        return {"name": verifier.name, "repeats_seeds": verifier.is_seeded, "is_lossy": verifier.is_lossy}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def check(self) -> None:
        """Assert the invariants of blocks and sequences."""
        self.scheduler.check()

    # ---- the step ----

    def step(self) -> list[Sequence]:
        """Run one step; returns the sequences that got tokens or ended. With FORERUN_CHECK=1 it checks itself."""
        advanced = self._step()
        if self._checks:
            self.check()
        return advanced

    def _step(self) -> list[Sequence]:
        start = time.perf_counter()
        self._clock.start_step()
        try:
            selection = self._select()
        except Exception as error:
            self._note("select", error)
            return self._select_alone()
        if not selection.shares:
            return self._wait()
        self._watchdog.ran()
        return self._run(selection, start)

    def _wait(self) -> list[Sequence]:
        """Nothing could be selected. When that goes on the first in line ends: nobody steps for ever."""
        found = self._watchdog.stuck()
        if found is None:
            return []
        sequence, error = found
        self.stats.stuck += 1
        self.stats.last_error = one_line(error)
        log.error("sequence %d ends: %s", sequence.id, error)
        return [self._fail(sequence, error)]

    def _select(self, only: Sequence | None = None) -> Selection:
        """Choose the work, and make the copies of blocks that it needs."""
        selection = self.scheduler.select(self._room, only)
        self._clock.end_phase("select")
        if selection.copies:  # first, because drafters may read and write the KV of the blocks that are copied
            self._backend.copy_blocks(selection.copies)
            self._clock.end_phase("copy")
        return selection

    def _select_alone(self) -> list[Sequence]:
        """A step of its own for every sequence that could run. Blocks and sequences are of no certain state: all give
        back what they own, before the first and whenever one fails again, which ends that one."""
        self.scheduler.reset()
        advanced: list[Sequence] = []
        for sequence in self.scheduler.first_in_line():
            start = time.perf_counter()
            try:
                selection = self._select(only=sequence)
            except Exception as error:
                log.exception("no step could be made for sequence %d, which ends", sequence.id)
                self.scheduler.reset()
                advanced.append(self._fail(sequence, error))
            else:
                advanced += self._run(selection, start) if selection.shares else []
        return list(dict.fromkeys(advanced))

    def _note(self, phase: str, error: Exception) -> None:
        """Count and log the exception that is being handled."""
        self.stats.failed_steps += 1
        self.stats.last_error = one_line(error)
        log.warning("a step failed in %s, its sequences are retried alone: %s", phase, error, exc_info=True)

    def _run(self, selection: Selection, start: float) -> list[Sequence]:
        draft_start = time.perf_counter()
        trees = self._propose(selection)
        draft_s = time.perf_counter() - draft_start
        self._clock.end_phase("propose")
        advanced = self._compute(selection.shares, trees, start, draft_s)
        rows = sum(share.num_tokens for share in selection.shares) + sum(tree.num_nodes for tree in trees if tree)
        self.stats.steps += 1
        self.stats.rows += rows
        self.stats.total_s += time.perf_counter() - start
        return advanced

    def _room(self, sequence: Sequence, num_decoding: int) -> int:
        try:
            return self.speculator.room(sequence, num_decoding)
        except Exception as error:
            self.speculator.broke("room", error)
            return 0

    def _propose(self, selection: Selection) -> list[DraftTree | None]:
        """A tree per share that draws, None for the others."""
        drawing = [share for share in selection.shares if share.draws]
        other_rows = sum(share.num_tokens for share in selection.shares) - len(drawing)
        sequences = [share.sequence for share in drawing]
        try:
            trees = self.speculator.propose(sequences, [share.max_nodes for share in drawing], other_rows)
        except Exception as error:
            self.speculator.broke("propose", error)
            trees = [DraftTree.root_only(sequence.tokens[-1]) for sequence in sequences]
        proposed = iter(trees)
        return [next(proposed) if share.draws else None for share in selection.shares]

    def _compute(
        self, shares: list[Share], trees: list[DraftTree | None], start: float, draft_s: float
    ) -> list[Sequence]:
        """Forward, draw, verify and commit; when that fails before the commit, every share alone."""
        try:
            result = self._forward(shares, trees)
        except Exception as error:
            self._note("compute", error)
            return self._retry_alone(shares, trees, start, draft_s)
        return self._commit(result, start, draft_s)

    def _retry_alone(
        self, shares: list[Share], trees: list[DraftTree | None], start: float, draft_s: float
    ) -> list[Sequence]:
        """Each share as a step of its own; one that fails again ends."""
        advanced = []
        for share, tree in zip(shares, trees, strict=True):
            try:
                result = self._forward([share], [tree])
            except Exception as error:
                log.exception("sequence %d failed twice and ends", share.sequence.id)
                advanced.append(self._fail(share.sequence, error))
            else:
                advanced += self._commit(result, start, draft_s)
        return advanced

    def _forward(self, shares: list[Share], trees: list[DraftTree | None]) -> _Result:
        batch = build_batch(shares, trees, self._block_size)
        self._clock.end_phase("build")
        start = time.perf_counter()
        result = self._backend.forward(batch)
        self._clock.end_phase("forward")
        drawn, verified = self._verifier.verify(self._backend, result, batch)
        scores = self._score(result, batch)
        seconds = time.perf_counter() - start
        self._clock.end_phase("draw")
        self.stats.forward_s += seconds
        keys = sum(batch.positions.tolist()) + batch.num_rows
        reading = [share for share in shares if share.num_tokens > 1 or not share.draws]
        prompts = [(share.num_tokens, share.sequence.num_computed) for share in reading]
        prompt_rows = sum(count for count, _ in prompts)
        prompt_keys = sum(count * context + count * (count + 1) // 2 for count, context in prompts)
        self.scheduler.step_time.observe(
            batch.num_rows - prompt_rows, keys - prompt_keys, seconds, prompt_rows, prompt_keys
        )
        outcomes = iter(verified)
        by_share = [next(outcomes) if tree is not None else None for tree in trees]
        return _Result(shares, by_share, drawn, batch, result, scores, seconds, keys)

    def _score(self, result: ForwardResult, batch: Batch) -> list[TokenLogprob]:
        """Log-probabilities of the prompts' tokens that the step tells."""
        if not batch.scores:
            return []
        return read_scores(batch.scores, self._backend.draw(result, replace(batch, draws=batch.scores)))

    def _fail(self, sequence: Sequence, error: Exception) -> Sequence:
        sequence.error = one_line(error)
        blocks = list(sequence.block_ids)
        self.abort(sequence, FinishReason.ERROR)
        self._scrub(blocks)
        return sequence

    def _commit(self, result: _Result, start: float, draft_s: float) -> list[Sequence]:
        scores = iter(result.scores)
        for share in result.shares:
            first = share.sequence.num_computed
            told = len(scored_positions(share.sequence, first, first + share.num_tokens))
            share.sequence.prompt_logprobs += itertools.islice(scores, told)
        changes = self.scheduler.commit(result.shares, result.outcomes, result.drawn, time.perf_counter())
        self._clock.end_phase("commit")
        if changes.moves:
            self._move(changes)
            self._clock.end_phase("move")
        pairs = [(s.sequence, o) for s, o in zip(result.shares, changes.outcomes, strict=True) if o is not None]
        computed = [share.sequence for share in result.shares]
        try:  # before settle: who ends has blocks still
            self.speculator.collect(computed, changes.outcomes, result.batch, result.logits)
        except Exception as error:
            self.speculator.broke("collect", error)
        tainted = [block for sequence, outcome in pairs if not outcome.is_finite for block in sequence.block_ids]
        self.scheduler.settle(result.shares, changes.outcomes)
        self._scrub(tainted)
        self._clock.end_phase("settle")
        facts = StepFacts(result.batch.num_rows, result.keys, draft_s, result.forward_s, time.perf_counter() - start)
        sequences, outcomes = [sequence for sequence, _ in pairs], [outcome for _, outcome in pairs]
        try:
            self.speculator.observe(sequences, outcomes, result.batch, result.logits, facts)
        except Exception as error:
            self.speculator.broke("observe", error)
        for sequence in changes.finished:
            self._leave(sequence)
        self._clock.end_phase("observe")
        return changes.advanced

    def _move(self, changes: Changes) -> None:
        try:
            self._backend.move_kv([SlotMove(source, target) for source, target in changes.moves])
        except Exception as error:  # some were made, others not, and none can be made twice
            self._note("move", error)
            for sequence, num_kept in changes.moved:
                self.scheduler.take_back(sequence, num_kept)

    def _leave(self, sequence: Sequence) -> None:
        try:
            self.speculator.end(sequence)
        except Exception as error:
            self.speculator.broke("end", error)

    def _scrub(self, blocks: Seq[int]) -> None:
        """Zero those of a failed sequence's former blocks that nobody uses now, so that no NaN outlives it."""
        pool = self.scheduler.pool
        wanted = [block for block in dict.fromkeys((*self._unclear, *blocks)) if pool.is_blank(block)]
        self._unclear = []
        if not wanted:
            return
        try:
            self._backend.clear_blocks(wanted)
        except Exception as error:
            self._note("clear", error)
            self._unclear = wanted

    def _check(self, request: Request) -> None:
        bad: Seq[int] = [token for token in request.prompt if not 0 <= token < self._vocab_size]
        if bad:
            raise RequestError(f"token id {bad[0]} is not in the vocabulary of {self._vocab_size}", param="prompt")
        params = request.params
        for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            wrong = [token for token in ids if token >= self._vocab_size]
            if wrong:
                raise RequestError(f"{name}: id {wrong[0]} is not in the vocabulary of {self._vocab_size}", param=name)
        if params.seed is not None and params.temperature > 0 and not self._verifier.is_seeded:
            name = self._verifier.name
            raise RequestError(
                f"{name} verification cannot repeat a seed: leave it out, or use coupled verification", param="seed"
            )
        if params.stop and request.make_stop_matcher is None:
            raise RequestError("stop strings need a tokenizer; use stop_token_ids", param="stop")
        self.scheduler.check_fits(len(request.prompt), params.max_tokens, params.min_tokens)
