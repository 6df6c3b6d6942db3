"""The matrix of speculation for drafters that run a model or trained heads: tiny models behind the whole engine.

The axes are those of `matrix`, with the width of trees, and a grammar over the models' vocabulary. Every answer is
compared with that of an engine which drafts nothing and runs one sequence at a time.

Random heads are never right, and a draft that is never accepted shows little: every other proposal is given a path that
the target will take for some tokens.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.models.files.heads_block import write_block_head
from forerun.sequence import SamplingParams, Sequence
from forerun.speculation.drafter import Drafter
from forerun.speculation.tree import DraftTree
from tests.fakes import facts
from tests.head_files import (
    RANDOM_SPEC,
    VOCAB,
    block_arrays,
    block_spec,
    eagle3_arrays,
    eagle_config,
    medusa_arrays,
    medusa_config,
    vocabulary,
    write,
    write_target,
)
from tests.lossless.matrix import BATCHES, DEPTHS, METHODS
from tests.speculation.masked import Residues
from tests.speculation.self_drafts import write_skips
from tests.tiny import RandomWeights, write_tiny_gguf

DRAFTERS = ("block-head", "draft-model", "eagle", "early-exit", "layer-skip", "medusa", "self-int4")
WIDTHS = (1, 3)
OPTIONS: dict[str, dict] = {
    "none": {},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    "min-p": {"min_p": 0.05, "top_k": 12},
    "bias": {"logit_bias": {3: 2.5, 7: -4.0}},
    "logprobs": {"logprobs": 3, "top_p": 0.9},
    "stop": {"stop": ("e", "th"), "stop_token_ids": (4, 9)},
    "min-tokens": {"min_tokens": 7},  # with a bias for the end
    "mask": {"mask": True},
    "mask-penalties": {"mask": True, "frequency_penalty": 0.5, "logprobs": 1},
}
MAX_TOKENS = 16
ENGINE = EngineOptions(prefill_slowdown=1e9, block_size=16, check_drafters=False)
PROMPTS = [[(7 * i * i + 13 * j + 3 * i) % 290 + 1 for i in range(9 + 5 * j)] for j in range(max(BATCHES) + 1)]


@dataclass(frozen=True)
class Cell:
    """One combination."""

    drafter: str
    depth: int
    width: int
    batch: int
    option: str
    method: str

    def __str__(self) -> str:
        return "-".join(str(getattr(self, field.name)) for field in fields(self))


def rotating_cells(drafter: str) -> list[Cell]:
    """Every depth, width and batch size twice, while options and methods take turns: any two values meet."""
    cells = []
    first = DRAFTERS.index(drafter)
    for p, d, w, b in itertools.product(range(2), range(len(DEPTHS)), range(len(WIDTHS)), range(len(BATCHES))):
        option = list(OPTIONS)[(first + 2 * d + 3 * b + w + 2 * p) % len(OPTIONS)]
        method = list(METHODS)[(first + p + d // 2 + b // 2) % len(METHODS)]
        cells.append(Cell(drafter, DEPTHS[d], WIDTHS[w], BATCHES[b], option, method))
    return cells


def all_cells(drafter: str) -> Iterator[Cell]:
    """The cross product for one drafter."""
    for values in itertools.product(DEPTHS, WIDTHS, BATCHES, OPTIONS, METHODS):
        yield Cell(drafter, *values)


# ---- models and heads ----


def write_options(folder: Path, llm: LLM) -> dict[str, dict]:
    """The options of each drafter but its width; writes what they name."""
    hidden = RANDOM_SPEC.hidden
    near = folder / "near.gguf"
    spec = replace(RANDOM_SPEC, layers=RANDOM_SPEC.layers[:1])
    write_tiny_gguf(near, spec, metadata=vocabulary(), weights=RandomWeights(spec, 3))
    medusa = write(folder / "medusa", medusa_config(4), medusa_arrays(hidden, VOCAB, 4))
    layers = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}}
    eagle = write(folder / "eagle", eagle_config(3, hidden, VOCAB, **layers), eagle3_arrays(hidden, VOCAB, 300))
    block = block_spec(hidden, (1, 3, 5), VOCAB, markov_rank=4, has_confidence=True)
    write_block_head(folder / "block.safetensors", block, VOCAB, block_arrays(block, VOCAB))
    return {
        "draft-model": {"model": str(near), "weights": "file"},
        "self-int4": {},
        "layer-skip": {"profile": write_skips(llm, folder / "profile.json")},
        "early-exit": {"layer": 4},
        "medusa": {"head": str(medusa)},
        "eagle": {"head": str(eagle)},
        "block-head": {"head": str(folder / "block.safetensors")},
    }


class Matrix:
    """A loaded target, what each drafter needs, and plain decoding's answers as they are asked for.

    deepest  longest accepted path of each drafter, of all cells that were run
    """

    def __init__(self, folder: Path) -> None:
        path = write_target(folder / "target.gguf", RANDOM_SPEC)
        self.llm = LLM(str(path), speculation="off", threads=1, max_model_len=128, options=ENGINE)
        self._options = write_options(folder, self.llm)
        self.deepest = dict.fromkeys(DRAFTERS, 0)
        self._plain: dict[tuple[str, str], list[tuple[object, ...]]] = {}

    def differences(self, cell: Cell) -> list[str]:
        """Run a cell; one line for everything in which a sequence differs from plain decoding."""
        plain = self._plainly(cell.option, cell.method)
        self._draft(cell)
        self._help(plain)
        found = []
        for index, sequence in enumerate(self._run(cell.option, cell.method, cell.batch + 1)):
            names = ("tokens", "finish", "hashes", "logprobs")
            for name, got, want in zip(names, facts(sequence), plain[index], strict=True):
                if got != want:
                    found.append(f"{index} {name}: {got} instead of {want} {sequence.error}")
        stats = self.llm.engine.speculator.stats
        if stats.drafter_errors or stats.dropped_nodes or not stats.drafted:
            found.append(f"not a clean run: {stats}")
        accepted_at = stats.by_drafter[cell.drafter].accepted_at
        self.deepest[cell.drafter] = max(self.deepest[cell.drafter], sum(count > 0 for count in accepted_at))
        return found

    def _plainly(self, option: str, method: str) -> list[tuple[object, ...]]:
        if (option, method) not in self._plain:
            self.llm.reconfigure(speculation="off", options=replace(ENGINE, max_num_seqs=1, prefix_caching=False))
            self._plain[option, method] = [facts(one) for one in self._run(option, method, len(PROMPTS))]
        return self._plain[option, method]

    def _draft(self, cell: Cell) -> None:
        options = {f"{cell.drafter}.{k}": v for k, v in {**self._options[cell.drafter], "width": cell.width}.items()}
        config = SpeculationConfig(cell.drafter, cell.depth, 15 * cell.batch, options, budget="fixed")
        self.llm.reconfigure(speculation=config, options=replace(ENGINE, max_num_seqs=cell.batch))

    def _help(self, plain: list[tuple[object, ...]]) -> None:
        (drafter,) = self.llm.engine.speculator.drafters
        texts = {tuple(prompt): answer[0] for prompt, answer in zip(PROMPTS, plain, strict=True)}
        drafter.propose = partial(_helped, drafter, drafter.propose, texts, itertools.count())  # type: ignore[method-assign]

    def _run(self, option: str, method: str, count: int) -> list[Sequence]:
        wanted = dict(OPTIONS[option])
        has_mask = wanted.pop("mask", False)
        if option == "min-tokens":
            wanted["logit_bias"] = {self.llm.tokenizer.eos_ids[0]: 4.0}
        params = SamplingParams(max_tokens=MAX_TOKENS, seed=3, logits_hash=True, **METHODS[method], **wanted)
        requests = [self.llm._request(index, prompt, params, "") for index, prompt in enumerate(PROMPTS[:count])]
        if has_mask:
            requests = [replace(one, make_token_mask=partial(Residues, VOCAB)) for one in requests]
        engine = self.llm.engine
        sequences = [engine.add(request)[0] for request in requests]
        while engine.has_work:
            engine.step()
        engine.check()
        assert engine.stats.failed_steps == 0
        return sequences


def _helped(drafter: Drafter, propose, texts: dict, turns: Iterator[int], asks) -> list[DraftTree | None]:
    """What the drafter proposes; every other time with what the target will say for some tokens, and then is not."""
    trees = propose(asks)
    for index, (ask, tree) in enumerate(zip(asks, trees, strict=True)):
        turn = next(turns)
        if tree is None or turn % 2 == 0 or len(tree) == 1:
            continue
        sequence = ask.sequence
        text = texts[tuple(sequence.tokens[: sequence.num_prompt])]
        right = text[sequence.num_output : sequence.num_output + 1 + 3 * (turn % 5)]
        paths = [[*right, tree.tokens[1]], *_paths(tree)]
        trees[index] = DraftTree.from_paths(tree.tokens[0], paths, source=drafter.name)
    return trees


def _paths(tree: DraftTree) -> list[list[int]]:
    """The path to every node."""
    paths: list[list[int]] = [[]]
    for row in range(1, len(tree)):
        paths.append([*paths[tree.parents[row]], tree.tokens[row]])
    return paths[1:]
