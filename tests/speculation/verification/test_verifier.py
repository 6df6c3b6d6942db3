"""Verifiers in the engine: what stays bit for bit, what is reported, what is refused, what happens on failures."""

import itertools

import numpy as np
import pytest

from forerun import engine as engine_module
from forerun.config import VERIFICATIONS
from forerun.errors import RequestError
from forerun.results import GenerationStats
from forerun.sampling.walk import hash_row, log_softmax_at
from forerun.sequence import FinishReason
from forerun.speculation.tree import DraftTree
from forerun.speculation.verification.rule import has_sound_probs
from forerun.speculation.verification.verifier import make_verifier
from tests.fakes import (
    VOCAB,
    FakeBackend,
    RandomDrafter,
    ScriptedDrafter,
    Setup,
    facts,
    path_logits,
    plain_decode,
    prompt_of,
    request,
    run,
)
from tests.sampling_drafter import SamplingDrafter, chain_shape

RULED = ("rejection", "block", "typical")
FORKED = (-1, 0, 0, 1, 1, 3)


def near_target(path):
    """A draft distribution that resembles the target's."""
    logits = path_logits(path).astype(float) + 0.7 * path_logits((*path, 77)).astype(float)
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def drafters():
    return {
        "random trees": RandomDrafter(1),
        "garbage": RandomDrafter(2, garbage=True),
        "drawn chains": SamplingDrafter(near_target, chain_shape(4)),
        "drawn trees": SamplingDrafter(near_target, FORKED),
    }


@pytest.fixture(autouse=True)
def repeatable_seeds(monkeypatch):
    """Requests without a seed get 0, 1, 2, ..."""
    counter = itertools.count()
    monkeypatch.setattr(engine_module, "random_seed", lambda: next(counter))


def sampled(length=5, **options):
    return request(prompt_of(length, length), temperature=0.9, **{"seed": None, **options})


def outputs(setup, requests):
    return [[facts(sequence) for sequence in choices] for choices in run(setup.engine(), requests)]


class TestWhatStays:
    @pytest.mark.parametrize("name", list(drafters()))
    @pytest.mark.parametrize("verification", RULED)
    def test_greedy_requests_decode_plainly(self, verification, name):
        requests = [
            request(prompt_of(1, 7), logprobs=2),
            request(prompt_of(2, 30), repetition_penalty=1.3, presence_penalty=0.5),
            request(prompt_of(3, 4), logit_bias={3: 2.0}, min_tokens=8, stop_token_ids=(4, 5)),
        ]
        engine = Setup(prefill_slowdown=1e9, drafter=drafters()[name], verification=verification, max_chunk=9).engine()
        for one, choices in zip(requests, run(engine, requests), strict=True):
            assert facts(choices[0]) == plain_decode(one)
        assert engine.speculator.stats.drafted > 0

    @pytest.mark.parametrize("verification", ["rejection", "block"])
    def test_chosen_drafts_yield_the_tokens_of_the_seed(self, verification, monkeypatch):
        """For chosen nodes rejection is looking up a draw, so it is the same draw."""
        monkeypatch.setattr(engine_module, "random_seed", lambda: 9)
        one = sampled(logprobs=1, n=2)
        sequences = run(
            Setup(prefill_slowdown=1e9, drafter=RandomDrafter(5), verification=verification).engine(), [one]
        )[0]
        for sequence in sequences:
            assert facts(sequence) == plain_decode(
                request(one.prompt, temperature=0.9, seed=9, logprobs=1), sequence.choice
            )

    def test_plain_and_greedy_requests_beside_drawn_ones(self, monkeypatch):
        monkeypatch.setattr(engine_module, "random_seed", lambda: 9)
        drawing = SamplingDrafter(near_target, FORKED)
        drafter = ScriptedDrafter(lambda ask: drawing.tree(ask) if ask.sequence.num_prompt < 10 else None)
        requests = [sampled(5), request(prompt_of(2, 6)), sampled(12), sampled(7)]
        engine = Setup(prefill_slowdown=1e9, drafter=drafter, verification="rejection").engine()
        found = run(engine, requests)
        assert facts(found[1][0]) == plain_decode(requests[1])
        assert facts(found[2][0]) == plain_decode(request(requests[2].prompt, temperature=0.9, seed=9))
        assert engine.speculator.stats.accepted > 0


class TestWhatIsReported:
    @pytest.mark.parametrize("shape", [chain_shape(4), FORKED], ids=str)
    @pytest.mark.parametrize("verification", RULED)
    def test_every_token_with_its_logprob_and_its_hash(self, verification, shape):
        engine = Setup(
            prefill_slowdown=1e9, drafter=SamplingDrafter(near_target, shape), verification=verification
        ).engine()
        sequences = [choices[0] for choices in run(engine, [sampled(n, logprobs=3, ignore_eos=True) for n in (4, 9)])]
        assert engine.speculator.stats.accepted > 5
        for sequence in sequences:
            assert len(sequence.logprobs) == len(sequence.logits_hashes) == sequence.num_output == 24
            for at, token in enumerate(sequence.output):
                row = path_logits(tuple(sequence.tokens[: sequence.num_prompt + at]))
                assert sequence.logits_hashes[at] == hash_row(row)
                logprob, top = log_softmax_at(row, token, 3)
                reported = sequence.logprobs[at]
                assert (reported.token, reported.logprob, reported.top) == (token, logprob, top)

    @pytest.mark.parametrize("verification", VERIFICATIONS)
    def test_only_what_is_lossy_says_so(self, verification):
        engine = Setup(verification=verification).engine()
        sequence = run(engine, [request((1, 2))])[0][0]
        assert GenerationStats.of(sequence).lossy == (verification == "typical")

    @pytest.mark.parametrize("verification", RULED)
    def test_bans_and_limits_hold(self, verification):
        one = sampled(4, min_tokens=20, max_tokens=22, logit_bias={3: -100.0}, top_k=12)
        sequence = run(
            Setup(
                prefill_slowdown=1e9, drafter=SamplingDrafter(near_target, FORKED), verification=verification
            ).engine(),
            [one],
        )[0][0]
        assert 20 <= sequence.num_output <= 22
        assert not {0, 3} & set(sequence.output[:19])


class TestSeeds:
    @pytest.mark.parametrize("verification", RULED)
    def test_a_seed_that_would_repeat_nothing_is_refused(self, verification):
        engine = Setup(verification=verification).engine()
        with pytest.raises(RequestError, match=f"{verification} verification cannot repeat a seed") as error:
            engine.add(sampled(seed=3))
        assert error.value.param == "seed"
        assert not engine.has_work

    @pytest.mark.parametrize("verification", RULED)
    def test_greedy_and_unseeded_requests_are_welcome(self, verification):
        run(Setup(verification=verification).engine(), [request((1, 2), seed=3), sampled(seed=None)])

    def test_coupled_verification_takes_seeds(self):
        run(Setup().engine(), [sampled(seed=3)])


class TestFailures:
    def decode(self, fail_at):
        """A drawn request whose `fail_at`-th forward pass raises."""
        calls = itertools.count()

        def corrupt(batch, rows):
            if next(calls) == fail_at:
                raise RuntimeError("scripted")

        drafter, backend = SamplingDrafter(near_target, FORKED), FakeBackend(corrupt=corrupt)
        engine = Setup(prefill_slowdown=1e9, drafter=drafter, verification="rejection", backend=backend).engine()
        sequence = run(engine, [sampled(6, seed=None)])[0][0]
        return facts(sequence), engine.stats.failed_steps

    def test_a_retried_step_decides_the_same(self, monkeypatch):
        monkeypatch.setattr(engine_module, "random_seed", lambda: 4)
        plain, failed = self.decode(fail_at=-1)
        assert failed == 0
        for step in (1, 2, 4):
            assert self.decode(fail_at=step) == (plain, 1)

    @pytest.mark.parametrize("verification", ["rejection", "block", "typical"])
    def test_a_row_with_nan_ends_its_sequence_and_no_other(self, verification):
        def corrupt(batch, rows):
            for draw in batch.draws:
                for row in range(len(draw.tree)):
                    if draw.tree.num_nodes and draw.position > 12 and draw.key == bad.key:
                        rows[draw.first_output + row][:] = np.nan

        backend = FakeBackend(corrupt=corrupt)
        drafter = SamplingDrafter(near_target, FORKED)
        engine = Setup(prefill_slowdown=1e9, drafter=drafter, verification=verification, backend=backend).engine()
        requests = [sampled(5, ignore_eos=True), sampled(6, ignore_eos=True)]
        bad, good = (engine.add(one)[0] for one in requests)
        while engine.has_work:
            engine.step()
            engine.check()
        assert bad.finish == FinishReason.NUMERICAL_ERROR
        assert bad.num_output >= 8
        assert (good.finish, good.num_output) == (FinishReason.LENGTH, 24)

    def test_a_nan_below_the_walked_path_is_not_met(self):
        """Rows of nodes that the target excludes hold NaN; nobody looks."""

        def wrong_nodes(ask):
            tokens = ask.sequence.tokens
            likely = int(path_logits(tuple(tokens)).argmax())
            other = (likely + 1) % VOCAB
            q = np.zeros(VOCAB)
            q[other] = 1.0
            return DraftTree((tokens[-1], other), (-1, 0), (1.0, 1.0), draft_probs={0: q})

        def corrupt(batch, rows):
            for draw in batch.draws:
                for row in range(1, len(draw.tree)):
                    rows[draw.first_output + row][:] = np.nan

        one = sampled(5, top_k=1, ignore_eos=True)
        for verification in ("rejection", "block"):
            backend = FakeBackend(corrupt=corrupt)
            setup = Setup(
                prefill_slowdown=1e9, drafter=ScriptedDrafter(wrong_nodes), verification=verification, backend=backend
            )
            sequence = run(setup.engine(), [one])[0][0]
            greedy = plain_decode(request(one.prompt, ignore_eos=True))
            assert facts(sequence) == greedy


class TestSoundProbs:
    GOOD = np.array([0.5, 0.25, 0.25, 0.0])

    def tree(self, q, row=0):
        return DraftTree((9, 1), (-1, 0), (1.0, 1.0), draft_probs={row: q})

    def test_sound(self):
        assert has_sound_probs(self.tree(self.GOOD), 4)
        assert has_sound_probs(DraftTree.chain(9, [1]), 4)

    @pytest.mark.parametrize(
        "q",
        [
            np.array([0.5, 0.25, 0.25]),  # another vocabulary
            np.array([0.5, 0.0, 0.25, 0.25]),  # the child cannot have been drawn
            np.array([0.5, 0.5, 0.5, 0.0]),
            np.array([1.0, 0.5, -0.5, 0.0]),
            np.array([0.5, 0.25, np.nan, 0.0]),
            np.array([0.5, 0.25, 0.25, 0.0], np.float32),
        ],
        ids=["short", "impossible child", "too much", "negative", "nan", "float32"],
    )
    def test_unsound(self, q):
        assert not has_sound_probs(self.tree(q), 4)

    def test_of_a_row_that_is_not_there(self):
        assert not has_sound_probs(self.tree(self.GOOD, row=2), 4)

    def test_a_drafter_that_lies_costs_speed_only(self):
        lying = SamplingDrafter(near_target, FORKED, report=lambda q: np.full(VOCAB, np.nan))
        engine = Setup(prefill_slowdown=1e9, drafter=lying, verification="rejection").engine()
        assert run(engine, [sampled(5)])[0][0].finish is not None
        assert engine.speculator.stats.drafted == 0
        assert engine.speculator.stats.dropped_nodes > 0


def test_every_verification_of_the_configuration_exists():
    assert [make_verifier(name).name for name in VERIFICATIONS] == list(VERIFICATIONS)
    assert [make_verifier(name).is_seeded for name in VERIFICATIONS] == [True, False, False, False]
    assert [make_verifier(name).is_lossy for name in VERIFICATIONS] == [False, False, False, True]
