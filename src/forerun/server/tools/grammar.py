"""The grammar of an answer that may or must call tools.

A call that must come is written as the model was trained to, its arguments under the function's JSON schema. Where the
model may choose, a grammar is needed only if a tool is strict, if calls must not be several, or if the text beside the
calls has a form of its own; free text is then any that holds no mark of a call.
"""

from forerun.errors import RequestError
from forerun.grammar.compose import json_rule, lark_of, literal, rule_of, without
from forerun.grammar.source import Grammar, refuse_wide
from forerun.server.schema.chat import ChatRequest
from forerun.server.schema.tools import Tool
from forerun.server.tools.formats import ToolFormat
from forerun.text.tokenizer import Tokenizer

_NO_ARGUMENTS = {"type": "object", "additionalProperties": False, "x-guidance": {"whitespace_pattern": ""}}


def tool_grammar(
    body: ChatRequest, format: ToolFormat, answer: Grammar | None, tokenizer: Tokenizer, end_of_thought: str | None
) -> Grammar | None:
    """What the text of a request with tools must be, None for any text.

    answer          what it must be where no tool is called
    end_of_thought  the mark that ends what a model thinks first, None for one that does not

    Raises RequestError.
    """
    forced, may_repeat = body.must_call, body.parallel_tool_calls is not False
    is_strict = any(tool.function.strict for tool in body.offered)
    if not forced and not is_strict and may_repeat and answer is None:
        return None
    rules = _calls(forced or body.offered, format, tokenizer, may_repeat)
    rules["answer"] = "calls" if forced else _choice(rules, format, answer, tokenizer)
    if answer is not None and not forced:
        rules["text"] = rule_of(answer)
    return Grammar.lark(lark_of(rules, end_of_thought=end_of_thought), "tools")


def _calls(tools: list[Tool], format: ToolFormat, tokenizer: Tokenizer, may_repeat: bool) -> dict[str, str]:
    rules: dict[str, str] = {}
    for number, tool in enumerate(tools):
        function = tool.function
        schema = function.parameters if function.parameters is not None else _NO_ARGUMENTS
        if schema.get("type", "object") != "object":
            raise RequestError(f"the parameters of {function.name!r} must be an object's schema", param="tools")
        refuse_wide(schema, "tools", f"the schema of {function.name!r}")
        head = f'{{"name": "{function.name}", "{format.arguments}": '
        rules[f"call_{number}"] = f"{literal(head)} arguments_{number} {literal('}')}"
        rules[f"arguments_{number}"] = json_rule({"type": "object", **schema})
    rules["one"] = " | ".join(f"call_{number}" for number in range(len(tools)))
    opening = _mark(format.opening, tokenizer) if format.opening else ""
    if format.closing:
        line = literal("\n")
        rules["call"] = f"{line} one {line} {_mark(format.closing, tokenizer)}"
        rules["body"] = f"call ({line} {opening} call)*" if may_repeat else "call"
    elif format.is_list:
        comma = f"({literal(', ')} one)*" if may_repeat else ""
        rules["body"] = f"{literal('[')} one {comma} {literal(']')}"
    else:
        rules["body"] = f"one ({literal('; ')} one)*" if may_repeat else "one"
    rules["calls"] = f"{opening} body"
    return rules


def _choice(rules: dict[str, str], format: ToolFormat, answer: Grammar | None, tokenizer: Tokenizer) -> str:
    """Text or calls, or both where the text is free; adds what it needs to the rules."""
    if answer is not None:
        return "text | calls"
    if not format.opening:
        rules["FREE"] = r"/[^{\s](?s:.*)/"
        return "FREE | calls"
    if _is_control(format.opening, tokenizer):  # no text can hold it
        rules["FREE"] = r"/(?s:.+)/"
        return "FREE | calls | FREE calls"
    rules["FREE"] = without(format.opening)
    rules["TO_CALL"] = f"{without(format.opening)} {literal(format.opening)}"
    return "FREE | TO_CALL body"


def _mark(mark: str, tokenizer: Tokenizer) -> str:
    """A mark as the model writes it: its control token, or its text."""
    return f"<[{tokenizer.added_id(mark)}]>" if _is_control(mark, tokenizer) else literal(mark)


def _is_control(mark: str, tokenizer: Tokenizer) -> bool:
    token = tokenizer.added_id(mark)
    return token is not None and tokenizer.is_special(token)
