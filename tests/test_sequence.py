"""SamplingParams and Request: what is refused, by name, in one line."""

import math

import numpy as np
import pytest

from forerun.errors import RequestError, UsageError
from forerun.sequence import FinishReason, Request, SamplingParams, Sequence, SpeculationParams

NAN, INF, HUGE = math.nan, math.inf, 10**5000

REFUSED = {
    "max_tokens": [0, -1, 1.5, "3", True, NAN, 2**31, HUGE],
    "min_tokens": [-1, 1.0, None, True, 2**31, "1"],
    "temperature": [-0.1, -1, 100.1, NAN, INF, -INF, "0.5", None, True, HUGE, 1j],
    "top_k": [-1, 2.0, None, True, "4", 2**31],
    "top_p": [0, 0.0, -0.1, 1.01, NAN, INF, None, "1", True],
    "min_p": [-0.01, 1.01, NAN, None, True],
    "repetition_penalty": [0, -1.0, 101, NAN, INF, None, "1", True],
    "frequency_penalty": [-101, 101, NAN, INF, None, False],
    "presence_penalty": [-101, 101, NAN, -INF, None, "x"],
    "logit_bias": [
        {1: NAN},
        {1: INF},
        {-1: 0.0},
        {1.0: 1.0},
        {"1": 1.0},
        {True: 1.0},
        {1: "2"},
        {1: True},
        None,
        [1],
        3,
    ],
    "stop": ["", ("a", ""), (1,), 5, None, ["x"] * 65],
    "stop_token_ids": [(-1,), (1.0,), ("1",), (True,), 7, None, (2**31,)],
    "ignore_eos": [1, 0, "yes", None],
    "logprobs": [-1, 1001, 1.0, True, "2"],
    "prompt_logprobs": [-1, 1001, 1.0, True, "2"],
    "n": [0, -1, 129, 1.0, True, None],
    "seed": [1.0, "7", True, NAN, 2**129, -(2**129), HUGE],
    "logits_hash": [1, None, "no"],
}


CASES = [
    pytest.param(param, value, id=f"{param}-{index}")  # numbers of 5000 digits have no name
    for param, values in REFUSED.items()
    for index, value in enumerate(values)
]


@pytest.mark.parametrize(("param", "value"), CASES)
def test_refusals_name_the_option(param, value):
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{"max_tokens": None, param: value} if param == "min_tokens" else {param: value})
    assert caught.value.param == param
    message = str(caught.value)
    assert message.startswith(f"{param} must be ")
    assert "\n" not in message
    assert len(message) < 200
    assert isinstance(caught.value, UsageError)


ACCEPTED = {
    "max_tokens": [1, None, 2**31 - 1],
    "min_tokens": [0, 128],
    "temperature": [0, 0.0, 1e-9, 1, 100],
    "top_k": [0, 1, 10**9],
    "top_p": [1e-9, 1, 1.0],
    "min_p": [0, 1],
    "repetition_penalty": [1e-3, 1, 100],
    "frequency_penalty": [-100, 100],
    "logit_bias": [{}, {0: -100.0, 7: 5}],
    "stop": [(), ["a"], ("a", "b"), ["x"] * 64],
    "stop_token_ids": [(), [3], range(3)],
    "logprobs": [None, 0, 1000],
    "prompt_logprobs": [None, 0, 1000],
    "n": [1, 128],
    "seed": [None, 0, -5, 2**64, 2**128 - 1],
}


@pytest.mark.parametrize(("param", "value"), [(param, value) for param, values in ACCEPTED.items() for value in values])
def test_the_whole_legal_range(param, value):
    stored = getattr(SamplingParams(**{param: value}), param)
    assert stored == (tuple(value) if param in ("stop", "stop_token_ids") else value)


def test_every_option_is_tested():  # those of speculation have a class and tests of their own
    assert set(REFUSED) | {"speculation"} == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize("options", [{"drafter": 3}, {"max_depth": 0}, {"max_depth": 64}, {"max_depth": 1.5}])
def test_speculation_params_are_checked(options):
    with pytest.raises(RequestError, match="speculation"):
        SpeculationParams(**options)


def test_speculation_must_be_its_class():
    with pytest.raises(RequestError, match="speculation"):
        SamplingParams(speculation="off")


def test_min_tokens_beyond_max_tokens():
    with pytest.raises(RequestError, match="min_tokens must be at most max_tokens, got 9"):
        SamplingParams(max_tokens=8, min_tokens=9)
    assert SamplingParams(max_tokens=8, min_tokens=8).min_tokens == 8
    assert SamplingParams(max_tokens=None, min_tokens=9).min_tokens == 9


def test_one_stop_string_is_a_list_of_one():
    assert SamplingParams(stop="end").stop == ("end",)


def test_later_changes_of_the_callers_map_do_not_reach_it():
    bias = {1: 2.0}
    params = SamplingParams(logit_bias=bias)
    bias[1] = math.nan
    assert params.logit_bias == {1: 2.0}


@pytest.mark.parametrize(
    ("options", "has"),
    [
        ({}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"presence_penalty": 0.1}, True),
    ],
)
def test_has_penalties(options, has):
    assert SamplingParams(**options).has_penalties is has


class TestRequest:
    def test_any_integer_type_becomes_int(self):
        wanted = Request("r", np.array([1, 2], np.int32), SamplingParams())
        assert wanted.prompt == (1, 2)
        assert all(type(token) is int for token in wanted.prompt)

    @pytest.mark.parametrize("prompt", [[1.0], ["1"], [None], 5, None, "text"])
    def test_other_prompts_are_refused(self, prompt):
        with pytest.raises(RequestError, match="whole numbers") as caught:
            Request("r", prompt, SamplingParams())
        assert caught.value.param == "prompt"


def test_counts_of_a_sequence():
    sequence = Sequence(0, Request("r", (1, 2, 3), SamplingParams()), 0, 0, (0, 0), [1, 2, 3, 4, 5], 3, num_computed=4)
    assert sequence.output == [4, 5]
    assert (sequence.num_output, sequence.num_pending, sequence.is_finished) == (2, 1, False)
    sequence.finish = FinishReason.STOP
    assert sequence.is_finished


def test_finish_reasons_are_public_words():
    """They stand in results and in the server's answers: changing one is a breaking change."""
    assert {reason.value for reason in FinishReason} == {"stop", "length", "aborted", "numerical_error", "error"}
