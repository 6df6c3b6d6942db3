"""CalibrationFiles: an engine begins with what earlier ones learned, lightly; damaged files change nothing."""

import json
import random

import pytest

from forerun.config import SpeculationConfig
from forerun.llm import LLM, EngineOptions
from forerun.sequence import SamplingParams
from forerun.speculation.allocation.calibration import DEPTHS, SCORE_EDGES, Calibration, RequestFactor
from forerun.speculation.allocation.calibration_file import MAX_FILES, WEIGHT, CalibrationFiles
from forerun.speculation.tree import DraftTree
from tests.speculation.simulated import RIGHT, WRONG, outcome_of

IDENTITY = {"target": "m", "options": {"min_n": 2}}


def learned(acceptance: float, scores=(1.0, 1.0, 1.0), rounds: int = 400) -> Calibration:
    calibration, chance = Calibration(), random.Random(1)
    for _ in range(rounds):
        tokens = [RIGHT if chance.random() < acceptance else WRONG for _ in scores]
        tree = DraftTree.chain(0, tokens, scores, "d")
        calibration.observe(tree, outcome_of(tree).tokens, RequestFactor())
    return calibration


def files(folder, identity=IDENTITY) -> CalibrationFiles:
    return CalibrationFiles(folder, {"d": identity})


def test_what_was_learned_is_the_first_guess(tmp_path):
    calibration = learned(0.9)
    files(tmp_path).keep({"d": calibration, "another": calibration})
    (found,) = files(tmp_path).load().items()
    assert found[0] == "d"
    for depth in (1, 2, 3):
        assert found[1].usual(depth, 1.0) == pytest.approx(calibration.usual(depth, 1.0), abs=0.05)
        assert found[1].at_depth(depth) == pytest.approx(calibration.at_depth(depth), abs=0.05)
        assert found[1].usual(depth, 1.0) > 0.7 > Calibration().usual(depth, 1.0)


def test_it_is_soon_outvoted(tmp_path):
    """Where drafts were right and are wrong now, fewer are needed than by an engine that saw both itself."""
    files(tmp_path).keep({"d": learned(1.0)})
    restarted, running = files(tmp_path).load()["d"], learned(1.0)
    wrong = DraftTree.chain(0, [WRONG], [1.0], "d")
    for _ in range(int(WEIGHT)):
        for calibration in (restarted, running):
            calibration.observe(wrong, outcome_of(wrong).tokens, RequestFactor())
    assert restarted.usual(1, 1.0) < 0.5 < running.usual(1, 1.0)


def test_what_nobody_tested_is_not_written(tmp_path):
    files(tmp_path).keep({"d": learned(0.5)})
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    files(tmp_path).keep(files(tmp_path).load())
    assert path.read_bytes() == before
    files(tmp_path).keep({"d": Calibration()})
    assert path.read_bytes() == before


@pytest.mark.parametrize("other", [{"target": "n"}, {"options": {"min_n": 3}}, {"options": {}}, {"numerics": "x"}])
def test_other_models_drafters_and_options_are_apart(tmp_path, other):
    files(tmp_path).keep({"d": learned(0.9)})
    assert files(tmp_path, IDENTITY | other).load() == {}


def test_the_order_of_options_does_not_matter(tmp_path):
    files(tmp_path, {"a": 1, "b": {"x": 1, "y": 2}}).keep({"d": learned(0.9)})
    assert files(tmp_path, {"b": {"y": 2, "x": 1}, "a": 1}).load()


GOOD = [1, -1, 20.0, 10.0]


@pytest.mark.parametrize(
    "content",
    [
        None,
        3,
        "text",
        {"a": 1},
        [1],
        [[]],
        [[1, -1, 20.0]],
        [[*GOOD, 1]],
        [[0, *GOOD[1:]]],
        [[max(DEPTHS) + 1, *GOOD[1:]]],
        [[1, -2, 20.0, 10.0]],
        [[1, len(SCORE_EDGES) + 1, 20.0, 10.0]],
        [[1, 0, 0.0, 0.0]],
        [[1, 0, -1.0, -2.0]],
        [[1, 0, 10.0, 10.5]],
        [[1, 0, 10.0, -0.5]],
        [[1, 0, float("nan"), 1.0]],
        [[1, 0, float("inf"), 1.0]],
        [[1, 0, 10**400, 1.0]],
        [[1, 0, "10", 1.0]],
        [[1, 0, None, 1.0]],
        [[[1], 0, 10.0, 1.0]],
        [GOOD, [1, 0, 10.0, 11.0]],
    ],
)
def test_counts_that_make_no_sense_are_ignored(tmp_path, content):
    files(tmp_path).keep({"d": learned(0.9)})
    (path,) = tmp_path.iterdir()
    document = json.loads(path.read_text(encoding="utf-8"))
    for put, is_found in ((content, False), ([GOOD], True)):
        document["content"] = put
        path.write_text(json.dumps(document), encoding="utf-8")
        assert bool(files(tmp_path).load()) == is_found


def test_there_is_a_bound_on_what_is_kept(tmp_path):
    calibration = learned(0.8, [0.01, 0.1, 0.3, 0.6, 0.9, 0.98, 1.0, 0.5, 0.4] * 3, 300)
    for number in range(MAX_FILES + 5):
        files(tmp_path, {"target": str(number)}).keep({"d": calibration})
    kept = list(tmp_path.iterdir())
    assert len(kept) == MAX_FILES
    assert max(path.stat().st_size for path in kept) < 10_000


class TestThroughTheEngine:
    PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)

    def llm(self, path, folder, **options) -> LLM:
        config = SpeculationConfig("ngram", options=options)
        return LLM(str(path), speculation=config, threads=1, options=EngineOptions(drafter_files=folder))

    def learn(self, llm: LLM) -> None:
        """Until its files are written, which is after 64 steps; how many tokens a step yields varies with its time."""
        for _ in range(64):
            llm.generate(["a b a b a b"], self.PARAMS)

    def test_the_next_engine_begins_with_it(self, tiny_model, tmp_path):
        first = self.llm(tiny_model, tmp_path)
        self.learn(first)
        budget = first.engine.speculator.budget
        assert budget._calibrations["ngram"].num_tested > 0
        assert len(list(tmp_path.glob("calibration-*.json"))) == 1
        known = self.llm(tiny_model, tmp_path).engine.speculator.budget._calibrations["ngram"]
        assert known.num_tested == 0
        assert known.at_depth(1) == pytest.approx(budget._calibrations["ngram"].at_depth(1), abs=0.2)
        assert known.at_depth(1) != Calibration().at_depth(1)
        assert self.llm(tiny_model, tmp_path, min_n=3).engine.speculator.budget._calibrations == {}

    def test_answers_are_the_same(self, tiny_model, tmp_path):
        params = SamplingParams(max_tokens=120, ignore_eos=True, logits_hash=True)
        answers = []
        for _ in range(2):
            (choice,) = self.llm(tiny_model, tmp_path).generate(["a b a b a b"], params)[0].choices
            answers.append((choice.token_ids, choice.logits_hashes))
        assert answers[0] == answers[1]

    def test_a_damaged_file_is_no_error(self, tiny_model, tmp_path):
        first = self.llm(tiny_model, tmp_path)
        self.learn(first)
        (path,) = tmp_path.glob("calibration-*.json")
        path.write_bytes(b"\xff" * 100)
        again = self.llm(tiny_model, tmp_path)
        assert again.engine.speculator.budget._calibrations == {}
