"""Targets for drafters with trained heads, and what the tests of all of them do with a loaded engine."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from forerun.backends.base import Limits, LoadedModel
from forerun.backends.reference import ReferenceBackend
from forerun.bench.lossless import Setting, answer_one_plainly, compare
from forerun.bench.verify import make_cells
from forerun.cache.layout import KvLayout, KvStack
from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.models.decoder import hidden_name
from forerun.sequence import SamplingParams
from tests.backends.native_ops import TABLES
from tests.head_files import LOOKUP_SPEC, NEXT, RANDOM_SPEC, write_target
from tests.speculation.masked import masked_answers
from tests.steps import Rows, make_batch
from tests.tiny import RandomWeights

UNHURRIED = 1e9  # slowdown by prompts: which drafts these tests see is not for measured time to decide
OPTIONS = {
    **{table: EngineOptions(prefill_slowdown=UNHURRIED, block_size=16, isa=table) for table in TABLES},
    "reference": EngineOptions(prefill_slowdown=UNHURRIED, block_size=16, backend="reference"),
}
EXACT = "exact"  # nothing is rounded
EVERY = tuple(OPTIONS)
OPTIONS[EXACT] = EngineOptions(prefill_slowdown=UNHURRIED, block_size=16, backend="reference", kv_format="fp32")
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
    return SpeculationConfig(drafter, depth, rows, named, verification, budget="fixed")


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


def check_masked(llm: LLM, speculation: SpeculationConfig, backend: str = BEST) -> None:
    """Under a grammar nothing is drafted that it forbids, and answers are those of plain decoding."""
    params = SamplingParams(max_tokens=16, ignore_eos=True, temperature=0.7, seed=5, logits_hash=True)
    llm.reconfigure(speculation="off", options=OPTIONS[backend])
    plain = masked_answers(llm, prompts(3), params)
    llm.reconfigure(speculation=speculation, options=OPTIONS[backend])
    assert masked_answers(llm, prompts(3), params) == plain
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert stats.refused_nodes == 0
    assert stats.drafted > 10


class Mixed:
    """A drafter whose trees are checked as they are made and then replaced in part by what the target will say, so that
    some are accepted, some not and some in part."""

    def __init__(self, drafter, dense, texts):
        self._drafter, self._dense, self._texts = drafter, dense, texts
        self._turn, self.checked = itertools.count(), 0
        self._propose, drafter.propose = drafter.propose, self.propose

    def propose(self, asks):
        trees = self._propose(asks)
        for ask, tree in zip(asks, trees, strict=True):
            if tree is not None:
                want = self._dense.chain(ask.sequence.tokens, len(tree) - 1)
                assert list(tree.tokens[1:]) == [token for token, _ in want]
                np.testing.assert_allclose(tree.score[1:], [score for _, score in want], atol=2e-4)
                self.checked += 1
        return [self._change(ask, tree) for ask, tree in zip(asks, trees, strict=True)]

    def _change(self, ask, tree):
        """Some right tokens, then what the head has said."""
        if tree is None:
            return None
        sequence = ask.sequence
        text = self._texts[tuple(sequence.tokens[: sequence.num_prompt])]
        right = text[sequence.num_output : sequence.num_output + next(self._turn) % 4]
        path = [*right, *tree.tokens[1:]][: len(tree) - 1]
        return type(tree).chain(tree.tokens[0], path, source=self._drafter.name)


def checked_run(llm, speculation, make_dense, max_tokens=24, kv_blocks=None, again=False, **changes):
    """Generate while every tree is compared with a chain made from scratch; how many were.

    make_dense  what the drafter reads -> an object like Dense   again  the same prompts once more, from the cache
    """
    texts, wanted = prompts(4), SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    llm.reconfigure(speculation="off", options=OPTIONS[EXACT])
    plain = {tuple(prompt): list(llm.generate([prompt], wanted)[0].token_ids) for prompt in texts}
    llm.reconfigure(speculation=speculation, options=replace(OPTIONS[EXACT], **changes), kv_blocks=kv_blocks)
    (drafter,) = llm.engine.speculator.drafters
    dense = make_dense(drafter.captures(drafter_host(llm)))
    for prompt, answer in plain.items():
        dense.read([*prompt, *answer])
    mixed = Mixed(drafter, dense, plain)
    for _ in range(1 + again):
        found = llm.generate(texts, wanted)
        assert [list(one.token_ids) for one in found] == list(plain.values())
    stats = llm.engine.speculator.stats
    assert stats.drafter_errors == 0
    assert 0 < stats.accepted < stats.drafted
    return mixed.checked


def drafter_host(llm):
    """The host as drafters see it while the KV memory is planned."""
    return llm._host(SpeculationConfig("off"), EngineOptions(), None)


class DenseTarget:
    """Hidden states of RANDOM_SPEC's weights by the reference, for whole texts."""

    def __init__(self, captures):
        self.captures, self.weights = captures, RandomWeights(RANDOM_SPEC, 3)
        self._backend = ReferenceBackend()
        self._backend.load(LoadedModel(RANDOM_SPEC, self.weights), Limits(256, 256, 512), None, captures)
        mixer = RANDOM_SPEC.layers[0].mixer
        stack = KvStack("target", RANDOM_SPEC.num_layers, mixer.num_kv_heads, mixer.head_dim, "fp32")
        self._backend.allocate_kv(KvLayout(16, 16, (stack,)))
        self._texts = []  # tokens, and the hidden states of all but the last

    def read(self, text):
        """Compute the hidden states of a text, which the sequences that are drafted for begin like."""
        result = self._backend.forward(make_batch([Rows(text[:-1], 0, range(16))], 16))
        hidden = [result.captured(hidden_name(index), range(len(text) - 1)) for index in self.captures]
        self._texts.append((text, np.concatenate(hidden, axis=1)))

    def hidden(self, tokens):
        """[len(tokens) - 1, ...] of a sequence whose last token is not computed."""
        return next(states for text, states in self._texts if text[: len(tokens)] == tokens)[: len(tokens) - 1]


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
