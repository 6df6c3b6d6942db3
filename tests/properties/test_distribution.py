"""The whole engine with coupled verification draws from the model's distribution: a G-test of pairs, and controls."""

import numpy as np
import pytest

from forerun.sampling import noise, walk
from forerun.speculation import verify
from forerun.speculation.tree import DraftTree
from tests.fakes import RandomDrafter, ScriptedDrafter
from tests.properties.pair_model import (
    CONTROL_REQUESTS,
    CRITICAL,
    EVEN,
    JOINT,
    NUM_PAIRS,
    ODD,
    REQUESTS,
    PairModel,
    V,
    g_statistic,
    gumbel_table,
    pair_counts,
)


@pytest.fixture(autouse=True)
def fast_noise(monkeypatch):
    monkeypatch.setattr(walk, "gumbel", lambda key, position, ids: gumbel_table(key)[position, ids])


def test_the_table_holds_the_real_noise():
    table = gumbel_table((5, 6))
    for position in (0, 1, 17, 299):
        assert (table[position] == noise.gumbel((5, 6), position, np.arange(V))).all()


def favourites(ask):
    """The two most likely continuations, three deep: what a good drafter would propose."""
    tokens = ask.sequence.tokens
    paths = []
    for first in (0, 1):
        path, last = [], tokens[-1]
        for depth in range(3):
            row = ODD[last] if (len(tokens) - 1 + depth) % 2 == 0 else EVEN
            last = int(np.argsort(-row)[first if depth == 0 else 0])
            path.append(last)
        paths.append(path)
    return DraftTree.from_paths(tokens[-1], paths)


def mixed():
    """Both kinds of trees by turns."""
    other = RandomDrafter(3, vocab=V)
    return ScriptedDrafter(lambda ask: favourites(ask) if len(ask.sequence.tokens) % 3 else other.tree(ask))


DRAFTERS = {
    "mixed": mixed,
    "random trees": lambda: RandomDrafter(3, vocab=V),
    "favourites": lambda: ScriptedDrafter(favourites),
    "none": lambda: None,
}
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in DRAFTERS if name != "mixed"]


@pytest.mark.parametrize("name", ["mixed", *SLOW])
def test_pairs_follow_the_joint_distribution(name):
    counts = pair_counts(DRAFTERS[name](), REQUESTS)
    assert counts.sum() == NUM_PAIRS
    assert g_statistic(counts) < CRITICAL


def test_the_stated_power():
    """Draw from distributions at total variation 0.02 and 0: the test finds nearly all of the first, none of the
    second."""
    rng = np.random.default_rng(1)
    found = missed = false_alarms = 0
    for _ in range(1000):
        direction = rng.permutation([1.0] * 4 + [-1.0] * 4 + [0.0])
        wrong = JOINT + 0.02 * 2 * direction / np.abs(direction).sum()
        wrong = np.clip(wrong, 0, None)
        wrong /= wrong.sum()
        is_found = g_statistic(rng.multinomial(NUM_PAIRS, wrong)) > CRITICAL
        found, missed = found + is_found, missed + (not is_found)
        false_alarms += g_statistic(rng.multinomial(NUM_PAIRS, JOINT)) > CRITICAL
    assert found >= 990
    assert false_alarms <= 5


class TestControls:
    """Each of these must be found, with a sixth of the draws."""

    def is_found(self, drafter="favourites", **options):
        return g_statistic(pair_counts(DRAFTERS[drafter](), CONTROL_REQUESTS, **options)) > CRITICAL

    def test_sound(self):
        assert not self.is_found()

    def test_temperature_off(self):
        assert self.is_found(temperature=1.25)

    def damage(self, monkeypatch, change):
        original = verify._walk
        monkeypatch.setattr(verify, "_walk", lambda draw, drawn: change(original(draw, drawn), draw, drawn))

    def test_bonus_from_the_root_row(self, monkeypatch):
        def change(outcome, draw, drawn):
            bonus = int(drawn.tokens[draw.first_output])
            return type(outcome)(outcome.tree, outcome.accepted, (*outcome.tokens[:-1], bonus), outcome.rows)

        self.damage(monkeypatch, change)
        assert self.is_found()

    def test_rows_off_by_one(self, monkeypatch):
        """Every row drawn from its parent's logits."""
        forward = PairModel.forward

        def shifted(self, batch):
            result = forward(self, batch)
            rows = list(result.rows)
            for draw in batch.draws:
                for node in range(1, len(draw.tree)):
                    result.rows[draw.first_output + node] = rows[draw.first_output + draw.tree.parents[node]]
            return result

        monkeypatch.setattr(PairModel, "forward", shifted)
        assert self.is_found()

    def test_an_accept_rule_that_looks_at_the_drafted_token(self, monkeypatch):
        """Keep a drafted token when its probability is "high enough", as sloppy acceptance rules do."""

        def change(outcome, draw, drawn):
            tree = draw.tree
            if outcome.accepted or not tree.num_nodes:
                return outcome
            position, first = draw.position - 1, tree.tokens[1]
            row = ODD[tree.tokens[0]] if position % 2 == 0 else EVEN
            if row[first] > np.log(0.45):
                return type(outcome)(tree, (), (first,), outcome.rows)
            return outcome

        self.damage(monkeypatch, change)
        assert self.is_found()

    def test_noise_shared_by_two_positions(self, monkeypatch):
        """Each token alone is right, the pair is not."""
        monkeypatch.setattr(walk, "gumbel", lambda key, position, ids: gumbel_table(key)[position // 2, ids])
        assert self.is_found()
