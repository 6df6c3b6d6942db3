"""The promise again along the axes of speculation, with drafters that break every rule, and damage that is found."""

import itertools
import random
from dataclasses import fields, replace

import pytest

from forerun.sampling import grammar, processors
from forerun.scheduler import build, finish
from forerun.sequence import FinishReason
from forerun.speculation.drafter import Ask, known_drafters
from forerun.speculation.tree import MAX_NODES, DraftTree
from tests.fakes import VOCAB, FiniteStateMask, OracleDrafter, ScriptedDrafter, run
from tests.lossless import matrix, model_drafters
from tests.lossless.matrix import (
    BATCHES,
    DEPTHS,
    FAKES,
    FREE,
    METHODS,
    OPTIONS,
    SHAPES,
    Cell,
    all_cells,
    differences,
    engine_of,
    free_drafters,
    mismatches,
    rotating_cells,
)


@pytest.fixture(scope="module")
def drafters(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [*free_drafters(tmp_path_factory.mktemp("drafters")), *FAKES]


@pytest.mark.parametrize("name", [*FREE, *FAKES])
def test_every_drafter_says_what_plain_decoding_says(name, drafters, tmp_path):
    for cell in rotating_cells(drafters):
        if cell.drafter == name:
            assert mismatches(cell, tmp_path) == [], cell


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FREE, *FAKES])
def test_every_combination(name, tmp_path):
    for cell in all_cells(name):
        assert mismatches(cell, tmp_path) == [], cell


class TestTheMatrixReachesWhatItTests:
    def test_every_pair_of_values_occurs(self, drafters):
        values = (drafters, SHAPES, OPTIONS, METHODS, DEPTHS, BATCHES)
        cells = [tuple(getattr(cell, field.name) for field in fields(cell)) for cell in rotating_cells(drafters)]
        for a, b in itertools.combinations(range(len(values)), 2):
            assert {(cell[a], cell[b]) for cell in cells} == set(itertools.product(values[a], values[b]))

    def test_every_registered_drafter_takes_part(self, tmp_path):
        """Here or in test_model_drafters; "grammar" drafts under a real grammar only: test_grammars."""
        assert set(free_drafters(tmp_path)) == set(FREE)
        assert {*FREE, *model_drafters.DRAFTERS} == set(known_drafters())

    @pytest.mark.parametrize("shape", SHAPES)
    @pytest.mark.parametrize("option", OPTIONS)
    def test_drafts_are_accepted_under_every_option(self, shape, option, tmp_path):
        cell = Cell("oracle", shape, option, "seeded", 8, 3)
        engine = engine_of(cell, tmp_path)
        assert differences(cell, engine) == []
        stats = engine.speculator.stats
        assert stats.accepted > 0.3 * stats.drafted > 0
        assert max(len(counts.accepted_at) for counts in stats.by_drafter.values()) >= 4

    def test_long_drafts_are_accepted_whole(self, tmp_path):
        cell = Cell("oracle", "chain", "none", "greedy", 15, 8)
        engine = engine_of(cell, tmp_path)
        assert differences(cell, engine) == []
        assert len(engine.speculator.stats.by_drafter["oracle"].accepted_at) == 15

    def test_masks_change_what_is_said(self, tmp_path):
        cell, free = (Cell("oracle", "tree", option, "greedy", 8, 3) for option in ("mask", "none"))
        for name in ("r0", "r1", "r2"):
            requests = {r.id: r for r in matrix.requests_of(cell)}
            prompt, seed = requests[name].prompt, requests[name].params.seed
            masked = matrix.expected("mask", "greedy", prompt, seed, matrix.logits_of(cell))
            assert masked != matrix.expected("none", "greedy", prompt, seed, matrix.logits_of(free))
            assert masked[1] is not FinishReason.ERROR


# ---- drafters that break every rule ----


class FuzzDrafter(ScriptedDrafter):
    """Proposes whatever it likes, raises, forgets, and answers with things that are no trees."""

    name = "fuzz"

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def propose(self, asks):
        if self._random.random() < 0.1:
            raise RuntimeError("out of ideas")
        proposed = [self._one(ask) for ask in asks]
        return proposed[:-1] if self._random.random() < 0.1 else proposed

    def observe(self, seen):
        if self._random.random() < 0.1:
            raise RuntimeError("did not look")

    def _one(self, ask: Ask) -> object:
        last, pick = ask.sequence.tokens[-1], self._random.randrange(8)
        if pick == 0:
            return "not a tree"
        if pick == 1:
            return DraftTree((last, 5, 5), (-1, 0, 0), (1.0,) * 3)  # raises: two equal siblings
        if pick == 2:
            return DraftTree.chain((last + 1) % VOCAB, [1, 2, 3])
        if pick == 3:
            return DraftTree.chain(last, self._tokens(-5, -1))
        if pick == 4:
            return DraftTree.chain(last, self._tokens(VOCAB, 2**31 - 1))
        if pick == 5:
            return DraftTree.chain(last, [*self._tokens(0, VOCAB - 1), VOCAB + 9, *self._tokens(0, VOCAB - 1)])
        paths = [self._tokens(-2, VOCAB + 1)[: self._random.randrange(1, 8)] for _ in range(9)]
        return DraftTree.from_paths(last, paths, source=self._random.choice(["fuzz", "", "somebody else"]))

    def _tokens(self, low: int, high: int) -> list[int]:
        return [self._random.randint(low, high) for _ in range(self._random.randrange(1, MAX_NODES // 2))]


@pytest.mark.parametrize("seed", range(30))
def test_fuzzed_drafters_change_nothing(seed, monkeypatch, tmp_path, caplog):
    fuzz = FuzzDrafter(seed)
    monkeypatch.setattr(matrix, "drafters_of", lambda *_: [fuzz])
    option, method = list(OPTIONS)[seed % len(OPTIONS)], list(METHODS)[seed // 2 % 2]
    cell = Cell("random", "tree", option, method, DEPTHS[seed % 5], BATCHES[seed % 3])
    engine = engine_of(cell, tmp_path)
    assert differences(cell, engine) == []
    stats = engine.speculator.stats
    assert stats.drafter_errors > 0
    assert stats.drafter_errors + stats.dropped_nodes >= 5  # then it is switched off
    assert engine.stats.failed_steps == 0


# ---- the other rules ----


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("option", OPTIONS)
def test_greedy_answers_are_the_same_under_every_rule(option, shape, verification, tmp_path):
    cell = Cell("oracle-errors", shape, option, "greedy", 8, 3)
    engine = engine_of(cell, tmp_path, verification)
    assert differences(cell, engine) == []
    assert engine.speculator.stats.accepted > 0


@pytest.mark.parametrize("verification", ["rejection", "block"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_grammar_holds_under_every_rule(shape, verification, tmp_path):
    cell = Cell("oracle", shape, "mask-penalties", "seeded", 8, 8)
    engine = engine_of(cell, tmp_path, verification)
    params = [replace(one.params, seed=None) for one in matrix.requests_of(cell)]
    requests = [replace(one, params=new) for one, new in zip(matrix.requests_of(cell), params, strict=True)]
    said = [1, 2, 3, 4, 6, 9] * 4
    engine.speculator._use((OracleDrafter(lambda sequence: said, branch=shape == "tree"),))
    for _ in range(8):  # without seeds: the draws of one round may miss all of what is drafted
        sequences = [choices[0] for choices in run(engine, requests)]
        assert {one.finish for one in sequences} <= {FinishReason.STOP, FinishReason.LENGTH}, [
            s.error for s in sequences
        ]
        for one in sequences:
            mask = FiniteStateMask()
            for token in one.output[:-1]:
                mask.advance(token)  # raises for one that is not allowed
            assert mask.allows(one.output[-1])
    assert engine.speculator.stats.accepted > 0


# ---- damage to grammars ----

MASKED = Cell("oracle", "tree", "mask", "seeded", 8, 3)


def is_found(cell: Cell, folder) -> bool:
    try:
        return bool(mismatches(cell, folder))
    except (AssertionError, ValueError):
        return True


class TestControls:
    def test_undamaged(self, tmp_path):
        assert not is_found(MASKED, tmp_path)

    def test_all_rows_masked_like_the_root(self, monkeypatch, tmp_path):
        child = DraftTree.child

        def lost(self, token):
            self.counts[token] = self.counts.get(token, 0) + 1

        monkeypatch.setattr(processors.History, "add", lost)
        assert is_found(MASKED, tmp_path)
        assert DraftTree.child is child

    def test_masks_forgotten(self, monkeypatch, tmp_path):
        monkeypatch.setattr(build, "mask_rows", lambda *_: None)
        assert is_found(MASKED, tmp_path)

    def test_a_matcher_that_is_not_advanced(self, monkeypatch, tmp_path):
        reason = finish.finish_reason

        def stuck(sequence, max_model_len):
            sequence.token_mask = FiniteStateMask()
            return reason(sequence, max_model_len)

        monkeypatch.setattr(finish, "finish_reason", stuck)
        assert is_found(MASKED, tmp_path)

    def test_looking_ahead_that_moves_the_matcher_itself(self, monkeypatch, tmp_path):
        monkeypatch.setattr(FiniteStateMask, "fork", lambda self: self)
        assert is_found(MASKED, tmp_path)

    def test_siblings_that_share_a_fork(self, monkeypatch, tmp_path):
        rows = grammar.mask_rows

        def swapped(sequence, tree):
            masks = rows(sequence, tree)
            if masks is not None and len(masks) > 2:
                masks[[1, 2]] = masks[[2, 1]]
            return masks

        monkeypatch.setattr(build, "mask_rows", swapped)
        assert is_found(MASKED, tmp_path)

    def test_an_oracle_with_another_seed_is_just_slow(self, monkeypatch, tmp_path):
        wrong = OracleDrafter(lambda sequence: [3] * 40, branch=True)
        monkeypatch.setattr(matrix, "drafters_of", lambda *_: [wrong])
        assert not is_found(MASKED, tmp_path)
