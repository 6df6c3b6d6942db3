"""The matrix of speculation: every drafter with every way to draw, at every depth, alone and merged into trees.

`cases` is about the scheduler; here the axes are those of drafts. The product of drafter, shape, option and method is
run in full, and depth and batch rotate so that every pair of values of any two axes occurs. Each answer is compared
with `plain_decode`: tokens, finish reason, logits hashes, logprobs.
"""

import random
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import cache
from itertools import product
from pathlib import Path

from forerun.backends.base import LoadedModel
from forerun.cache.layout import KvLayout, KvStack
from forerun.config import CacheConfig, SchedulerConfig, SpeculationConfig
from forerun.engine import Engine
from forerun.errors import ForerunError
from forerun.scheduler.scheduler import Scheduler
from forerun.scheduler.step_time import StepTime
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.budget import FixedBudget
from forerun.speculation.drafter import Ask, Drafter, HostedDrafter, known_drafters, make_drafter
from forerun.speculation.host import DraftHost, OpenedModel
from forerun.speculation.setup import load_drafters, plan_stacks
from forerun.speculation.speculator import Speculator
from forerun.speculation.tree import MAX_NODES, DraftTree
from forerun.speculation.verification.verifier import make_verifier
from tests.fakes import (
    VOCAB,
    FakeBackend,
    FiniteStateMask,
    OracleDrafter,
    PairStop,
    RandomDrafter,
    ScriptedDrafter,
    facts,
    path_logits,
    plain_decode,
    prompt_of,
    repetitive_logits,
    run,
)
from tests.tiny import RandomWeights, tiny_spec

FAKES = ("oracle", "oracle-errors", "random", "garbage", "duplicates")
METHODS: dict[str, dict] = {"greedy": {}, "seeded": {"temperature": 0.8}}
OPTIONS: dict[str, dict] = {
    "none": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "mask": {"mask": True},
    "mask-penalties": {"mask": True, "frequency_penalty": 0.5, "logit_bias": {0: 2.0}, "logprobs": 1},
    "min-p": {"min_p": 0.08, "top_k": 12},
    "bias": {"logit_bias": {3: 2.5, 7: -4.0, 0: 3.0}},
    "logprobs": {"logprobs": 3, "top_p": 0.9},
    "stop": {"stop": ("pair",), "stop_token_ids": (4, 9)},
    "min-tokens": {"min_tokens": 7, "logit_bias": {0: 4.0}},
}
DEPTHS = (1, 3, 4, 8, 15)
BATCHES = (1, 3, 8)
SHAPES = ("chain", "tree")
MAX_TOKENS = 20
MAX_MODEL_LEN = 64


@dataclass(frozen=True)
class Cell:
    """One combination. shape  of a fake's drafts; a registered drafter proposes alone or merged with random trees"""

    drafter: str
    shape: str
    option: str
    method: str
    depth: int
    batch: int

    def __str__(self) -> str:
        return "-".join(str(getattr(self, field.name)) for field in fields(self))

    @property
    def is_registered(self) -> bool:
        return self.drafter not in FAKES


def rotating_cells(drafters: Seq[str]) -> list[Cell]:
    """Every drafter, shape, option and method; depth and batch take turns."""
    cells = []
    for d, s, o, m in product(range(len(drafters)), range(2), range(len(OPTIONS)), range(2)):
        turn = d + 2 * s + o * 7 + m * 3
        depth, batch = DEPTHS[turn % 5], BATCHES[(d + s + o + m + turn // 5) % 3]
        cells.append(Cell(drafters[d], SHAPES[s], list(OPTIONS)[o], list(METHODS)[m], depth, batch))
    return cells


def all_cells(drafter: str) -> Iterator[Cell]:
    """The cross product for one drafter."""
    for values in product(SHAPES, OPTIONS, METHODS, DEPTHS, BATCHES):
        yield Cell(drafter, *values)


# ---- drafters ----


class _Letters:
    """A vocabulary in which token t is one letter."""

    vocab_size = VOCAB

    def token_bytes(self, token: int) -> bytes:
        return bytes([64 + token])

    def is_special(self, token: int) -> bool:
        return token == 0

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return [ord(letter) - 64 for letter in text]

    def decode(self, ids: Seq[int], *, skip_special: bool = True) -> str:
        return "".join(chr(64 + token) for token in ids)


def _no_other_model(name: str) -> OpenedModel:
    raise ForerunError(f"there is no model {name} here")


def host_of(backend: FakeBackend, folder: Path, layout: KvLayout | None) -> DraftHost:
    """A fake target: FakeBackend has no programs, so a drafter that needs one fails to load."""
    spec = tiny_spec(vocab=VOCAB)
    target = OpenedModel("fake", LoadedModel(spec, RandomWeights(spec)), _Letters())
    return DraftHost(target, backend, _no_other_model, "fp32", layout, MAX_MODEL_LEN, 8, 120, "coupled", folder)


FREE = ("grammar", "lookahead", "ngram", "prediction", "recycle", "suffix")  # what free_drafters finds


def free_drafters(folder: Path) -> list[str]:
    """Registered drafters that need no option, no KV of their own and no program: they draft for FakeBackend."""
    names = []
    for name in known_drafters():
        try:
            drafter = make_drafter(name, {})
            host = host_of(FakeBackend(), folder, LAYOUT)
            if any(plan_stacks([drafter], host)):
                continue
            load_drafters([drafter], host)
        except (ForerunError, AttributeError):
            continue
        names.append(name)
    return names


LAYOUT = KvLayout(96, 16, (KvStack("target", 1, 1, 1, "fp32"),))


class DuplicatesDrafter(ScriptedDrafter):
    """Says the same token over and over, beside itself and below itself, and what the sequence said before."""

    name = "duplicates"

    def __init__(self, shape: str) -> None:
        super().__init__(self._chain if shape == "chain" else self._tree)

    def _chain(self, ask: Ask) -> DraftTree:
        last = ask.sequence.tokens[-1]
        return DraftTree.chain(last, [last] * MAX_NODES, source=self.name)

    def _tree(self, ask: Ask) -> DraftTree:
        tokens = ask.sequence.tokens
        paths = [[token] * (1 + i % 5) for i, token in enumerate(tokens[-12:])]
        return DraftTree.from_paths(tokens[-1], [*paths, tokens[-4:], tokens[-4:]], source=self.name)


def drafters_of(cell: Cell, backend: FakeBackend, folder: Path) -> list[Drafter]:
    chain, seed = cell.shape == "chain", cell.depth * 100 + cell.batch

    def text(sequence: Sequence) -> list[int]:
        return right(cell, sequence)[0]  # type: ignore[return-value]

    if cell.is_registered:
        drafter = make_drafter(cell.drafter, {})
        if isinstance(drafter, HostedDrafter):
            load_drafters([drafter], host_of(backend, folder, LAYOUT))
        return [drafter] if chain else [drafter, RandomDrafter(seed)]
    made = {
        "oracle": lambda: OracleDrafter(text, branch=not chain),
        "oracle-errors": lambda: OracleDrafter(text, wrong_at=3, branch=not chain),
        "random": lambda: RandomDrafter(seed, chain=chain),
        "garbage": lambda: RandomDrafter(seed, chain=chain, garbage=True),
        "duplicates": lambda: DuplicatesDrafter(cell.shape),
    }
    return [made[cell.drafter]()]


# ---- running ----


def logits_of(cell: Cell):
    return repetitive_logits if cell.is_registered else path_logits


def request_of(option: str, method: str, name: str, prompt: tuple[int, ...], seed: int) -> Request:
    options = dict(OPTIONS[option])
    has_mask = options.pop("mask", False)
    params = SamplingParams(
        **{"max_tokens": MAX_TOKENS, "seed": seed, "logits_hash": True, **METHODS[method], **options}
    )
    return Request(
        name,
        prompt,
        params,
        eos_ids=(0,),
        make_stop_matcher=PairStop if params.stop else None,
        make_token_mask=FiniteStateMask if has_mask else None,
    )


@cache
def expected(option: str, method: str, prompt: tuple[int, ...], seed: int, logits: object) -> tuple[object, ...]:
    return plain_decode(request_of(option, method, "plain", prompt, seed), 0, logits, MAX_MODEL_LEN)  # type: ignore[arg-type]


def right(cell: Cell, sequence: Sequence) -> tuple[object, ...]:
    """What plain decoding says for a sequence of the cell."""
    assert sequence.params.seed is not None
    return expected(cell.option, cell.method, sequence.request.prompt, sequence.params.seed, logits_of(cell))


def requests_of(cell: Cell) -> list[Request]:
    """As many as run together and one more, of prompts that begin alike or not."""
    rng = random.Random(cell.batch)
    prompts = [prompt_of(index % 3, 18)[: rng.choice((3, 9, 16, 17, 18))] for index in range(cell.batch + 1)]
    return [request_of(cell.option, cell.method, f"r{i}", prompt, i // 2) for i, prompt in enumerate(prompts)]


def engine_of(cell: Cell, folder: Path, verification: str = "coupled") -> Engine:
    backend = FakeBackend(logits_of(cell))
    backend.allocate_kv(LAYOUT)
    scheduler = Scheduler(
        SchedulerConfig(
            max_rows=256,
            max_outputs=160,
            max_num_seqs=cell.batch,
            max_model_len=MAX_MODEL_LEN,
            prefill_slowdown=1e9,  # measured time shall not decide what is drafted
        ),
        CacheConfig(LAYOUT.num_blocks, LAYOUT.block_size, LAYOUT.codecs),
        StepTime(),
    )
    budget = FixedBudget(SpeculationConfig(max_depth=cell.depth, max_draft_rows=15 * cell.batch), MAX_MODEL_LEN)
    speculator = Speculator(drafters_of(cell, backend, folder), budget, VOCAB)
    return Engine(backend, scheduler, speculator, VOCAB, verifier=make_verifier(verification))


def mismatches(cell: Cell, folder: Path) -> list[str]:
    """Run a cell; one line for everything in which a sequence differs from plain decoding."""
    return differences(cell, engine_of(cell, folder))


def differences(cell: Cell, engine: Engine) -> list[str]:
    """Run the cell's requests on an engine and compare."""
    found = []
    for sequence in (choices[0] for choices in run(engine, requests_of(cell))):
        names = ("tokens", "finish", "hashes", "logprobs")
        for name, got, want in zip(names, facts(sequence), right(cell, sequence), strict=True):
            if got != want:
                found.append(f"{sequence.request.id} {name}: {got} instead of {want} {sequence.error}")
    return found
