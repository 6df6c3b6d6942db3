"""The promise: speculation, batching, chunking, caching, forking and preemption change nothing that a model says."""

import pytest

from forerun.sequence import FinishReason
from tests.fakes import Setup, facts, plain_decode, prompt_of, request, run
from tests.lossless.cases import AXES, Case, all_cases, mismatches, pairwise_cases, run_case, setup_of

CASES = pairwise_cases(seed=0)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_engine_says_what_plain_decoding_says(case):
    assert mismatches(case, setup_of(case).engine()) == []


@pytest.mark.slow
@pytest.mark.parametrize("chunk", AXES["chunk"])
@pytest.mark.parametrize("drafter", AXES["drafter"])
def test_every_combination(drafter, chunk):
    for case in all_cases():
        if (case.drafter, case.chunk) == (drafter, chunk):
            assert mismatches(case, setup_of(case).engine()) == [], case


class TestTheSuiteReachesWhatItTests:
    """Equal outputs mean little if nothing was accepted, shared, copied or preempted on the way."""

    def run(self, case, **changes):
        setup = setup_of(case)
        for name, value in changes.items():
            setattr(setup, name, value)
        engine = setup.engine()
        sequences, _ = run_case(case, engine)
        return engine, sequences

    def test_every_pair_of_values_occurs(self):
        for first, second in (("drafter", "pool"), ("n", "prefix_caching"), ("sampling", "arrival")):
            seen = {(getattr(case, first), getattr(case, second)) for case in CASES}
            assert len(seen) == len(AXES[first]) * len(AXES[second])

    @pytest.mark.parametrize(
        ("drafter", "sampling", "at_least"),
        [
            ("oracle", "greedy", 0.9),
            ("oracle", "seeded", 0.9),
            ("oracle-errors", "seeded", 0.3),
            ("oracle-branches", "seeded", 0.3),
            ("ngram", "greedy", 0.1),
        ],
    )
    def test_drafts_are_accepted(self, drafter, sampling, at_least):
        engine, sequences = self.run(Case(drafter, sampling))
        stats = engine.speculator.stats
        assert stats.accepted >= at_least * stats.drafted > 0
        assert stats.accepted == sum(sequence.stats.accepted for sequence in sequences)
        assert stats.drafted == sum(sequence.stats.drafted for sequence in sequences)

    def test_trees_branch_and_nodes_move(self):
        case = Case("oracle-branches")
        setup = setup_of(case)
        moves = []
        move_kv = setup.backend.move_kv
        setup.backend.move_kv = lambda pairs: (moves.extend(pairs), move_kv(pairs))
        run_case(case, setup.engine())
        assert any((batch.tree_root >= 0).any() for batch in setup.backend.batches)
        assert len(moves) > 20

    def test_tight_pools_preempt(self):
        for drafter in ("none", "oracle"):
            engine, _ = self.run(Case(drafter, "to-the-end", batch=8, pool="tight"))
            assert engine.scheduler.num_preemptions > 0

    def test_prompts_come_from_the_cache_at_every_border(self):
        _, sequences = self.run(Case(arrival="again", batch=8))
        hits = {sequence.stats.cached_prompt_tokens for sequence in sequences}
        assert len(hits) > 4
        assert 0 in hits
        assert any(hit % 16 for hit in hits), "no hit ended inside a block"
        assert any(hit and hit % 16 == 0 for hit in hits), "no hit ended at a border"

    def test_forks_share_and_copy(self):
        setup = Setup(prefix_caching=False)
        copied = []
        copy_blocks = setup.backend.copy_blocks
        setup.backend.copy_blocks = lambda pairs: (copied.extend(pairs), copy_blocks(pairs))
        sequences = run(setup.engine(), [request(prompt_of(6, 40), n=3, ignore_eos=True)])[0]
        assert len(copied) == 2  # the block that holds the end of the prompt, once for each further choice
        assert [s.stats.cached_prompt_tokens for s in sequences] == [0, 39, 39]

    def test_chunks_are_cut(self):
        case = Case(chunk=3)
        setup = setup_of(case)
        run_case(case, setup.engine())
        prefill = [batch for batch in setup.backend.batches if len(batch.output_rows) < batch.num_rows]
        assert prefill
        assert all(max(batch.query_start[1:] - batch.query_start[:-1]) <= 3 for batch in prefill)


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 48])
@pytest.mark.parametrize("shared", [15, 16, 17, 31, 32, 33])
def test_prefix_hits_at_every_border(length, shared):
    """A prompt of `length` tokens that has min(shared, length) tokens in common with one that ran before."""
    first, other = prompt_of(1, 50), prompt_of(2, 50)
    prompts = [first, (*first[:shared], *other[shared:])[:length], first[:length]]
    engine = Setup().engine()
    for prompt in prompts:
        wanted = request(prompt, max_tokens=20)
        sequence = run(engine, [wanted])[0][0]
        assert facts(sequence) == plain_decode(wanted)
    assert sequence.stats.cached_prompt_tokens == length - 1  # all but the token whose logits are needed


def test_choices_of_one_request_differ_and_repeat_with_the_seed():
    wanted = request(prompt_of(4, 20), n=4, temperature=1.0, seed=9)
    first = run(Setup(num_blocks=12).engine(), [wanted])[0]
    again = run(Setup(max_num_seqs=2, max_chunk=5).engine(), [wanted])[0]
    assert [s.output for s in first] == [s.output for s in again]
    assert len({tuple(s.output) for s in first}) == 4


def test_a_random_seed_is_returned_and_repeats_the_result():
    prompt = prompt_of(5, 20)
    one = run(Setup().engine(), [request(prompt, seed=None, temperature=1.0)])[0][0]
    other = run(Setup().engine(), [request(prompt, seed=None, temperature=1.0)])[0][0]
    repeat = run(Setup().engine(), [request(prompt, seed=one.seed, temperature=1.0)])[0][0]
    assert one.seed != other.seed
    assert repeat.output == one.output


def test_context_limit_ends_a_request_at_the_same_token():
    for case in (Case("none", "to-the-end"), Case("oracle", "to-the-end"), Case("oracle-branches", "to-the-end")):
        sequences, _ = run_case(case, setup_of(case).engine())
        assert {len(s.tokens) for s in sequences} == {56}
        assert {s.finish for s in sequences} == {FinishReason.LENGTH}
