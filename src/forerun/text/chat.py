"""ChatTemplate: messages to the prompt text that a model was trained on; fit_messages: what to drop when it is long.

A template is a program that comes with a model file. It runs in jinja2's sandbox, sees nothing but the messages, and is
bounded in time and in what it writes: every pass of a loop and every call is a step of a limited number, a
multiplication yields nothing huge. (Memory is not bounded by more than that: a template can still double a string.)
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from forerun.errors import RequestError, UsageError
from forerun.text.tokenizer import Tokenizer

MAX_CHARACTERS = 8 << 20  # of a rendered prompt, and of a string or list that a template multiplies
MAX_STEPS = 500_000  # loop passes and calls of one rendering; a second or two
_MAX_NUMBER = 10**15  # operand of a multiplication
_MAX_EXPONENT = 1000

_STEPS = "forerun_steps"  # the context variable and the filter that count them

_GIVEN = ("messages", "tools", "add_generation_prompt")  # what every rendering is given


class ChatTemplate:
    """A model's chat template, compiled.

    variables  what it asks for beside the conversation, such as enable_thinking
    """

    def __init__(self, source: str | None, tokenizer: Tokenizer) -> None:
        """Compile `source`, the text of a jinja2 template.

        Raises UsageError when there is none or when it is no valid template.
        """
        if not source:
            raise UsageError(
                "this model has no chat template; use `forerun generate`, or name one with --chat-template"
            )
        bos = tokenizer.bos_id
        self._tokens = {
            "bos_token": tokenizer.token_text(bos) if bos is not None else "",
            "eos_token": tokenizer.token_text(tokenizer.eos_ids[0]) if tokenizer.eos_ids else "",
        }
        try:
            environment = _Environment()
            self._template = environment.compile_counted(source)
            asked = meta.find_undeclared_variables(environment.parse(source))
        except Exception as e:  # syntax errors, and a nesting that exhausts the compiler
            raise _template_error(e) from e
        self.variables = frozenset(asked.difference(environment.globals, self._tokens, _GIVEN))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extra: Any,
    ) -> str:
        """The prompt for `messages`, each {"role": str, "content": str, ...}; encode it with special=True.

        add_generation_prompt opens the assistant's turn. `extra` becomes variables of the template.
        Raises RequestError for a malformed message, UsageError when the template fails or writes too much.
        """
        check_messages(messages)
        variables = {
            **extra,
            **self._tokens,
            "messages": [dict(message) for message in messages],
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            _STEPS: _Steps(),
        }
        pieces: list[str] = []
        room = MAX_CHARACTERS
        try:
            for piece in self._template.generate(variables):
                room -= len(piece)
                if room < 0:
                    raise _TooMuch(f"it writes more than {MAX_CHARACTERS} characters")
                pieces.append(piece)
        except Exception as e:  # a template is foreign code and may raise anything
            raise _template_error(e) from e
        return "".join(pieces)


def check_messages(messages: Any) -> None:
    """Raise RequestError unless `messages` is a non-empty list of {"role": str, "content": str, ...}.

    A message that calls tools needs no content.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestError("messages must be a list of at least one message", param="messages")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{i}] must be an object with role and content", param="messages")
        for key in ("role", "content"):
            if key == "content" and message.get("tool_calls") and message.get(key) is None:
                continue
            if not isinstance(message.get(key), str):
                raise RequestError(f"messages[{i}].{key} must be a string", param="messages")


def fit_messages(messages: list[Any], max_tokens: int, count: Callable[[list[Any]], int]) -> tuple[list[Any], int]:
    """Drop the oldest turns until count(messages) <= max_tokens; give what is kept and how many messages were dropped.

    A turn is a user message with the replies up to the next one, so roles stay alternating. A leading system message
    and everything from the last user message on are kept; when even these are too long they are returned all the same,
    and the engine refuses the prompt with the numbers. `messages` is not changed.
    """
    head = 1 if messages and messages[0]["role"] == "system" else 0
    starts = [i for i, message in enumerate(messages) if i > head and message["role"] == "user"]
    kept, dropped = messages, 0
    for start in starts:
        if count(kept) <= max_tokens:
            break
        kept, dropped = messages[:head] + messages[start:], start - head
    return list(kept), dropped


class _TooMuch(Exception):
    """A template crossed one of the bounds above."""


class _Steps:
    """Steps left to one rendering."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise _TooMuch(f"it takes more than {MAX_STEPS} steps")


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox with Hugging Face's additions and the bounds above."""

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.filters["tojson"] = _to_json
        self.filters[_STEPS] = _counted
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_counted(self, source: str) -> jinja2.Template:
        """Compile a template in which every pass of a loop is a step."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, _STEPS, [], [], None, None, lineno=loop.lineno)
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, method or macro; each is a step, so that macros cannot recurse without end."""
        __context[_STEPS].take()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [abs(x) if isinstance(x, (int, float)) else len(x) for x in (left, right)]
        numbers = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if operator == "**":
            small = max(sizes) <= _MAX_EXPONENT
        elif numbers:
            small = max(sizes) <= _MAX_NUMBER
        else:
            small = sizes[0] * sizes[1] <= MAX_CHARACTERS
        if not small:
            raise _TooMuch(f"it computes something huge with {operator}")
        return super().call_binop(context, operator, left, right)


@pass_context
def _counted(context: Context, items: Iterable[Any]) -> list[Any]:
    steps: _Steps = context[_STEPS]
    taken = []
    for item in items:
        steps.take()
        taken.append(item)
    return taken


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as models saw it in training: not escaped for HTML, unlike jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _template_error(error: Exception) -> UsageError:
    fact = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
    return UsageError(f"the chat template failed: {fact}; change the messages or name another with --chat-template")
