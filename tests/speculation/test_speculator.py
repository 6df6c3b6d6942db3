"""Speculator and FixedBudget: whatever a drafter does, sound trees of the right size come out."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from forerun.batch import Outcome
from forerun.config import SpeculationConfig
from forerun.errors import RequestError
from forerun.sequence import Request, SamplingParams, Sequence, SpeculationParams
from forerun.speculation.budget import FixedBudget, StepFacts
from forerun.speculation.speculator import Speculator
from forerun.speculation.tree import MAX_NODES, DraftTree
from tests.fakes import (
    VOCAB,
    FiniteStateMask,
    RandomDrafter,
    ScriptedDrafter,
    Setup,
    facts,
    plain_decode,
    prompt_of,
    request,
    run,
)


def sequence_of(tokens=(1, 2, 3), max_tokens=100):
    wanted = Request("r", tuple(tokens), SamplingParams(seed=0, max_tokens=max_tokens))
    return Sequence(0, wanted, 0, 0, (0, 0), list(tokens), len(tokens))


def speculator_of(script, **config):
    return Speculator([ScriptedDrafter(script)], FixedBudget(SpeculationConfig(**config), 256), VOCAB)


def proposed(script, room=8):
    (tree,) = speculator_of(script).propose([sequence_of()], [room])
    return tree


class TestBudget:
    @pytest.mark.parametrize(
        ("max_tokens", "num_output", "length", "num_decoding", "depth"),
        [
            (100, 0, 10, 1, 15),  # max_depth
            (8, 0, 10, 1, 7),  # a draft of depth 7 can yield the 8 tokens that are left
            (8, 5, 10, 1, 2),
            (8, 7, 10, 1, 0),
            (100, 0, 250, 1, 5),  # the context has 6 left
            (100, 0, 255, 1, 0),
            (100, 0, 10, 4, 12),  # 48 rows for 4
            (100, 0, 10, 49, 0),
            (None, 0, 10, 1, 15),
            (None, 0, 254, 1, 1),
            (100, 0, 10, 0, 15),
        ],
    )
    def test_depth_is_clamped(self, max_tokens, num_output, length, num_decoding, depth):
        sequence = sequence_of(range(1, length - num_output + 1), max_tokens)
        sequence.tokens += [1] * num_output
        budget = FixedBudget(SpeculationConfig(max_depth=15, max_draft_rows=48), 256)
        assert budget.depth(sequence, num_decoding) == depth

    def test_nothing_beyond_the_end_is_ever_drafted(self):
        asked = []

        def script(ask):
            asked.append((ask.sequence.num_output, ask.max_depth))
            return

        run(
            Setup(prefill_slowdown=1e9, drafter=ScriptedDrafter(script)).engine(),
            [request(prompt_of(1, 5), max_tokens=9, ignore_eos=True)],
        )
        assert asked
        assert all(done + depth + 1 <= 9 for done, depth in asked)


class TestTrees:
    def test_a_sound_tree_passes_unchanged(self):
        tree = DraftTree.chain(3, [4, 5, 6], source="scripted")
        assert proposed(lambda ask: tree) is tree

    @pytest.mark.parametrize(
        "script", [lambda ask: None, lambda ask: DraftTree.chain(9, [4, 5]), lambda ask: DraftTree.root_only(3)]
    )
    def test_no_tree_or_another_root_decodes_plainly(self, script):
        assert proposed(script).tokens == (3,)

    @pytest.mark.parametrize("bad", [-1, -2, VOCAB, 2**40])
    def test_unknown_ids_go_and_all_that_hangs_below(self, bad):
        tree = DraftTree.of((3, 4, bad, 5, 6, 7), (-1, 0, 1, 2, 1, 4), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), "s")
        speculator = speculator_of(lambda ask: tree)
        (kept,) = speculator.propose([sequence_of()], [8])
        assert kept == DraftTree.of((3, 4, 6, 7), (-1, 0, 1, 2), (1.0, 0.9, 0.6, 0.5), "s")
        assert speculator.stats.dropped_nodes == 2

    @pytest.mark.parametrize("merged", [False, True])
    def test_what_the_grammar_forbids_goes_and_all_that_hangs_below(self, merged):
        sequence = sequence_of()
        sequence.token_mask = FiniteStateMask(0)  # allows 3, 5, 8, 10; behind 5 it is as at the start
        tree = DraftTree.of((3, 5, 4, 5, 5, 8), (-1, 0, 1, 2, 1, 0), (1.0, 0.9, 0.8, 0.7, 0.6, 0.5), "s")
        other = DraftTree.chain(3, [8, 2], source="t")
        drafters = [ScriptedDrafter(lambda ask: tree), *([ScriptedDrafter(lambda ask: other)] if merged else [])]
        speculator = Speculator(drafters, FixedBudget(SpeculationConfig(), 256), VOCAB)
        (kept,) = speculator.propose([sequence], [8])
        assert kept.tokens == (3, 5, 5, 8)
        assert speculator.stats.refused_nodes == 2 + merged

    def test_drawn_trees_are_not_cut(self):
        """Which of their nodes are verified may not depend on what was drawn."""
        sequence = sequence_of()
        sequence.token_mask = FiniteStateMask(0)
        probs = np.full(VOCAB, 1 / VOCAB)
        tree = DraftTree.of((3, 4), (-1, 0), (1.0, 0.5), "s", {0: probs})
        speculator = speculator_of(lambda ask: tree)
        (kept,) = speculator.propose([sequence], [8])
        assert kept.tokens == (3, 4)

    @pytest.mark.parametrize("room", [1, 5, 8])
    def test_an_oversized_tree_is_cut_to_its_room(self, room):
        tree = proposed(lambda ask: DraftTree.chain(3, [4] * MAX_NODES), room)
        assert tree == DraftTree.chain(3, [4] * room)

    def test_depth_is_cut_too(self):
        tree = DraftTree.from_paths(3, [[1, 1, 1], [2], [4]])
        assert max(proposed(lambda ask: tree, 2).depths) <= 2

    def test_who_has_no_room_is_not_asked(self):
        asked = []
        speculator = speculator_of(lambda ask: asked.append(ask.sequence.tokens[-1]))
        trees = speculator.propose([sequence_of([1]), sequence_of([2]), sequence_of([3])], [0, 4, 0])
        assert asked == [2]
        assert [tree.tokens for tree in trees] == [(1,), (2,), (3,)]

    def test_off(self):
        speculator = Speculator([], FixedBudget(SpeculationConfig(), 256), VOCAB)
        assert speculator.room(sequence_of(), 1) == 0
        assert speculator.drafter_name == "off"
        assert speculator.propose([sequence_of()], [8])[0].num_nodes == 0
        speculator.begin(sequence_of())
        speculator.end(sequence_of())


class Failing(RandomDrafter):
    """Raises in one of its methods."""

    name = "failing"

    def __init__(self, where):
        super().__init__()
        setattr(self, where, self.fail)

    def fail(self, *args):
        raise RuntimeError("no idea")


class WrongCount(RandomDrafter):
    """Answers one ask too few or too many."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def propose(self, asks):
        trees = super().propose(asks)
        return trees[:-1] if self.change < 0 else [*trees, None]


class NoTrees(RandomDrafter):
    """Returns what is no tree, or nothing that can be iterated."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def propose(self, asks):
        return self.answer


@pytest.mark.parametrize(
    "drafter",
    [
        *(Failing(where) for where in ("begin", "propose", "observe", "end")),
        WrongCount(-1),
        WrongCount(1),
        NoTrees(None),
        NoTrees(["tree"]),
    ],
    ids=lambda drafter: str(vars(drafter)),
)
def test_a_failing_drafter_costs_speed_only(drafter, caplog):
    caplog.set_level(logging.CRITICAL)
    requests = [request(prompt_of(seed, 20)) for seed in range(3)]
    engine = Setup(prefill_slowdown=1e9, drafter=drafter).engine()
    sequences = [choices[0] for choices in run(engine, requests)]
    assert [facts(s) for s in sequences] == [plain_decode(r) for r in requests]
    assert engine.speculator.stats.drafter_errors > 0


def test_statistics_count_what_was_verified_and_emitted():
    speculator = speculator_of(lambda ask: None)
    tree = DraftTree.chain(3, [4, 5, 6], source="scripted")
    outcomes = [Outcome(tree, (1, 2), (4, 5, 9), (0, 1, 2)), Outcome(DraftTree.root_only(1), (), (7,), (0,))]
    batch = SimpleNamespace(draws=[SimpleNamespace(first_output=0), SimpleNamespace(first_output=4)])
    speculator.observe([sequence_of(), sequence_of()], outcomes, batch, None, StepFacts(5, 20, 0.0, 0.1, 0.1))
    stats = speculator.stats
    assert (stats.drafts, stats.drafted, stats.accepted, stats.bonus) == (1, 3, 2, 1)
    mine = stats.by_drafter["scripted"]
    assert (mine.drafts, mine.drafted, mine.accepted) == (1, 3, 2)
    assert (mine.drafted_at, mine.accepted_at) == ([1, 1, 1], [1, 1])


class TestRequests:
    """What one request says about its speculation."""

    def run(self, **speculation):
        drafters = [RandomDrafter(seed) for seed in range(2)]
        drafters[1].name = "second"
        setup = Setup(prefill_slowdown=1e9, drafter=drafters[0])
        engine = setup.engine()
        engine.speculator.drafters = tuple(drafters)
        wanted = request(prompt_of(1, 5), speculation=SpeculationParams(**speculation))
        (sequence,) = run(engine, [wanted])[0]
        assert facts(sequence) == plain_decode(wanted)
        return sequence.stats

    def test_off(self):
        assert self.run(drafter="off").drafted == 0

    def test_one_of_several(self):
        assert set(self.run(drafter="second").accepted_by) <= {"second"}

    def test_max_depth(self):
        assert len(self.run(max_depth=2).drafted_at) == 2

    def test_a_name_that_is_not_loaded_is_refused(self):
        with pytest.raises(RequestError, match="not loaded"):
            self.run(drafter="medusa")


class Sleepy(FixedBudget):
    """A budget that wants to rest in every step."""

    def rests(self, num_decoding):
        return True


@pytest.mark.parametrize(("prediction", "room"), [((), 0), ((7, 8), 3)])
def test_a_budget_may_rest_but_not_where_a_request_guides_its_drafts(prediction, room):
    budget = Sleepy(SpeculationConfig(max_depth=3), 256)
    speculator = Speculator([RandomDrafter(VOCAB)], budget, VOCAB)
    sequence = sequence_of()
    sequence.request = replace(sequence.request, prediction=prediction)
    assert speculator.room(sequence, 1) == 3
    outcome = Outcome(DraftTree.root_only(3), (), (3,), (0,))
    batch = SimpleNamespace(draws=[SimpleNamespace(first_output=0)])
    speculator.observe([sequence], [outcome], batch, None, StepFacts(1, 4, 0.0, 1e-3, 1e-3))
    assert speculator.room(sequence, 1) == room
