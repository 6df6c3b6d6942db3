"""Plain completions through the official client: prompts of every form, echo with log-probabilities, gaps."""

import math

import httpx
import openai
import pytest

from forerun.sequence import SamplingParams
from tests.server.conftest import MODEL, Server

TEXT = "The quick brown fox jumps over the lazy dog."


def complete(server: Server, prompt, **options):
    return server.openai.completions.create(model=MODEL, prompt=prompt, **options)


def streamed(server: Server, prompt, **options):
    """Choices of a stream by index: text, lists of log-probabilities, reason."""
    found: dict[int, dict] = {}
    for chunk in complete(server, prompt, stream=True, **options):
        for choice in chunk.choices:
            entry = found.setdefault(choice.index, {"text": "", "logprobs": None, "reason": None})
            entry["text"] += choice.text
            entry["reason"] = choice.finish_reason or entry["reason"]
            if choice.logprobs is not None:
                new = choice.logprobs.model_dump()
                old = entry["logprobs"] or {key: [] for key in new}
                entry["logprobs"] = {key: old[key] + new[key] for key in new}
    return found


@pytest.mark.parametrize("prompt", [TEXT, [5, 6, 7], [TEXT, "Once"], [[5, 6, 7], [8]]])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"seed": 3, "n": 2, "logprobs": 2},
        {"seed": 3, "n": 2, "logprobs": 2, "echo": True},
        {"temperature": 0, "echo": True, "max_tokens": 0, "logprobs": 1},
        {"seed": 1, "stop": ["e", "a "], "echo": True},
    ],
)
def test_a_stream_says_what_the_whole_answer_says(server: Server, prompt, options):
    options = {"max_tokens": 12, **options}
    whole = complete(server, prompt, **options)
    stream = streamed(server, prompt, **options)
    num_prompts = 2 if isinstance(prompt, list) and not isinstance(prompt[0], int) else 1
    assert [choice.index for choice in whole.choices] == list(range(num_prompts * options.get("n", 1)))
    for choice in whole.choices:
        logprobs = choice.logprobs.model_dump() if choice.logprobs else None
        found = {"text": choice.text, "logprobs": logprobs, "reason": choice.finish_reason}
        assert stream[choice.index] == found


def test_each_prompt_is_answered_as_if_it_came_alone(server: Server):
    together = complete(server, [TEXT, "Once"], temperature=0, max_tokens=8)
    alone = [complete(server, prompt, temperature=0, max_tokens=8) for prompt in (TEXT, "Once")]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    assert together.usage.completion_tokens == 16
    ids = server.http.post("/tokenize", json={"text": TEXT}).json()["tokens"]
    assert complete(server, ids, temperature=0, max_tokens=8).choices[0].text == together.choices[0].text


def test_the_default_length_is_openais(server: Server):
    assert complete(server, TEXT, extra_body={"ignore_eos": True}).usage.completion_tokens == 16


class TestEcho:
    def test_log_probabilities_of_the_prompt_are_those_of_the_engine(self, server: Server):
        complete(server, TEXT, max_tokens=1)  # cached now
        answer = complete(server, TEXT, max_tokens=4, temperature=0, echo=True, logprobs=3)
        (choice,) = answer.choices
        assert choice.text.startswith(TEXT)
        assert answer.usage.prompt_tokens_details.cached_tokens == 0
        lists = choice.logprobs
        wanted = server.llm.generate(TEXT, SamplingParams(max_tokens=4, logprobs=3, prompt_logprobs=3))[0].choices[0]
        entries = [*wanted.prompt_logprobs, *wanted.logprobs]
        assert lists.token_logprobs == [None, *(entry.logprob for entry in entries)]
        assert lists.top_logprobs[0] is None
        assert all(len(top) >= 3 for top in lists.top_logprobs[1:])
        assert all(math.isclose(sum(map(math.exp, top.values())), 1, abs_tol=1) for top in lists.top_logprobs[1:])

    def test_every_token_stands_where_its_text_does(self, server: Server):
        text = "naïve 你好 🙂 end"
        lists = complete(server, text, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs
        assert lists.text_offset[0] == 0
        assert lists.text_offset == sorted(lists.text_offset)
        for token, offset in zip(lists.tokens, lists.text_offset, strict=True):
            assert token.startswith("bytes:") or text[offset:].startswith(token)

    def test_without_echo_the_answer_stands_behind_the_prompt(self, server: Server):
        lists = complete(server, TEXT, max_tokens=3, logprobs=0).choices[0].logprobs
        assert lists.text_offset[0] == len(TEXT)
        assert [list(top) for top in lists.top_logprobs] == [[token] for token in lists.tokens]

    def test_scoring_alone_counts_no_answer(self, server: Server):
        answer = complete(server, TEXT, max_tokens=0, echo=True, logprobs=0)
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (TEXT, "length")
        assert answer.usage.completion_tokens == 0
        assert answer.usage.total_tokens == answer.usage.prompt_tokens


@pytest.mark.parametrize(
    ("options", "param", "word"),
    [
        ({"max_tokens": 0}, "max_tokens", "echo"),
        ({"suffix": "x"}, "suffix", "fill in the middle"),
        ({"suffix": "x", "echo": True}, "echo", "suffix"),
        ({"best_of": 2}, "best_of", "n choices"),
        ({"logprobs": 21}, "logprobs", "20"),
        ({"prompt": []}, "prompt", "prompt"),
        ({"prompt": [[]]}, "prompt[0]", "prompt"),
        ({"prompt": [1, "a"]}, "prompt[0]", "string"),
        ({"prompt": [10**7]}, "prompt", "vocabulary"),
        ({"prompt": ["a", 3]}, "prompt[1]", "string"),
        ({"prompt": ["a"] * 900, "n": 2}, "prompt", "1800 choices"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search", "beam"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens", "max_tokens"),
        ({"model": "gpt-4"}, "model", "gpt-4"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream"),
    ],
)
def test_what_cannot_be_honoured_is_named(server: Server, options, param, word):
    body = {"model": MODEL, "prompt": TEXT, **options}
    body |= body.pop("extra_body", {})
    answer = server.http.post("/v1/completions", json=body)
    assert answer.status_code == (404 if param == "model" else 400)
    error = answer.json()["error"]
    assert error["param"] == param, error
    assert word in error["message"]
    assert error["code"]


def test_a_prompt_that_is_too_long_leaves_no_other_prompt_running(server: Server, wait_until):
    with pytest.raises(openai.BadRequestError):
        complete(server, ["short", "word " * 2000], max_tokens=900, extra_body={"ignore_eos": True})
    wait_until(lambda: not server.llm.engine.has_work)


def test_a_client_that_leaves_ends_all_of_its_prompts(server: Server, wait_until):
    stream = complete(server, [TEXT, "Once"], n=2, stream=True, max_tokens=900, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until(lambda: not server.llm.engine.has_work)
    with pytest.raises(httpx.ReadTimeout):
        server.http.post(
            "/v1/completions",
            json={"model": MODEL, "prompt": [TEXT, "Once"], "max_tokens": 900, "ignore_eos": True},
            timeout=0.2,
        )
    wait_until(lambda: not server.llm.engine.has_work)
    server.llm.engine.check()
