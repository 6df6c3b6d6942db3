"""Chat completions through the official client: streams equal whole answers, options are honoured or refused."""

import openai
import pytest

from tests.server.conftest import MODEL, Server

MESSAGES = [{"role": "user", "content": "hello there"}]


def chat(server: Server, **options):
    return server.openai.chat.completions.create(model=MODEL, **{"messages": MESSAGES, **options})


@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"seed": 7}, {"seed": 7, "n": 3}, {"temperature": 0, "stop": ["a"]}]
)
def test_a_stream_says_what_the_whole_answer_says(server: Server, options):
    whole = chat(server, max_tokens=24, logprobs=True, top_logprobs=2, **options)
    texts = {choice.index: "" for choice in whole.choices}
    tokens = {choice.index: [] for choice in whole.choices}
    reasons = {}
    for chunk in chat(server, max_tokens=24, logprobs=True, top_logprobs=2, stream=True, **options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            tokens[choice.index] += choice.logprobs.content if choice.logprobs else []
            if choice.finish_reason:
                reasons[choice.index] = choice.finish_reason
    for choice in whole.choices:
        assert texts[choice.index] == choice.message.content
        assert tokens[choice.index] == choice.logprobs.content
        assert reasons[choice.index] == choice.finish_reason


def test_usage_comes_only_when_asked_and_counts_cached_tokens(server: Server):
    ask = {"max_tokens": 4, "stream": True, "extra_body": {"ignore_eos": True}}
    plain = list(chat(server, **ask))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)
    chunks = list(chat(server, stream_options={"include_usage": True}, **ask))
    assert chunks[-1].choices == []
    assert all(chunk.usage is None for chunk in chunks[:-1])
    usage = chunks[-1].usage
    assert usage.completion_tokens == 4
    assert usage.prompt_tokens_details.cached_tokens >= 0


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"extra_body": {"best_of": 2}}, "best_of"),
        ({"temperature": 5}, "temperature"),
        ({"extra_body": {"top_k": "many"}}, "top_k"),
        ({"extra_body": {"speculation": {"drafter": "nobody"}}}, "speculation"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"logit_bias": {"one": 1}}, "logit_bias"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_named(server: Server, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(server, **options)
    assert caught.value.param == param
    assert caught.value.code
    assert chat(server, max_tokens=2).choices


def test_a_conversation_that_is_too_long_is_named_as_clients_expect(server: Server):
    with pytest.raises(openai.BadRequestError, match="the prompt has") as caught:
        chat(server, messages=[{"role": "user", "content": "word " * 3000}])
    assert caught.value.param == "messages"
    assert caught.value.code == "context_length_exceeded"


def test_a_client_that_leaves_frees_its_blocks(server: Server, wait_until):
    stream = chat(server, stream=True, extra_body={"ignore_eos": True}, max_tokens=900)
    next(iter(stream))
    stream.close()
    wait_until(lambda: not server.llm.engine.has_work)
    server.llm.engine.check()
