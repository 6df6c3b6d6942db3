"""Tiny models that were trained to call tools, by what their templates say; they talk nonsense like all tiny ones."""

from pathlib import Path

from tests.text.vocabularies import byte_level
from tests.tiny import tiny_spec, write_tiny_gguf

# Templates name the marks, as those of real models do; the server tells the format from that.
_SHOWN = "{% if tools %}{{ tools | tojson }}\n{% endif %}"
_SAID = "{{ message.content or '' }}{% if message.tool_call_id %} of {{ message.tool_call_id }}{% endif %}"
_TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n" + _SAID + "CALLS<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CALLS = (
    "{% for call in message.tool_calls or [] %}OPENING"
    '{"name": "{{ call.function.name }}", "KEY": {{ call.function.arguments | tojson }}}CLOSING{% endfor %}'
)


def _template_of(opening: str, key: str, closing: str) -> str:
    calls = _CALLS.replace("OPENING", opening).replace("KEY", key).replace("CLOSING", closing)
    return _SHOWN + _TURNS.replace("CALLS", calls)


TEMPLATES = {
    "hermes": _template_of("<tool_call>\n", "arguments", "\n</tool_call>"),
    "mistral": _template_of("[TOOL_CALLS][", "arguments", "]"),
    "llama": _template_of("", "parameters", ""),
}


def write_calling_model(folder: Path, format: str) -> Path:
    """A model of a context of 2048 tokens that calls tools in one of the TEMPLATES' formats."""
    _, vocabulary = byte_level("smollm")
    path = folder / f"{format}.gguf"
    spec = tiny_spec(vocab=len(vocabulary["tokenizer.ggml.tokens"]), max_context=2048)
    write_tiny_gguf(path, spec, metadata={**vocabulary, "tokenizer.chat_template": TEMPLATES[format]})
    return path
