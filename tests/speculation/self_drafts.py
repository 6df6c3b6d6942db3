"""Tiny models that draft for themselves behind the whole engine, and runs of them to compare with plain decoding."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path

from forerun.bench.lossless import Answer, Cell, answer_plainly, longest_blocks, request_of, run_requests
from forerun.bench.verify import make_cells
from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import Sequence
from forerun.speculation.drafting.skip_profile import ModelIdentity, SkipProfile, write_profile
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

LAYERS = 4
SKIP = ("layers.1.mlp", "layers.2.attn")  # what layer-skip leaves out in these tests
UNHURRIED = 1e9  # slowdown by prompts: which drafts these tests see is not for measured time to decide
BACKENDS = {
    "reference": EngineOptions(backend="reference", block_size=16, prefill_slowdown=UNHURRIED),
    "cpu": EngineOptions(block_size=16, prefill_slowdown=UNHURRIED),
}
SIZES = {"reference": (5, 10), "cpu": (9, 24)}  # prompts and new tokens: numpy is slow


@dataclass(frozen=True)
class Subject:
    """A loaded model, the requests that it is asked, and what plain decoding answers to them."""

    llm: LLM
    options: EngineOptions
    cells: list[Cell]
    plain: dict[str, Answer]


def write_model(path: Path, layers: int = LAYERS, **options: object) -> Path:
    """A model with a tokenizer, in float32."""
    _, vocabulary = byte_level("smollm")
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), layers=layers, max_context=512)
    write_tiny_gguf(path, spec, metadata=vocabulary, **options)  # type: ignore[arg-type]
    return path


def load_subject(folder: Path, backend: str) -> Subject:
    """A model behind a backend of BACKENDS, with plain decoding's answers."""
    options = BACKENDS[backend]
    llm = LLM(str(write_model(folder / f"{backend}.gguf")), speculation="off", threads=1, options=options)
    cells = make_cells(llm, *SIZES[backend])
    return Subject(llm, options, cells, answer_plainly(llm, cells, options))


def write_skips(llm: LLM, path: Path, skip: Seq[str] = SKIP) -> str:
    """A profile of the loaded model; returns its path, as the drafter's option wants it."""
    write_profile(SkipProfile(ModelIdentity.of(llm.opened), tuple(skip), 0.5, 0.5, 0.8, 1.0, 1, {}), path)
    return str(path)


def config_of(drafter: str, width: int, max_depth: int = 6, **options: bool | int | float | str) -> SpeculationConfig:
    """A chain (width 1) or a tree of a drafter."""
    return SpeculationConfig(drafter, max_depth, 48, {"width": width, **options}, budget="fixed")


@dataclass(frozen=True)
class Way:
    """How requests are run: together, in chunks, with the prefix cache, with few blocks."""

    batch: int = 1
    chunk: int = 0
    cache: bool = False
    tight: bool = False


def run(it: Subject, config: SpeculationConfig, cells: Seq[Cell], way: Way) -> list[Sequence]:
    """Run the cells in a fresh engine; a drafter or a step that fails fails the test."""
    longest = longest_blocks(cells, it.options.block_size)
    blocks = longest if way.tight else min(it.llm.kv_layout.num_blocks, 3 * longest * max(way.batch, len(cells)))
    it.llm.backend.clear_blocks(range(blocks))
    options = replace(it.options, max_num_seqs=way.batch, max_chunk=way.chunk, prefix_caching=way.cache)
    it.llm.reconfigure(speculation=config, options=options, kv_blocks=blocks)
    return run_again(it, cells)


def run_again(it: Subject, cells: Seq[Cell]) -> list[Sequence]:
    """Run the cells in the engine as it is, with what its cache holds."""
    sequences = run_requests(it.llm.engine, [request_of(it.llm, cell) for cell in cells])
    it.llm.engine.check()
    assert it.llm.engine.stats.failed_steps == it.llm.engine.speculator.stats.drafter_errors == 0
    return sequences


def differences(cells: Seq[Cell], sequences: Seq[Sequence], plain: dict[str, Answer]) -> list[str]:
    """Names of the cells whose tokens, logits hashes or ends are not those of plain decoding."""
    return [cell.name for cell, one in zip(cells, sequences, strict=True) if Answer.of(one) != plain[cell.name]]
