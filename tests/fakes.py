"""Fakes: a backend whose logits are a hash of the path, and drafters with known behaviour.

FakeBackend keeps the token that each KV slot holds and computes a row's logits from the tokens found at the row's
visible slots. So a wrong block, slot, position, mask, copy or move changes the logits, just as it would with real KV.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from forerun.backends.base import Limits, LoadedModel, MemoryReport, SlotMove
from forerun.batch import NOT_FINITE, Batch, Drawn, DrawRequest
from forerun.cache.layout import KvLayout, KvStack
from forerun.config import CacheConfig, SchedulerConfig, SpeculationConfig
from forerun.engine import Engine
from forerun.sampling import noise
from forerun.sampling.noise import make_key
from forerun.sampling.processors import History
from forerun.sampling.top import top_ids
from forerun.sampling.walk import draw_batch, draw_row, hash_row, log_softmax_at
from forerun.scheduler.scheduler import Scheduler
from forerun.scheduler.step_time import StepTime
from forerun.sequence import FinishReason, Request, SamplingParams, Sequence, TokenLogprob
from forerun.speculation.budget import Budget, FixedBudget
from forerun.speculation.drafter import Ask, Drafter, Seen
from forerun.speculation.speculator import Speculator
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.verifier import make_verifier

VOCAB = 32


@lru_cache(maxsize=200_000)
def path_logits(path: tuple[int, ...], vocab: int = VOCAB) -> np.ndarray:
    """[vocab] float32 logits after a path of tokens; with a favourite so that greedy text is not noise."""
    seed = int.from_bytes(hashlib.blake2b(repr(path).encode(), digest_size=8).digest(), "little")
    row = np.random.Generator(np.random.PCG64(seed)).standard_normal(vocab) * 2
    return row.astype(np.float32)


@lru_cache(maxsize=200_000)
def repetitive_logits(path: tuple[int, ...], vocab: int = VOCAB) -> np.ndarray:
    """Logits that depend on the last token mostly, so that text repeats itself and n-grams pay."""
    return (path_logits(path[-1:], vocab) + 0.05 * path_logits(path, vocab)).astype(np.float32)


@dataclass
class _Result:
    rows: list[np.ndarray]

    def logits(self, outputs: Seq[int]) -> np.ndarray:
        return np.stack([self.rows[index] for index in outputs])

    def top(self, outputs: Seq[int], count: int) -> np.ndarray:
        return top_ids(np.stack(self.rows), outputs, count)


class FakeBackend:
    """Instant model over an audited KV store. `corrupt(batch, rows)` may damage logits or raise."""

    name = "fake"
    numerics_id = "fake/1"
    row_tile = 1

    def __init__(
        self,
        logits: Callable[[tuple[int, ...], int], np.ndarray] = path_logits,
        vocab: int = VOCAB,
        corrupt: Callable[[Batch, list[np.ndarray]], None] | None = None,
    ) -> None:
        self._logits, self._vocab, self._corrupt = logits, vocab, corrupt
        self.batches: list[Batch] = []

    def load(self, model: LoadedModel, limits: Limits, progress: object = None) -> None:
        pass

    def allocate_kv(self, layout: KvLayout) -> None:
        self._size = layout.block_size
        self._held = np.full(layout.num_slots, -1, np.int64)  # token in each slot

    def forward(self, batch: Batch) -> _Result:
        self.batches.append(batch)
        assert len(set(batch.slots.tolist())) == batch.num_rows, "two rows write one slot"
        self._held[batch.slots] = batch.tokens
        owner = np.repeat(np.arange(len(batch.context_len)), np.diff(batch.query_start))
        rows = [self._logits(self._path(batch, int(row), int(owner[row])), self._vocab) for row in batch.output_rows]
        if self._corrupt is not None:
            rows = [row.copy() for row in rows]
            self._corrupt(batch, rows)
        return _Result(rows)

    def draw(self, result: _Result, batch: Batch) -> Drawn:
        return draw_batch(lambda index: result.rows[index], batch)

    def copy_blocks(self, pairs: Seq[tuple[int, int]]) -> None:
        blocks = self._held.reshape(-1, self._size)
        for source, target in pairs:
            blocks[target] = blocks[source]

    def move_kv(self, moves: Seq[SlotMove]) -> None:
        for move in moves:
            self._held[move.target] = self._held[move.source]

    def clear_blocks(self, blocks: Seq[int]) -> None:
        for block in blocks:
            self._held.reshape(-1, self._size)[block] = -2

    def memory(self) -> MemoryReport:
        return MemoryReport(0, self._held.nbytes, 0)

    def _path(self, batch: Batch, row: int, owner: int) -> tuple[int, ...]:
        """Tokens at the row's visible slots in logical order."""
        root, mask = int(batch.tree_root[owner]), int(batch.ancestors[row])
        nodes = [node for node in range(1, mask.bit_length()) if mask >> node & 1]
        causal = root if mask else int(batch.positions[row])
        logical = np.array([*range(causal + 1), *(root + node for node in nodes)])
        slots = (batch.block_table[owner, logical // self._size] * self._size + logical % self._size).tolist()
        path = tuple(int(self._held[slot]) for slot in slots)
        assert min(path) >= 0, "a row sees a slot that was never written"
        assert len(path) == int(batch.positions[row]) + 1, "a row's keys do not end at its position"
        return path


# ---- drafters ----


class Stateless:
    """A drafter that remembers nothing: `tree` says what it proposes."""

    name = "stateless"
    is_paid = False

    def begin(self, sequence: Sequence) -> None:
        pass

    def observe(self, seen: Seq[Seen]) -> None:
        pass

    def end(self, sequence_id: int) -> None:
        pass

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self.tree(ask) for ask in asks]

    def tree(self, ask: Ask) -> DraftTree | None:
        raise NotImplementedError


class RandomDrafter(Stateless):
    """Random trees; `garbage` adds ids outside the vocabulary and oversized trees."""

    name = "random"

    def __init__(self, seed: int = 0, vocab: int = VOCAB, chain: bool = False, garbage: bool = False) -> None:
        self._random, self._vocab, self._chain, self._garbage = random.Random(seed), vocab, chain, garbage

    def tree(self, ask: Ask) -> DraftTree | None:
        limit = 40 if self._garbage else ask.max_nodes
        low, high = (-3, self._vocab + 3) if self._garbage else (0, self._vocab - 1)
        tokens, parents = [ask.sequence.tokens[-1]], [-1]
        for row in range(1, self._random.randint(0, limit) + 1):
            parent = row - 1 if self._chain else self._random.randrange(len(tokens))
            token = self._random.randint(low, high)
            if (parent, token) not in set(zip(parents, tokens, strict=True)):
                tokens.append(token)
                parents.append(parent if parent < len(tokens) - 1 else len(tokens) - 2)
        try:
            return DraftTree.of(tokens, parents, (1.0,) * len(tokens), self.name)
        except ValueError:
            return None


class OracleDrafter(Stateless):
    """Knows the right continuation; `wrong_at` breaks every n-th token, `branch` hides it among wrong siblings."""

    name = "oracle"

    def __init__(self, text: Callable[[Sequence], list[int]], wrong_at: int = 0, branch: bool = False) -> None:
        self._text, self._wrong_at, self._branch = text, wrong_at, branch

    def tree(self, ask: Ask) -> DraftTree | None:
        done = ask.sequence.num_output
        path = self._text(ask.sequence)[done : done + ask.max_depth]
        if self._wrong_at:
            path = [(t + 1) % VOCAB if i % self._wrong_at == self._wrong_at - 1 else t for i, t in enumerate(path)]
        if not self._branch:
            return DraftTree.chain(ask.sequence.tokens[-1], path[: ask.max_nodes], source=self.name)
        paths = []
        for depth in range(len(path)):  # at every depth a wrong sibling comes before the right node
            paths += [[*path[:depth], (path[depth] + 1) % VOCAB], path[: depth + 1]]
        tree = DraftTree.from_paths(ask.sequence.tokens[-1], paths, source=self.name)
        return tree.prune(ask.max_nodes)


class ScriptedDrafter(Stateless):
    """Proposes what a function says."""

    name = "scripted"

    def __init__(self, script: Callable[[Ask], DraftTree | None]) -> None:
        self.tree = script  # type: ignore[method-assign]


# ---- engines ----


@dataclass
class Setup:
    """Everything that must not change the output."""

    drafter: Drafter | None = None
    budget: Budget | None = None  # in place of a fixed one
    max_depth: int = 6
    num_blocks: int = 64
    block_size: int = 16
    prefix_caching: bool = True
    max_rows: int = 128
    max_outputs: int = 64
    max_num_seqs: int = 16
    max_model_len: int = 256
    max_chunk: int = 0
    prefill_slowdown: float = 1.5
    vocab: int = VOCAB
    verification: str = "coupled"
    backend: FakeBackend = field(default_factory=FakeBackend)

    @property
    def drafters(self) -> list[Drafter]:
        return [] if self.drafter is None else [self.drafter]

    def engine(self) -> Engine:
        scheduler = Scheduler(
            SchedulerConfig(
                self.max_rows,
                self.max_outputs,
                self.max_num_seqs,
                self.max_model_len,
                prefill_slowdown=self.prefill_slowdown,
                max_chunk=self.max_chunk,
            ),
            CacheConfig(self.num_blocks, self.block_size, ("fp32",), self.prefix_caching),
            StepTime(),
        )
        speculation = SpeculationConfig(max_depth=self.max_depth, max_draft_rows=48)
        self.backend.allocate_kv(KvLayout(self.num_blocks, self.block_size, (KvStack("target", 1, 1, 1, "fp32"),)))
        budget = self.budget or FixedBudget(speculation, self.max_model_len)
        speculator = Speculator(self.drafters, budget, self.vocab)
        verifier = make_verifier(self.verification)
        return Engine(self.backend, scheduler, speculator, self.vocab, verifier=verifier)


def run(engine: Engine, requests: Seq[Request], max_steps: int = 5000) -> list[list[Sequence]]:
    """Run all requests to their end, checking the invariants after every step."""
    added = [engine.add(request) for request in requests]
    for _ in range(max_steps):
        if not engine.has_work:
            break
        engine.step()
        engine.check()
    assert not engine.has_work, "the engine makes no progress"
    assert engine.scheduler.pool.num_owned == 0, "blocks leaked"
    return added


def request(prompt: Seq[int], name: str = "r", **params: object) -> Request:
    """A request with eos id 0."""
    options: dict = {"max_tokens": 24, "logits_hash": True, "seed": 1, **params}
    return Request(name, tuple(prompt), SamplingParams(**options), eos_ids=(0,))


def facts(sequence: Sequence) -> tuple[object, ...]:
    """What losslessness promises to be equal."""
    return (sequence.output, sequence.finish, sequence.logits_hashes, sequence.logprobs)


def prompt_of(seed: int, length: int) -> tuple[int, ...]:
    """A random prompt without the eos id."""
    rng = random.Random(seed)
    return tuple(rng.randrange(1, VOCAB) for _ in range(length))


# ---- plain decoding, written without the engine ----


class PairStop:
    """Stop matcher that knows one "string" of two tokens: the second is the first plus one."""

    def __init__(self) -> None:
        self._before: int | None = None

    def push(self, token: int, may_stop: bool) -> bool:
        found = self._before is not None and token == self._before + 1
        self._before = token
        return found and may_stop


class FiniteStateMask:
    """A grammar of five states: some two fifths of the tokens may follow in each, the end (id 0) in one of them.

    A token that is not allowed ends the sequence with an error, so that none can pass unseen.
    """

    def __init__(self, state: int = 0) -> None:
        self._state = state

    def allows(self, token: int) -> bool:
        return (token * 7 + self._state * 3) % 5 < 2 if token else self._state == 3

    def allowed(self) -> np.ndarray:
        return np.array([sum(self.allows(token) << token for token in range(VOCAB))], np.uint32)

    def advance(self, token: int) -> None:
        if not self.allows(token):
            raise ValueError(f"token {token} is not allowed in state {self._state}")
        self._state = (2 * self._state + token) % 5

    def fork(self) -> "FiniteStateMask":
        return FiniteStateMask(self._state)


def plain_decode(
    request: Request,
    choice: int = 0,
    logits: Callable[[tuple[int, ...], int], np.ndarray] = path_logits,
    max_model_len: int = 256,
    vocab: int = VOCAB,
) -> tuple[object, ...]:
    """One choice of a request, one token at a time, from the whole path each time: the definition of right.

    Shares with the engine only how a single row is processed and drawn. Returns what `facts` returns.
    """
    params, prompt = request.params, list(request.prompt)
    assert params.seed is not None
    stops = {*request.eos_ids, *params.stop_token_ids}
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else request.eos_ids)}
    matcher = request.make_stop_matcher() if request.make_stop_matcher else None
    mask = request.make_token_mask() if request.make_token_mask else None
    output: list[int] = []
    hashes: list[bytes] = []
    logprobs: list[TokenLogprob] = []
    while True:
        tokens = prompt + output
        counts = {**dict.fromkeys(prompt, 0), **Counter(output)}
        draw = DrawRequest(
            first_output=0,
            tree=DraftTree.root_only(tokens[-1]),
            position=len(tokens),
            key=make_key(params.seed, choice),
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            repetition_penalty=params.repetition_penalty,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            bias_ids=np.array(list(params.logit_bias), np.int32),
            bias_values=np.array(list(params.logit_bias.values()), np.float64),
            history_ids=np.array(list(counts) if params.has_penalties else [], np.int32),
            history_counts=np.array(list(counts.values()) if params.has_penalties else [], np.int32),
            banned=np.array(sorted(stops), np.int32),
            banned_until=len(prompt) + params.min_tokens,
            masks=None if mask is None else mask.allowed()[None],
        )
        row = logits(tuple(tokens), vocab)
        token = draw_row(row, draw, len(tokens), History(draw))
        if token == NOT_FINITE:
            return output, FinishReason.NUMERICAL_ERROR, hashes, logprobs
        output.append(token)
        hashes += [hash_row(row)] if params.logits_hash else []
        if params.logprobs is not None:
            logprobs.append(TokenLogprob(token, *log_softmax_at(row, token, params.logprobs)))
        may_stop = len(output) >= params.min_tokens
        if (matcher is not None and matcher.push(token, may_stop)) or (token in ends and may_stop):
            return output, FinishReason.STOP, hashes, logprobs
        if len(output) == params.max_tokens or len(tokens) + 1 == max_model_len:
            return output, FinishReason.LENGTH, hashes, logprobs
        if mask is not None:
            mask.advance(token)


@lru_cache(maxsize=100_000)
def _gumbel_row(key: tuple[int, int], position: int) -> np.ndarray:
    return noise.gumbel(key, position, np.arange(VOCAB))


def cached_gumbel(key: tuple[int, int], position: int, ids: np.ndarray) -> np.ndarray:
    """The same numbers as sampling.noise.gumbel for ids below VOCAB, fast when asked again."""
    return _gumbel_row(key, position)[ids]
