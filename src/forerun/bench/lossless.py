"""The comparison behind `forerun verify` and the lossless tests: the same requests under other settings, bit for bit.

The yardstick is plain decoding: one request at a time, nothing drafted, no cache, every prompt in one chunk. Then the
same requests run under every setting that must not matter, and each answer is compared token by token, together with a
hash of the fp32 logits row behind every token: a wrong last bit flips a token at a near-tie only.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from forerun.bench.drafters import adversary
from forerun.config import SpeculationConfig
from forerun.engine import Engine
from forerun.llm import LLM, EngineOptions
from forerun.sequence import Request, SamplingParams, Sequence


@dataclass(frozen=True)
class Setting:
    """What must not change an answer.

    drafter  one of bench.drafters.DRAFTERS, or any registered name
    batch    sequences that run together
    chunk    longest prefill chunk in tokens, 0 for whole prompts
    cache    prefix cache on, with a request before all others whose prompt the others share in part
    tight    a KV pool that holds the longest request and no more, so that sequences are preempted
    threads  compute threads, for the record: they are chosen when a model is loaded
    """

    drafter: str = "off"
    batch: int = 1
    chunk: int = 0
    cache: bool = False
    tight: bool = False
    threads: int = 0

    def __str__(self) -> str:
        parts = [f"drafter {self.drafter}", f"batch {self.batch}", f"chunk {self.chunk or 'whole'}"]
        parts += [f"cache {'on' if self.cache else 'off'}", f"pool {'tight' if self.tight else 'roomy'}"]
        return ", ".join([*parts, f"threads {self.threads}"])


@dataclass(frozen=True)
class Cell:
    """One request of a comparison; `name` is unique in it."""

    name: str
    prompt: tuple[int, ...]
    params: SamplingParams


@dataclass(frozen=True)
class Answer:
    """What a cell came to; one hash per token."""

    tokens: tuple[int, ...]
    hashes: tuple[bytes, ...]
    finish: str

    @classmethod
    def of(cls, sequence: Sequence) -> "Answer":
        """The answer of a finished sequence."""
        finish = sequence.finish.value if sequence.finish is not None else "unfinished"
        return cls(tuple(sequence.output), tuple(sequence.logits_hashes), finish)


@dataclass(frozen=True)
class Difference:
    """The first difference of a cell. kind  "token", "logits" (same token, other bits) or "finish" """

    setting: Setting
    cell: str
    position: int  # in the output
    kind: str
    expected: str
    found: str

    def __str__(self) -> str:
        return (
            f"prompt {self.cell}, {self.setting}, output token {self.position}: "
            f"{self.kind} {self.found}, plain decoding gives {self.expected}"
        )


@dataclass(frozen=True)
class Row:
    """One setting compared. The counts below `differences` show what the comparison has gone through."""

    setting: Setting
    cells: int
    tokens: int  # tokens that are equal
    hashes: int  # logits rows that are equal
    differences: tuple[Difference, ...]
    drafted: int
    accepted: int
    cached: int  # prompt tokens taken from the prefix cache
    partial_hits: int  # cache hits that ended inside a block
    preempted: int

    @property
    def is_equal(self) -> bool:
        return not self.differences


# ---- running ----


def answer_plainly(llm: LLM, cells: Seq[Cell], options: EngineOptions) -> dict[str, Answer]:
    """Plain decoding, by cell name. Restarts the engine."""
    return {cell.name: answer_one_plainly(llm, cell, options) for cell in cells}


def answer_one_plainly(llm: LLM, cell: Cell, options: EngineOptions) -> Answer:
    """Plain decoding of one cell in an engine of its own. Restarts the engine."""
    return Answer.of(run_requests(plain_engine(llm, options), [request_of(llm, cell)])[0])


def plain_engine(llm: LLM, options: EngineOptions) -> Engine:
    """The engine restarted for plain decoding.

    options  those the model was loaded with
    """
    llm.reconfigure(speculation="off", options=replace(options, max_num_seqs=1, max_chunk=0, prefix_caching=False))
    return llm.engine


def request_of(llm: LLM, cell: Cell) -> Request:
    """The request that a cell stands for."""
    return Request(cell.name, cell.prompt, replace(cell.params, logits_hash=True), eos_ids=llm.tokenizer.eos_ids)


def compare(
    llm: LLM,
    setting: Setting,
    cells: Seq[Cell],
    plain: Mapping[str, Answer],
    options: EngineOptions,
    speculation: SpeculationConfig | None = None,
) -> Row:
    """Run all cells under a setting and compare each with `plain`. Restarts the engine.

    options      those the model was loaded with
    speculation  how the setting's drafter drafts, when it has options of its own
    """
    answers = {name: answer.tokens for name, answer in plain.items()}
    drafter = adversary(setting.drafter, answers, llm.model.spec.vocab_size)
    longest = longest_blocks(cells, options.block_size)
    blocks = longest if setting.tight else min(llm.kv_layout.num_blocks, 2 * longest * setting.batch)
    # A run before this one may have left the very KV that a mistake would fail to write.
    llm.backend.clear_blocks(range(blocks))
    # A fixed budget: one that learns what pays might hardly draft, and then there would be little to compare.
    llm.reconfigure(
        speculation=drafter or speculation or SpeculationConfig(setting.drafter, budget="fixed"),
        options=replace(options, max_num_seqs=setting.batch, max_chunk=setting.chunk, prefix_caching=setting.cache),
        kv_blocks=blocks,
    )
    engine = llm.engine
    if setting.cache:
        warm = max(cells, key=lambda cell: len(cell.prompt))
        run_requests(engine, [request_of(llm, replace(warm, params=replace(warm.params, max_tokens=1, min_tokens=0)))])
    sequences = run_requests(engine, [request_of(llm, cell) for cell in cells])
    if engine.stats.failed_steps or engine.speculator.stats.drafter_errors:
        raise RuntimeError(f"a step or a drafter failed under {setting}; the log says why")
    return _row(setting, cells, sequences, plain, options.block_size)


def longest_blocks(cells: Seq[Cell], block_size: int) -> int:
    """KV blocks that hold the longest request and not one more."""
    return max(-(-(len(cell.prompt) + (cell.params.max_tokens or 0)) // block_size) for cell in cells)


def run_requests(engine: Engine, requests: Seq[Request]) -> list[Sequence]:
    """Run requests of one choice each to their ends, together."""
    sequences = [engine.add(request)[0] for request in requests]
    try:
        while engine.has_work:
            engine.step()
    finally:
        for sequence in sequences:
            engine.abort(sequence)
    return sequences


# ---- comparing ----


def _row(
    setting: Setting, cells: Seq[Cell], sequences: Seq[Sequence], plain: Mapping[str, Answer], block_size: int
) -> Row:
    differences: list[Difference] = []
    tokens = hashes = 0
    for cell, sequence in zip(cells, sequences, strict=True):
        expected, found = plain[cell.name], Answer.of(sequence)
        difference = first_difference(setting, cell.name, expected, found)
        if difference is not None:
            differences.append(difference)
        tokens += sum(a == b for a, b in zip(expected.tokens, found.tokens, strict=False))
        hashes += sum(a == b for a, b in zip(expected.hashes, found.hashes, strict=False))
    stats = [sequence.stats for sequence in sequences]
    return Row(
        setting=setting,
        cells=len(cells),
        tokens=tokens,
        hashes=hashes,
        differences=tuple(differences),
        drafted=sum(s.drafted for s in stats),
        accepted=sum(s.accepted for s in stats),
        cached=sum(s.cached_prompt_tokens for s in stats),
        partial_hits=sum(s.cached_prompt_tokens % block_size != 0 for s in stats),
        preempted=sum(s.preemptions for s in stats),
    )


def first_difference(setting: Setting, cell: str, expected: Answer, found: Answer) -> Difference | None:
    """Where `found` leaves `expected` for the first time; None when it never does."""
    for position, (a, b) in enumerate(zip(expected.tokens, found.tokens, strict=False)):
        if a != b:
            return Difference(setting, cell, position, "token", str(a), str(b))
        if expected.hashes[position] != found.hashes[position]:
            return Difference(
                setting, cell, position, "logits", expected.hashes[position].hex(), found.hashes[position].hex()
            )
    if (len(expected.tokens), expected.finish) != (len(found.tokens), found.finish):
        ends = [f"{answer.finish} after {len(answer.tokens)} tokens" for answer in (expected, found)]
        return Difference(setting, cell, min(len(expected.tokens), len(found.tokens)), "finish", *ends)
    return None
