"""ToolFormat: how a family of models writes its calls, told from the chat template that it was trained with."""

from dataclasses import dataclass

from forerun.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ToolFormat:
    """One way to write calls. Each call is a JSON object with the function's name and its arguments.

    opening    the mark before calls; "" where a call begins with the object itself
    closing    the mark behind each call, "" for none
    arguments  key of the arguments
    is_list    the calls behind the mark are a JSON list
    """

    name: str
    opening: str
    closing: str
    arguments: str = "arguments"
    is_list: bool = False

    def shown(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Control tokens that mark calls, so that the text must show them."""
        ids = (tokenizer.added_id(mark) for mark in (self.opening, self.closing, PYTHON_TAG, ARGS_TAG) if mark)
        return frozenset(token for token in ids if token is not None and tokenizer.is_special(token))


PYTHON_TAG = "<|python_tag|>"  # may stand before a call of Llama 3
ARGS_TAG = "[ARGS]"  # between name and arguments in newer Mistral models

HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>")  # Qwen 2.5, Hermes, and many others after them
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", "", is_list=True)
LLAMA = ToolFormat("llama", "", "", arguments="parameters")


def find_tool_format(tokenizer: Tokenizer) -> ToolFormat | None:
    """The format of a model, None for one whose template knows no tools, or writes calls in a way of its own."""
    template = tokenizer.chat_template or ""
    if "tools" not in template:
        return None
    if HERMES.opening in template:
        return HERMES
    if MISTRAL.opening in template:
        return MISTRAL
    if PYTHON_TAG in template or '"parameters"' in template:
        return LLAMA
    return None
