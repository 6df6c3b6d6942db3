"""make_draw: the request of a sequence, before and after it grows."""

from collections import Counter

import numpy as np
import pytest

from forerun.sampling.request import make_draw
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.tree import DraftTree


def make_sequence(prompt=(5, 6, 5), eos_ids=(2,), **options):
    request = Request("r", tuple(prompt), SamplingParams(**options), eos_ids=eos_ids)
    tokens = list(prompt)
    return Sequence(id=0, request=request, choice=0, seed=1, key=(7, 8), tokens=tokens, num_prompt=len(prompt))


def draw_of(sequence, first_output=4):
    return make_draw(sequence, DraftTree.root_only(sequence.tokens[-1]), first_output)


def history_of(sequence):
    draw = draw_of(sequence)
    return dict(zip(draw.history_ids.tolist(), draw.history_counts.tolist(), strict=True))


def test_every_option_reaches_the_request():
    options = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.8,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "frequency_penalty": 0.2,
        "presence_penalty": 0.3,
        "logprobs": 4,
        "logits_hash": True,
    }
    sequence = make_sequence(**options, logit_bias={9: -1.5, 3: 2.0}, seed=1)
    draw = draw_of(sequence)
    assert {name: getattr(draw, name) for name in options} == options
    assert (draw.first_output, draw.position, draw.key) == (4, 3, (7, 8))
    assert draw.bias_ids.tolist() == [9, 3]
    assert draw.bias_values.tolist() == [-1.5, 2.0]


def test_no_history_without_penalties_and_no_ban_without_min_tokens():
    draw = draw_of(make_sequence(temperature=1.0, stop_token_ids=(1,)))
    assert len(draw.history_ids) == len(draw.history_counts) == len(draw.banned) == 0


def test_min_tokens_bans_every_stop_id_even_with_ignore_eos():
    draw = draw_of(make_sequence(eos_ids=(2, 9), stop_token_ids=(11, 2), min_tokens=4, ignore_eos=True))
    assert draw.banned.tolist() == [2, 9, 11]
    assert draw.banned_until == 3 + 4


@pytest.mark.parametrize("penalty", ["repetition_penalty", "frequency_penalty", "presence_penalty"])
def test_history_counts_the_output_as_the_sequence_grows_and_is_preempted(penalty):
    rng = np.random.default_rng(3)
    sequence = make_sequence(**{penalty: 1.5})
    for step in range(30):
        if step % 3 == 0:
            sequence.num_computed = 0  # preempted: tokens stay
        sequence.tokens.extend(rng.integers(0, 12, size=step % 4).tolist())
        want = dict.fromkeys(sequence.tokens[:3], 0) | Counter(sequence.output)
        assert history_of(sequence) == want
        assert history_of(sequence) == want  # asking twice counts nothing twice


def test_an_earlier_request_is_not_changed_by_later_tokens():
    sequence = make_sequence(frequency_penalty=1.0)
    before = draw_of(sequence)
    sequence.tokens += [5, 70]
    draw_of(sequence)
    assert before.history_ids.tolist() == [5, 6]
    assert before.history_counts.tolist() == [0, 0]


def test_sequences_of_one_request_keep_their_own_history():
    a, b = make_sequence(presence_penalty=1.0), make_sequence(presence_penalty=1.0)
    a.tokens.append(40)
    assert 40 in history_of(a)
    assert 40 not in history_of(b)
