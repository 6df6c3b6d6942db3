"""/v1/responses through the official client: a stream ends in the document of a whole answer; items and refusals."""

import openai
import pytest

from tests.server.conftest import MODEL, Server

INPUT = "hello there"


def respond(server: Server, **options):
    return server.openai.responses.create(model=MODEL, **{"input": INPUT, **options})


def stable(response) -> dict:
    """What does not depend on when it was asked: identifiers, times, and what the cache and drafts knew."""
    document = response.model_dump()
    for key in ("id", "created_at", "completed_at", "speculation", "seed"):
        document.pop(key, None)
    for item in document["output"]:
        item.pop("id")
    document["usage"].pop("input_tokens_details")
    document["usage"].pop("output_tokens_details")
    return document


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0, "max_output_tokens": 24},
        {"extra_body": {"seed": 5, "stop": ["a"]}, "max_output_tokens": 24},
        {"temperature": 0, "max_output_tokens": 9, "include": ["message.output_text.logprobs"], "top_logprobs": 2},
        {"temperature": 0, "max_output_tokens": 9, "instructions": "be brief", "metadata": {"a": "b"}},
    ],
)
class TestStreams:
    def test_the_last_event_carries_the_whole_answer(self, server: Server, options):
        whole = respond(server, **options)
        events = list(respond(server, stream=True, **options))
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
        assert stable(events[-1].response) == stable(whole)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == whole.output_text
        entries = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
        assert len(entries) == len(whole.output[0].content[0].logprobs)

    def test_the_clients_own_accumulation_agrees(self, server: Server, options):
        with server.openai.responses.stream(model=MODEL, input=INPUT, **options) as stream:
            kinds = [event.type for event in stream]
            if kinds[-1] == "response.completed":
                assert stream.get_final_response().output_text == respond(server, **options).output_text
        assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 1
        assert kinds.index("response.content_part.added") < kinds.index("response.output_text.delta")
        assert kinds[-4:-1] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ]


def test_an_answer_that_was_cut_says_so(server: Server):
    cut = respond(server, max_output_tokens=3, extra_body={"ignore_eos": True})
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert cut.usage.output_tokens == 3
    assert cut.usage.input_tokens_details.cached_tokens >= 0
    first = cut.output_text[:1]
    stopped = respond(server, max_output_tokens=99, extra_body={"seed": cut.seed, "stop": [first], "ignore_eos": True})
    assert (stopped.status, stopped.output_text) == ("completed", "")
    assert stopped.output[0].type == "message"


def test_a_conversation_is_that_of_chat(server: Server):
    earlier = respond(server, temperature=0, max_output_tokens=8, extra_body={"ignore_eos": True})
    items = [{"role": "user", "content": INPUT}, *earlier.output, {"role": "user", "content": "go on"}]
    again = respond(server, input=items, instructions="be brief", temperature=0, max_output_tokens=8)
    chat = server.openai.chat.completions.create(
        model=MODEL,
        temperature=0,
        max_tokens=8,
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": INPUT}]},
            {"role": "assistant", "content": earlier.output_text},
            {"role": "user", "content": "go on"},
        ],
    )
    assert again.output_text == chat.choices[0].message.content
    assert again.usage.input_tokens == chat.usage.prompt_tokens


@pytest.mark.parametrize(
    ("options", "param", "word"),
    [
        ({"store": True}, "store", "not stored"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"conversation": "conv_1"}, "conversation", "whole conversation"),
        ({"background": True}, "background", "not stored"),
        ({"tools": [{"type": "web_search"}]}, "tools", "tools"),
        ({"reasoning": {"effort": "low"}}, "reasoning", "setting"),
        ({"truncation": "auto"}, "truncation", "disabled"),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input", "no images"),
        ({"input": []}, "input", "input"),
        ({"input": "word " * 3000}, "input", "the prompt has"),
        ({"max_output_tokens": 2, "extra_body": {"min_tokens": 3}}, "min_tokens", "at most max_output_tokens"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "odd"}}}},
            "text",
            "text.format: ",
        ),
        ({"extra_body": {"n": 2}}, "n", "not an option"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_cannot_be_honoured_is_named(server: Server, options, param, word, stream):
    with pytest.raises(openai.APIStatusError) as caught:
        respond(server, stream=stream, **options)
    assert caught.value.status_code == (404 if param == "model" else 400)
    assert caught.value.param.startswith(param)
    assert word in caught.value.message


def test_harmless_options_and_nulls_are_taken(server: Server):
    answer = respond(
        server,
        max_output_tokens=2,
        store=False,
        service_tier="auto",
        user="me",
        tools=[],
        tool_choice="auto",
        extra_body={"previous_response_id": None, "reasoning": None, "background": None},
    )
    assert answer.store is False


def test_a_client_that_leaves_frees_its_blocks(server: Server, wait_until):
    stream = respond(server, stream=True, max_output_tokens=900, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    wait_until(lambda: not server.llm.engine.has_work)
    server.llm.engine.check()
