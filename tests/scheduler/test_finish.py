"""The finish rule: one token at a time, nothing after the end, a stop wins over a length."""

import numpy as np
import pytest

from forerun.batch import Drawn, Outcome
from forerun.scheduler.finish import append_tokens
from forerun.sequence import FinishReason, Request, SamplingParams, Sequence, TokenLogprob
from forerun.speculation.tree import DraftTree
from tests.fakes import FiniteStateMask, OracleDrafter, PairStop, Setup, facts, plain_decode, prompt_of, request, run

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
PROMPT = (5, 6, 7)
EOS = 0


def sequence_of(matcher=None, **options):
    wanted = Request("r", PROMPT, SamplingParams(**{"seed": 0, "max_tokens": 100, **options}), eos_ids=(EOS,))
    return Sequence(0, wanted, 0, 0, (0, 0), list(PROMPT), len(PROMPT), stop_matcher=matcher)


def drawn_of(count):
    """Logprobs and hashes that name their row."""
    top = tuple(((row, -0.5),) for row in range(count))
    hashes = tuple(bytes([row]) for row in range(count))
    return Drawn(np.zeros(count, np.int32), -np.arange(count, dtype=float), top, hashes)


def accept(sequence, tokens, max_model_len=100):
    """Append `tokens`, all but the last of which were drafted and accepted."""
    tree = DraftTree.chain(sequence.tokens[-1], tokens[:-1], source="test")
    outcome = Outcome(tree, tuple(range(1, len(tokens))), tuple(tokens), tuple(range(len(tokens))))
    return append_tokens(sequence, outcome, drawn_of(len(tokens)), max_model_len, now=12.5)


@pytest.mark.parametrize(
    ("options", "tokens", "output", "finish"),
    [
        ({}, [1, 2, 3, 4], [1, 2, 3, 4], None),
        ({}, [1, EOS, 3, 4], [1, EOS], STOP),
        ({}, [1, 2, 3, EOS], [1, 2, 3, EOS], STOP),
        ({"ignore_eos": True}, [1, EOS, 3, 4], [1, EOS, 3, 4], None),
        ({"stop_token_ids": (3,)}, [1, 2, 3, 4], [1, 2, 3], STOP),
        ({"stop_token_ids": (EOS,), "ignore_eos": True}, [1, EOS, 3], [1, EOS], STOP),
        ({"max_tokens": 2}, [1, 2, 3, 4], [1, 2], LENGTH),
        ({"max_tokens": 4}, [1, 2, 3, 4], [1, 2, 3, 4], LENGTH),
        ({"max_tokens": 1}, [1, 2], [1], LENGTH),
        ({"max_tokens": 2}, [1, EOS, 3], [1, EOS], STOP),
        ({"min_tokens": 3}, [1, EOS, 3, 4], [1, EOS, 3, 4], None),  # a banned id, were it drawn, would be text
        ({"min_tokens": 2}, [1, EOS, 3, 4], [1, EOS], STOP),
        ({"max_tokens": None}, [1, 2, 3, 4], [1, 2, 3, 4], None),
    ],
)
def test_where_it_ends(options, tokens, output, finish):
    sequence = sequence_of(**options)
    accept(sequence, tokens)
    assert sequence.output == output
    assert sequence.finish is finish


def test_the_context_is_a_length():
    sequence = sequence_of(max_tokens=None)
    accept(sequence, [1, 2, 3, 4], max_model_len=5)
    assert (sequence.output, sequence.finish) == ([1, 2], LENGTH)
    sequence = sequence_of()
    accept(sequence, [1, EOS, 3], max_model_len=5)
    assert sequence.finish is STOP


@pytest.mark.parametrize(("min_tokens", "length"), [(0, 3), (3, 3), (4, 5)])
def test_a_stop_matcher_in_the_middle_of_an_accepted_block(min_tokens, length):
    sequence = sequence_of(PairStop(), min_tokens=min_tokens)
    accept(sequence, [1, 4, 5, 8, 9, 20])
    assert (sequence.output, sequence.finish) == ([1, 4, 5, 8, 9, 20][:length], STOP)


def test_a_stop_across_two_steps():
    sequence = sequence_of(PairStop())
    accept(sequence, [1, 4])
    accept(sequence, [5, 6])
    assert (sequence.output, sequence.finish) == ([1, 4, 5], STOP)


def test_nothing_behind_the_end_is_reported_or_counted():
    sequence = sequence_of(logprobs=1, logits_hash=True, stop_token_ids=(3,))
    cut = accept(sequence, [1, 2, 3, 4, 5])
    assert (cut.tokens, cut.accepted, cut.rows) == ((1, 2, 3), (1, 2, 3), (0, 1, 2))
    assert sequence.logprobs == [TokenLogprob(t, -float(r), ((r, -0.5),)) for r, t in enumerate((1, 2, 3))]
    assert sequence.logits_hashes == [b"\0", b"\1", b"\2"]
    assert sequence.drafted_by == ["test"] * 3
    stats = sequence.stats
    assert (stats.drafted, stats.accepted, stats.steps) == (4, 3, 1)
    assert (stats.drafted_at, stats.accepted_at) == ([1, 1, 1, 1], [1, 1, 1, 0])
    assert stats.accepted_by == {"test": 3}


def test_counts_of_a_running_sequence():
    sequence = sequence_of(logprobs=None)
    accept(sequence, [1, 2, 3])
    accept(sequence, [4])
    tree = DraftTree.from_paths(4, [[9], [8]], source="test")
    append_tokens(sequence, Outcome(tree, (), (5,), (0,)), drawn_of(1), 100, now=13.0)
    assert sequence.output == [1, 2, 3, 4, 5]
    assert sequence.drafted_by == ["test", "test", "", "", ""]
    assert sequence.logprobs == []
    stats = sequence.stats
    assert (stats.steps, stats.drafted, stats.accepted) == (3, 4, 2)
    assert (stats.drafted_at, stats.accepted_at) == ([2, 1], [1, 1])
    assert (stats.first_token_s, stats.finished_s) == (12.5, None)


class TestNaN:
    def outcome(self, tokens):
        tree = DraftTree.chain(7, [1, 2, 3])
        return Outcome(tree, tuple(range(1, len(tokens) + 1)), tokens, tuple(range(len(tokens))), is_finite=False)

    def test_at_the_root(self):
        sequence = sequence_of()
        append_tokens(sequence, self.outcome(()), drawn_of(4), 100, now=1.0)
        assert (sequence.output, sequence.finish) == ([], FinishReason.NUMERICAL_ERROR)
        assert "NaN" in sequence.error
        assert (sequence.stats.steps, sequence.stats.first_token_s, sequence.stats.finished_s) == (0, None, 1.0)

    def test_what_came_before_stands(self):
        sequence = sequence_of()
        append_tokens(sequence, self.outcome((1, 2)), drawn_of(4), 100, now=1.0)
        assert (sequence.output, sequence.finish) == ([1, 2], FinishReason.NUMERICAL_ERROR)

    def test_a_stop_before_it_wins(self):
        sequence = sequence_of(stop_token_ids=(2,))
        append_tokens(sequence, self.outcome((1, 2)), drawn_of(4), 100, now=1.0)
        assert (sequence.finish, sequence.error) == (STOP, "")


def test_a_stop_matcher_that_fails_ends_its_own_sequence():
    class Broken:
        def push(self, token, may_stop):
            raise KeyError("bytes\nmissing")

    sequence = sequence_of(Broken())
    accept(sequence, [1, 2])
    assert (sequence.output, sequence.finish) == ([1], FinishReason.ERROR)
    assert sequence.error == "KeyError: 'bytes\\nmissing'"


@pytest.mark.parametrize("wrong_at", [0, 3])
@pytest.mark.parametrize("options", [{"max_tokens": n} for n in (1, 2, 5, 7)] + [{"stop": ("pair",)}])
def test_the_engine_ends_where_plain_decoding_ends(options, wrong_at):
    """Long accepted drafts run over every end."""
    matcher = PairStop if "stop" in options else None
    for seed in range(6):
        plain = request(prompt_of(seed, 9), temperature=1.0, **options)
        wanted = Request("r", plain.prompt, plain.params, plain.eos_ids, make_stop_matcher=matcher)
        longer = plain_decode(request(prompt_of(seed, 9), temperature=1.0, max_tokens=40, ignore_eos=True))[0]

        def text(sequence, longer=longer):
            return longer

        engine = Setup(drafter=OracleDrafter(text, wrong_at), max_depth=12).engine()
        sequence = run(engine, [wanted])[0][0]
        assert facts(sequence) == plain_decode(wanted)
        assert len(sequence.drafted_by) == len(sequence.logits_hashes) == sequence.num_output


class Recorder(FiniteStateMask):
    """A grammar that allows everything and remembers what it took; fails on token 9."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def advance(self, token):
        if token == 9:
            raise ValueError("no rule for token 9")
        self.taken.append(token)


class TestGrammar:
    def test_it_takes_every_token_but_the_one_that_ends(self):
        sequence = sequence_of()
        sequence.token_mask = mask = Recorder()
        accept(sequence, [1, 2])
        accept(sequence, [3, EOS, 4])
        assert mask.taken == [1, 2, 3]

    def test_one_that_fails_ends_its_sequence(self):
        sequence = sequence_of()
        sequence.token_mask = Recorder()
        accept(sequence, [1, 9, 2])
        assert (sequence.output, sequence.finish) == ([1, 9], FinishReason.ERROR)
        assert sequence.error == "ValueError: no rule for token 9"

    def test_one_that_allows_nothing_is_told(self):
        sequence = sequence_of()
        sequence.token_mask = Recorder()
        tree = DraftTree.root_only(sequence.tokens[-1])
        append_tokens(sequence, Outcome(tree, (), (), (), is_finite=False), drawn_of(1), 100, now=1.0)
        assert sequence.finish is FinishReason.NUMERICAL_ERROR
        assert "the grammar allows no token here" in sequence.error
