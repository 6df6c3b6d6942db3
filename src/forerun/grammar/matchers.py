"""The few calls of llguidance that compile a grammar; the same in the process that serves and in the one that tries."""

import json
from collections.abc import Callable
from typing import Any

import llguidance

from forerun.grammar.source import Grammar

# What one grammar may take. Fuel and items bound the time of a step (some 20 ms, unless a grammar is ambiguous: that is
# for a Meter), states the memory (1 to 2 kB each).
_LIMITS = {
    "max_grammar_size": 100_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,
    "verbose_errors": False,
}

# Between the tokens of JSON. Without an end to it, a model that has lost its way writes line ends for ever.
WHITESPACE = r"[\x20\x0A\x0D\x09]{1,40}"


def translate(kind: str, text: str) -> str:
    """A grammar as llguidance reads it. Raises ValueError."""
    matcher = llguidance.LLMatcher
    if kind == "json_schema":
        schema = json.loads(text)
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        return matcher.grammar_from_json_schema(schema, defaults={"whitespace_pattern": WHITESPACE})
    return matcher.grammar_from_regex(text) if kind == "regex" else matcher.grammar_from_lark(text)


def new_matcher(tokens: llguidance.LLTokenizer, kind: str, text: str) -> tuple[llguidance.LLMatcher, str]:
    """(matcher before the first token, what is wrong with the grammar or ""). Compiling may take long: see guard."""
    limits = llguidance.LLParserLimits(**_LIMITS)  # type: ignore[arg-type]
    try:
        matcher = llguidance.LLMatcher(tokens, translate(kind, text), log_level=0, limits=limits)
    except ValueError as error:
        return llguidance.LLMatcher(tokens, "", log_level=0), _first_line(str(error))
    if not matcher.is_error():
        matcher.compute_bitmask()  # an empty language is found here
    if matcher.is_error():
        return matcher, _first_line(matcher.get_error())
    return matcher, ""


def check(grammar: Grammar, compile: Callable[[str, str], tuple[Any, str]]) -> Any:
    """What `compile` makes of a grammar. Raises RequestError with the library's first line when it is none."""
    made, wrong = compile(grammar.kind, grammar.text)
    if wrong:
        raise grammar.error(wrong)
    return made


def _first_line(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    line = lines[0] if lines else "the library gives no reason"
    details = [other for other in lines[1:] if other.startswith("error:")]
    line = f"{line[:200]}: {details[0].removeprefix('error:').strip()}" if details else line[:300]
    # An empty language is told by this word in the text alone: stop_reason is "InternalError" then, as for any error.
    return "no text can match it" if line.startswith("NoExtension") else line
