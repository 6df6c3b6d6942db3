"""Targets for drafters with trained heads, and what the tests of all of them do with a loaded engine."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from forerun.bench.lossless import Setting, answer_one_plainly, compare
from forerun.bench.verify import make_cells
from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from tests.backends.native_ops import TABLES
from tests.head_files import LOOKUP_SPEC, NEXT, RANDOM_SPEC, write_target

OPTIONS = {
    **{table: EngineOptions(block_size=16, isa=table) for table in TABLES},
    "reference": EngineOptions(block_size=16, backend="reference"),
}
EXACT = "exact"  # nothing is rounded
EVERY = tuple(OPTIONS)
OPTIONS[EXACT] = EngineOptions(block_size=16, backend="reference", kv_format="fp32")
TARGETS = {"lookup": LOOKUP_SPEC, "random": RANDOM_SPEC}
BEST = TABLES[0]


def loader(folder: Any) -> Callable[..., LLM]:
    """Loads a target with a backend of OPTIONS, each once."""

    @cache
    def path(name: str) -> str:
        return str(write_target(folder / f"{name}.gguf", TARGETS[name]))

    return cache(lambda name, backend=BEST: LLM(path(name), speculation="off", threads=1, options=OPTIONS[backend]))


def wish(drafter: str, head: Any, depth: int = 4, rows: int = 64, verification: str = "coupled", **options: Any):
    """A SpeculationConfig for one drafter."""
    named = {f"{drafter}.{key}": value for key, value in {"head": str(head), **options}.items()}
    return SpeculationConfig(drafter, depth, rows, named, verification)


def prompts(count: int, length: int = 40) -> list[list[int]]:
    """Prompts of different lengths."""
    return [[(7 * i * i + 13 * j + 3 * i) % 290 + 1 for i in range(length + j)] for j in range(count)]


def following(count: int, length: int = 40) -> list[list[int]]:
    """Prompts that go on as the lookup target would: heads that never see the last token are right from the start."""
    texts = []
    for index in range(count):
        tokens = [5 + 40 * index]
        while len(tokens) < length + index:
            tokens.append(int(NEXT[tokens[-1]]))
        texts.append(tokens)
    return texts


def run(llm: LLM, speculation: Any, count: int = 3, backend: str = BEST, length: int = 40, **params: Any):
    """Generate from `count` prompts; the speculator's totals."""
    kv_blocks, changes = params.pop("kv_blocks", None), params.pop("changes", {})
    texts = params.pop("texts", prompts)
    llm.reconfigure(speculation=speculation, options=replace(OPTIONS[backend], **changes), kv_blocks=kv_blocks)
    llm.generate(texts(count, length), SamplingParams(**{"max_tokens": 24, "ignore_eos": True, **params}))
    assert llm.engine.speculator.stats.drafter_errors == 0
    return llm.engine.speculator.stats


def check_lossless(llm: LLM, speculation: SpeculationConfig, backend: str) -> tuple[int, int]:
    """Compare with plain decoding under batches, chunks, cache and preemption; what was drafted and accepted."""
    cells = make_cells(llm, *((4, 8) if backend == "reference" else (9, 20)))
    plain = {cell.name: answer_one_plainly(llm, cell, OPTIONS[backend]) for cell in cells}
    name = speculation.drafter
    settings = [
        Setting(name, 1),
        Setting(name, 3, chunk=7, cache=True),
        Setting(name, 8, chunk=3, cache=True, tight=True),
        Setting(name, 8),
    ]
    drafted = accepted = 0
    for setting in settings:
        row = compare(llm, setting, cells, plain, OPTIONS[backend], speculation)
        assert [str(difference) for difference in row.differences] == []
        assert llm.engine.speculator.stats.drafter_errors == 0
        drafted, accepted = drafted + row.drafted, accepted + row.accepted
    return drafted, accepted
