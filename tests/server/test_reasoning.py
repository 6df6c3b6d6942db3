"""What a model thinks is told apart from what it answers, however its text is cut and whoever opens the block."""

import itertools

import pytest

from forerun.server.parsing import PlainText
from forerun.server.reasoning import ReasoningParser
from tests.conftest import TEMPLATE
from tests.server.conftest import MODEL, serving, tiny_llm
from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

OPENED = TEMPLATE.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
KNOWN = TEMPLATE + "{# answers may begin with <think> #}"


def read(text, is_open, cuts):
    parser = ReasoningParser(PlainText(), is_open)
    borders = [0, *cuts, len(text)]
    parts = [part for a, b in itertools.pairwise(borders) for part in parser.push(text[a:b])] + parser.finish()
    return "".join(part.reasoning for part in parts), "".join(part.content for part in parts)


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nhm, so\n</think>\n\nyes", False, ("hm, so", "yes")),
        ("\n<think>a<b</think>c", False, ("a<b", "c")),
        ("hm </thin so\n\n</think> yes </think>", True, ("hm </thin so", "yes </think>")),
        ("<think></think>\n\nyes", False, ("", "yes")),
        ("plain <think>x</think>", False, ("", "plain <think>x</think>")),
        ("  <thi", False, ("", "  <thi")),
        ("never closed \n", True, ("never closed", "")),
        ("ends in a mark </thi", True, ("ends in a mark </thi", "")),
        ("", True, ("", "")),
        ("", False, ("", "")),
    ],
)
def test_no_cut_changes_what_is_read(text, is_open, expected):
    assert read(text, is_open, []) == expected
    assert read(text, is_open, range(1, len(text))) == expected
    for cut in range(1, len(text)):
        assert read(text, is_open, [cut]) == expected


@pytest.fixture(scope="module", params=[OPENED, KNOWN], ids=["opened by the template", "opened by the model"])
def thinking(request, tmp_path_factory):
    """A server of a model that thinks; and whether its template opens the block."""
    _, vocabulary = byte_level("smollm")
    path = tmp_path_factory.mktemp("models") / "thinking.gguf"
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), max_context=512)
    write_tiny_gguf(path, spec, metadata={**vocabulary, "tokenizer.chat_template": request.param})
    with serving(tiny_llm(path)) as server:
        yield server, request.param == OPENED


def ask(server, is_open, **options):
    # A grammar stands behind an opened thought, so there the thought is the model's own nonsense and never ends.
    rule = {} if is_open else {"guided_regex": r"<think>\n(ab)+ </think>\n\nyes"}
    messages = [{"role": "user", "content": "well?"}]
    body = {"seed": 1, "max_tokens": 40, "extra_body": rule, **options}
    return server.openai.chat.completions.create(model=MODEL, messages=messages, **body)


def test_it_is_reasoning_content_whole_and_streamed(thinking):
    server, is_open = thinking
    whole = ask(server, is_open)
    message = whole.choices[0].message
    thought, answer = message.reasoning_content, message.content
    assert thought
    assert "think>" not in thought + answer
    assert is_open or (set(thought.strip()) == {"a", "b"} and "yes".startswith(answer))
    counted = whole.usage.completion_tokens_details.reasoning_tokens
    assert 0 < counted <= whole.usage.completion_tokens
    found = {"reasoning_content": "", "content": ""}
    for chunk in ask(server, is_open, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            for key in found:
                found[key] += getattr(choice.delta, key, None) or ""
        usage = chunk.usage
    assert found == {"reasoning_content": thought, "content": answer}
    assert usage.completion_tokens_details.reasoning_tokens == counted


def test_a_response_has_an_item_of_its_own_for_it(thinking):
    server, is_open = thinking
    thought = ask(server, is_open).choices[0].message.reasoning_content
    rule = {} if is_open else {"guided_regex": r"<think>\n(ab)+ </think>\n\nyes"}
    options = {"max_output_tokens": 40, "extra_body": {"seed": 1, **rule}}
    whole = server.openai.responses.create(model=MODEL, input="well?", **options)
    assert whole.output[0].type == "reasoning"
    assert whole.output[0].content[0].text == thought
    events = list(server.openai.responses.create(model=MODEL, input="well?", stream=True, **options))
    told = "".join(event.delta for event in events if event.type == "response.reasoning_text.delta")
    assert told == thought
    assert [item.type for item in events[-1].response.output] == [item.type for item in whole.output]
    again = [{"role": "user", "content": "well?"}, *whole.output, {"role": "user", "content": "so?"}]
    assert server.openai.responses.create(model=MODEL, input=again, max_output_tokens=2).output
