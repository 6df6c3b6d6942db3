"""Chat templates: what the models' templates render, what the sandbox refuses, what conversations drop."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import RequestError, UsageError
from forerun.text.chat import MAX_CHARACTERS, ChatTemplate, fit_messages
from forerun.text.tokenizer import Tokenizer
from tests.text.test_tokenizer import real_metadata
from tests.text.vocabularies import byte_level, sentencepiece

BYTES = Tokenizer.from_gguf(byte_level("smollm")[1])
PIECES = Tokenizer.from_gguf(sentencepiece()[1])

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = """{{- bos_token }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
MISTRAL = """{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}
        {{- message['content'] + eos_token }}
    {%- endif %}
{%- endfor %}
"""

HELLO = [{"role": "user", "content": "Hello <b> & 'you'"}]
TURNS = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "2"}, {"role": "user", "content": "3"}]


def render(source: str, messages: Any = HELLO, tokenizer: Tokenizer = BYTES, **options: Any) -> str:
    return ChatTemplate(source, tokenizer).render(messages, **options)


def test_chatml() -> None:
    want = "<|im_start|>user\nHello <b> & 'you'<|im_end|>\n"
    assert render(CHATML) == want + "<|im_start|>assistant\n"
    assert render(CHATML, add_generation_prompt=False) == want
    ids = BYTES.encode(render(CHATML))
    assert [BYTES.token_text(i) for i in ids if BYTES.is_special(i)] == ["<|im_start|>", "<|im_end|>", "<|im_start|>"]


def test_llama_3_style() -> None:
    assert render(LLAMA3, TURNS[:2]) == (
        "<|endoftext|><|start_header_id|>user<|end_header_id|>\n\n1<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n2<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_mistral_style() -> None:
    assert render(MISTRAL, TURNS, PIECES) == "<s>[INST] 1 [/INST]2</s>[INST] 3 [/INST]"
    prompt = PIECES.encode_prompt(render(MISTRAL, TURNS, PIECES))
    assert prompt.count(1) == 1  # the template writes BOS, so the tokenizer does not
    with pytest.raises(UsageError, match="roles must alternate"):
        render(MISTRAL, TURNS[1:], PIECES)


def test_blocks_take_no_line_and_loops_can_break() -> None:
    source = (
        "{% for m in messages %}\n  {% if loop.last %}\n  {% break %}\n  {% endif %}\n{{ m.content }}\n{% endfor %}\n"
    )
    assert render(source, TURNS) == "1\n2\n"


def test_tojson_is_not_escaped_for_html() -> None:
    tools = [{"name": "find", "description": "<é> & 'it'"}]
    assert render("{{ tools[0] | tojson }}", tools=tools) == json.dumps(tools[0], ensure_ascii=False)
    assert render("{{ tools | tojson(indent=2) }}", tools=tools) == json.dumps(tools, ensure_ascii=False, indent=2)


def test_extra_variables_and_the_date() -> None:
    assert render("{{ style }}", style="short") == "short"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hello",
        {"role": "user", "content": "a"},
        ["hello"],
        [{"role": "user"}],
        [{"content": "a"}],
        [{"role": "user", "content": None}],
        [{"role": 1, "content": "a"}],
    ],
)
def test_malformed_messages_are_refused(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages") as caught:
        render(CHATML, messages)
    assert caught.value.param == "messages"


def test_rendering_leaves_the_messages_alone() -> None:
    messages = [{"role": "user", "content": "a", "tags": ["x"]}]
    with pytest.raises(UsageError):
        render("{{ messages[0].tags.append('y') }}", messages)
    with pytest.raises(UsageError):
        render("{{ messages[0].update(role='system') }}", messages)
    assert messages == [{"role": "user", "content": "a", "tags": ["x"]}]


@pytest.mark.parametrize("source", [None, ""])
def test_a_model_without_template(source: str | None) -> None:
    with pytest.raises(UsageError, match=r"forerun generate.*--chat-template"):
        ChatTemplate(source, BYTES)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ strftime_now.__code__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ ''|attr('__class__')|attr('__mro__') }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ self.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_holds(source: str) -> None:
    try:
        written = render(source)
    except UsageError as e:
        assert "\n" not in str(e)  # noqa: PT017
    else:
        assert "class" not in written
        assert not written.strip()


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{% for m in messages %}", "endfor"),
        ("{{ 1 +", "unexpected"),
        ("{{ nothing.at_all }}", "undefined"),
        ("{{ 1 // 0 }}", "division"),
        ("{{ 'a' + 1 }}", "str"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ ['x' * 1000000] * 9 }}" * 2, "more than"),
        ("{{ 'x' * 999999999 }}", "huge"),
        ("{{ [0] * 999999999 }}", "huge"),
        ("{{ 9 ** 9 ** 9 }}", "huge"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
        ("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}", "steps"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}", "steps"),
        ("{% for i in [[1] * 9] recursive %}{{ loop([[1] * 9]) }}{% endfor %}", "recursion"),
    ],
)
def test_errors_and_excesses_are_one_line_usage_errors(source: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forerun.text.chat.MAX_STEPS", 20_000)
    with pytest.raises(UsageError, match=says) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert "--chat-template" in str(caught.value)


def test_the_prompt_is_bounded() -> None:
    content = "x" * (MAX_CHARACTERS // 3)
    one_too_many = [{"role": "user", "content": content}] * 4
    assert len(render("{% for m in messages %}{{ m.content }}{% endfor %}", one_too_many[:3])) == len(content) * 3
    with pytest.raises(UsageError, match="more than 8388608 characters"):
        render("{% for m in messages %}{{ m.content }}{% endfor %}", one_too_many)


# ---------------------------------------------------------------- conversations that outgrow the context


def conversation(roles: str) -> list[dict[str, str]]:
    names = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": names[role], "content": f"{role}{i}"} for i, role in enumerate(roles)]


def contents(messages: list[dict[str, str]]) -> str:
    return " ".join(message["content"] for message in messages)


@pytest.mark.parametrize(
    ("roles", "max_messages", "kept", "dropped"),
    [
        ("u", 1, "u0", 0),
        ("suauau", 6, "s0 u1 a2 u3 a4 u5", 0),
        ("suauau", 5, "s0 u3 a4 u5", 2),
        ("suauau", 3, "s0 u5", 4),
        ("suauau", 1, "s0 u5", 4),  # nothing more may go: the engine refuses it with the numbers
        ("uauau", 3, "u2 a3 u4", 2),
        ("uauau", 2, "u4", 4),
        ("uauaua", 2, "u4 a5", 4),
        ("au", 1, "u1", 1),
        ("uaau", 2, "u3", 3),
        ("sa", 1, "s0 a1", 0),
    ],
)
def test_the_oldest_turns_go(roles: str, max_messages: int, kept: str, dropped: int) -> None:
    messages = conversation(roles)
    result = fit_messages(messages, max_messages, len)
    assert (contents(result[0]), result[1]) == (kept, dropped)
    assert messages == conversation(roles)


@given(turns=st.integers(0, 6), system=st.booleans(), room=st.integers(0, 20))
def test_what_is_kept_fits_if_anything_does_and_still_alternates(turns: int, system: bool, room: int) -> None:
    messages = conversation("s" * system + "ua" * turns + "u")
    kept, dropped = fit_messages(messages, room, len)
    assert len(kept) + dropped == len(messages)
    assert len(kept) <= max(room, 1 + system)
    assert kept[-1] == messages[-1]
    assert "".join(m["role"][0] for m in kept) == "s" * system + "ua" * ((len(kept) - 1) // 2) + "u"
    if dropped:
        assert len(kept) + 2 > room  # no more was dropped than needed


# ---------------------------------------------------------------- real models


@pytest.mark.slow
def test_templates_of_real_models() -> None:
    smollm = Tokenizer.from_gguf(real_metadata("smollm2-135m.gguf"))
    assert ChatTemplate(smollm.chat_template, smollm).render(TURNS) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\n1<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\n3<|im_end|>\n<|im_start|>assistant\n"
    )
    qwen = Tokenizer.from_gguf(real_metadata("qwen2.5-coder-0.5b.gguf"))
    system = [{"role": "system", "content": "S"}]
    assert ChatTemplate(qwen.chat_template, qwen).render(system + HELLO) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHello <b> & 'you'<|im_end|>\n<|im_start|>assistant\n"
    )
    tools = [{"type": "function", "function": {"name": "find", "description": "<x>", "parameters": {}}}]
    rendered = ChatTemplate(qwen.chat_template, qwen).render(system + HELLO, tools=tools)
    assert f"<tools>\n{json.dumps(tools[0])}\n</tools>" in rendered
