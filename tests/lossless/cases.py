"""Cases of the lossless suite: everything that must not change what a model says, as axes, and one comparison.

A case is run on the whole engine and every sequence is compared with `plain_decode`, which knows no engine: tokens,
finish reason, hash of the logits row behind every token, logprobs.
"""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache

from forerun.engine import Engine
from forerun.sequence import FinishReason, Request, SamplingParams, Sequence
from forerun.speculation.drafter import Ask, Drafter
from forerun.speculation.drafters.ngram import NgramDrafter
from forerun.speculation.tree import DraftTree
from tests.fakes import (
    FakeBackend,
    OracleDrafter,
    PairStop,
    RandomDrafter,
    ScriptedDrafter,
    Setup,
    facts,
    path_logits,
    plain_decode,
    prompt_of,
    repetitive_logits,
)

MAX_MODEL_LEN = 56
SHARED = prompt_of(0, 40)
BORDERS = (15, 16, 17, 31, 32, 33)  # shared prompt tokens: block borders and one beside them

SAMPLINGS: dict[str, dict] = {
    "greedy": {},
    "greedy-penalties": {"repetition_penalty": 1.4, "frequency_penalty": 0.4, "presence_penalty": 0.3},
    "greedy-bias": {"logit_bias": {3: 2.5, 7: -4.0, 0: 3.0}, "min_tokens": 6, "logprobs": 2},
    "seeded": {"temperature": 0.8},
    "filters": {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.03, "logprobs": 3},
    "everything": {
        "temperature": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.2,
        "logit_bias": {5: 1.5, 0: 1.0},
        "min_tokens": 5,
        "stop_token_ids": (4, 9),
        "logprobs": 0,
    },
    "stop-matcher": {"temperature": 0.8, "stop": ("pair",), "min_tokens": 2},
    "to-the-end": {"temperature": 0.8, "ignore_eos": True, "max_tokens": None},
}


@dataclass(frozen=True)
class Case:
    """One combination; `pool` is roomy, tight (preempts) or exact (the longest request and not one block more)."""

    drafter: str = "none"
    sampling: str = "greedy"
    batch: int = 3
    chunk: int = 0
    prefix_caching: bool = True
    pool: str = "roomy"
    n: int = 1
    block_size: int = 16
    arrival: str = "together"
    seed: int = 0

    def __str__(self) -> str:
        return "-".join(str(getattr(self, field.name)) for field in fields(self))


AXES: dict[str, tuple] = {
    "drafter": (
        "none",
        "tree",
        "chain",
        "garbage",
        "oracle",
        "oracle-errors",
        "oracle-branches",
        "scripted",
        "ngram",
    ),
    "sampling": tuple(SAMPLINGS),
    "batch": (1, 3, 8),
    "chunk": (1, 3, 16, 0),
    "prefix_caching": (True, False),
    "pool": ("roomy", "tight", "exact"),
    "n": (1, 3),
    "block_size": (16, 32),
    "arrival": ("together", "late", "reversed", "aborts", "again"),
}


def pairwise_cases(seed: int, tries: int = 12) -> list[Case]:
    """Cases in which every pair of values of any two axes occurs, chosen greedily among random candidates."""
    rng = random.Random(seed)
    missing = {
        frozenset({(a, x), (b, y)}) for a, b in itertools.combinations(AXES, 2) for x in AXES[a] for y in AXES[b]
    }
    cases = []
    while missing:
        best: tuple[int, dict] = (-1, {})
        for _ in range(tries):
            values = dict(sorted(missing, key=sorted)[rng.randrange(len(missing))])
            values = {**{name: rng.choice(options) for name, options in AXES.items()}, **values}
            gain = len(missing & pairs(values))
            best = max(best, (gain, values), key=lambda item: item[0])
        missing -= pairs(best[1])
        cases.append(Case(**best[1], seed=len(cases)))
    return cases


def pairs(values: dict) -> set[frozenset]:
    return {frozenset(pair) for pair in itertools.combinations(values.items(), 2)}


def all_cases() -> Iterator[Case]:
    """The cross product of the axes that meet in the scheduler, the others drawn."""
    rng = random.Random(1)
    crossed = ("drafter", "sampling", "chunk", "prefix_caching", "pool", "n")
    for index, values in enumerate(itertools.product(*(AXES[name] for name in crossed))):
        rest = {name: rng.choice(options) for name, options in AXES.items() if name not in crossed}
        yield Case(**dict(zip(crossed, values, strict=True)), **rest, seed=index)


# ---- running a case ----


def requests_of(case: Case) -> list[Request]:
    """Prompts that share prefixes which end at block borders and beside them, each with its own tail."""
    rng = random.Random(case.seed)
    requests = []
    count = {1: 3, 3: 5, 8: 9}[case.batch] if case.n == 1 else {1: 2, 3: 3, 8: 4}[case.batch]
    for index in range(count):
        prompt = SHARED[: rng.choice(BORDERS)] + prompt_of(case.seed * 100 + index, rng.choice((0, 1, 2, 5)))
        options = {"max_tokens": 22, "seed": case.seed + index // 2, "logits_hash": True, "n": case.n}
        params = SamplingParams(**{**options, **SAMPLINGS[case.sampling]})
        matcher = PairStop if params.stop else None
        requests.append(Request(f"r{index}", prompt, params, eos_ids=(0,), make_stop_matcher=matcher))
    return requests


@cache
def expected(case_sampling: str, request_key: tuple, choice: int, logits: object) -> tuple:
    prompt, seed, n = request_key
    options = {"max_tokens": 22, "seed": seed, "logits_hash": True, "n": n, **SAMPLINGS[case_sampling]}
    params = SamplingParams(**options)
    matcher = PairStop if params.stop else None
    request = Request("plain", prompt, params, eos_ids=(0,), make_stop_matcher=matcher)
    return plain_decode(request, choice, logits, MAX_MODEL_LEN)


def model_of(case: Case):
    return repetitive_logits if case.drafter == "ngram" else path_logits


def right(case: Case, sequence: Sequence) -> tuple:
    """What plain decoding says for a sequence of the case."""
    request = sequence.request
    key = (request.prompt, request.params.seed, request.params.n)
    return expected(case.sampling, key, sequence.choice, model_of(case))


def drafter_of(case: Case) -> Drafter | None:
    def text(sequence: Sequence) -> list[int]:
        return right(case, sequence)[0]

    def script(ask: Ask) -> DraftTree:
        tokens = ask.sequence.tokens
        paths = [[tokens[-1], tokens[-2]], [tokens[-2], tokens[-1], tokens[0]], [(tokens[-1] + 1) % 32]]
        return DraftTree.from_paths(tokens[-1], paths, source="scripted")

    return {
        "none": lambda: None,
        "tree": lambda: RandomDrafter(case.seed),
        "chain": lambda: RandomDrafter(case.seed, chain=True),
        "garbage": lambda: RandomDrafter(case.seed, garbage=True),
        "oracle": lambda: OracleDrafter(text),
        "oracle-errors": lambda: OracleDrafter(text, wrong_at=3),
        "oracle-branches": lambda: OracleDrafter(text, branch=True),
        "scripted": lambda: ScriptedDrafter(script),
        "ngram": lambda: NgramDrafter(min_n=1),
    }[case.drafter]()


def setup_of(case: Case, backend: FakeBackend | None = None) -> Setup:
    exact = -(-MAX_MODEL_LEN // case.block_size)
    num_blocks = {"roomy": 96, "tight": exact + 3, "exact": exact}[case.pool]
    return Setup(
        drafter=drafter_of(case),
        num_blocks=num_blocks,
        block_size=case.block_size,
        prefix_caching=case.prefix_caching,
        max_num_seqs=case.batch,
        max_model_len=MAX_MODEL_LEN,
        max_chunk=case.chunk,
        prefill_slowdown=1e3,  # what a step takes does not depend on this machine's speed
        backend=backend or FakeBackend(model_of(case)),
    )


def run_case(case: Case, engine: Engine, max_steps: int = 3000) -> tuple[list[Sequence], list[Sequence]]:
    """Run a case to its end; returns (sequences to compare, sequences that were aborted)."""
    requests = requests_of(case)
    sequences: list[Sequence] = []
    victims: list[Sequence] = []

    def drain(steps: int) -> None:
        for _ in range(steps):
            if not engine.has_work:
                return
            engine.step()
            engine.check()

    if case.arrival == "reversed":
        requests.reverse()
    for index, request in enumerate(requests):
        sequences += engine.add(request)
        if case.arrival == "late":
            drain(2 + index % 3)
        elif case.arrival == "aborts":
            victims += engine.add(request)
            drain(index % 4)
            if index % 2:
                engine.abort(victims[-1 - index % len(victims)])
        elif case.arrival == "again":  # the same prompt twice in a row: the second finds the first one's blocks
            drain(max_steps)
            sequences += engine.add(request)
    for victim in victims:
        engine.abort(victim)
    drain(max_steps)
    assert not engine.has_work, "the engine makes no progress"
    assert engine.scheduler.pool.num_owned == 0, "blocks leaked"
    return sequences, victims


def mismatches(case: Case, engine: Engine) -> list[str]:
    """Run the case; one line for every sequence that differs from plain decoding."""
    sequences, victims = run_case(case, engine)
    found = []
    for sequence in sequences:
        for name, got, want in zip(
            ("tokens", "finish", "hashes", "logprobs"), facts(sequence), right(case, sequence), strict=True
        ):
            if got != want:
                found.append(
                    f"{sequence.request.id}/{sequence.choice} {name}: {got} instead of {want} {sequence.error}"
                )
    for victim in victims:
        tokens = right(case, victim)[0]
        if victim.finish is FinishReason.ABORTED and victim.output != tokens[: victim.num_output]:
            found.append(f"{victim.request.id} aborted: {victim.output} is no beginning of {tokens}")
    return found
