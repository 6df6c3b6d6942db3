"""Larger grammars out of smaller ones, in llguidance's dialect of lark."""

import json
from collections.abc import Mapping
from typing import Any

from forerun.grammar.matchers import WHITESPACE
from forerun.grammar.source import Grammar


def literal(text: str) -> str:
    """Exactly this text."""
    return json.dumps(text)


def json_rule(schema: Mapping[str, Any] | bool) -> str:
    """JSON that is valid under a schema."""
    given = {} if schema is True else {"enum": []} if schema is False else dict(schema)
    own = given.get("x-guidance")
    guidance = {"whitespace_pattern": WHITESPACE, **(own if isinstance(own, dict) else {})}
    return "%json " + json.dumps(given | {"x-guidance": guidance}, allow_nan=False)


def rule_of(grammar: Grammar) -> str:
    """The text of a grammar as the right side of a rule. Raises RequestError for one that has rules of its own."""
    if grammar.kind == "json_schema":
        return json_rule(json.loads(grammar.text))
    if grammar.kind == "regex":
        return f"/{_between_slashes(grammar.text)}/"
    raise grammar.error("it cannot be joined with tools or with reasoning: use a schema or a regular expression")


def without(mark: str) -> str:
    """Any text, of which `mark` is no part; to stand in a terminal."""
    return f"(/(?s:.*)/ & ~/(?s:.*{_escaped(mark)}.*)/)"


def lark_of(rules: Mapping[str, str], *, end_of_thought: str | None = None) -> str:
    """A grammar of these rules, which begins with the rule `answer`.

    end_of_thought  behind any text that ends with this mark and blank lines
    """
    lines = [f"{name}: {rule}" for name, rule in rules.items()]
    if end_of_thought is None:
        return "\n".join(["start: answer", *lines]) + "\n"
    thought = f"THOUGHT: {without(end_of_thought)} {literal(end_of_thought)} /\\s*/"
    return "\n".join(["start: THOUGHT answer", thought, *lines]) + "\n"


def behind_thought(grammar: Grammar, mark: str) -> Grammar:
    """The grammar, for a model that is thinking until it writes `mark`. Raises RequestError."""
    return Grammar.lark(lark_of({"answer": rule_of(grammar)}, end_of_thought=mark), grammar.param)


def _between_slashes(pattern: str) -> str:
    """A regular expression that stands between slashes: those in it are escaped, line ends spelled."""
    made, is_escaped = [], False
    for character in pattern:
        made.append({"/": "/" if is_escaped else "\\/", "\n": "n" if is_escaped else "\\n"}.get(character, character))
        is_escaped = character == "\\" and not is_escaped
    return "".join(made)


def _escaped(text: str) -> str:
    """A text as a regular expression between slashes."""
    return "".join(f"\\x{{{ord(c):x}}}" if not c.isalnum() and c.isascii() else c for c in text)
