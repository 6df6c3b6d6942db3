"""What llguidance tells of a matcher that has given up, with the version that is installed.

An upgrade that fails here tells more, or tells it in other words: GrammarMask and matchers.py can then use it.
"""

import json
from collections.abc import Iterable

import llguidance
import pytest

from forerun.errors import GrammarError, is_line_of, one_line
from forerun.grammar.compiler import GrammarCompiler
from forerun.grammar.mask import GrammarMask
from forerun.grammar.matchers import translate
from forerun.grammar.source import Grammar
from forerun.grammar.tokens import make_tokens
from forerun.sequence import TokenMask
from forerun.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_level

TOKENIZER = Tokenizer.from_gguf(byte_level("smollm")[1])
WIDE = json.dumps({"type": "object", "properties": {f"k{number}": {} for number in range(1000)}})  # see width


def failure(mask: TokenMask, tokens: Iterable[int]) -> GrammarError:
    """What stops a walk."""
    with pytest.raises(GrammarError, match="the grammar cannot go on here") as caught:
        advance_along(mask, tokens)
    return caught.value


def advance_along(mask: TokenMask, tokens: Iterable[int]) -> None:
    """Take tokens, with the mask before each."""
    for token in tokens:
        mask.allowed()
        mask.advance(token)


@pytest.mark.parametrize(
    ("grammar", "text", "sentence"),
    [
        (Grammar.regex("(((a{1,99}){1,99}){1,99}b|c){99}"), "a" * 400, "lexer error: too many expressions"),
        (Grammar("json_schema", WIDE), '{"k1"', "Parser Error: Current row has"),
        (Grammar.regex("ab"), "x", "doesn't satisfy the grammar"),
    ],
    ids=["lexer", "parser", "not allowed"],
)
def test_why_it_gave_up_is_told_by_a_sentence_alone(grammar: Grammar, text: str, sentence: str):
    mask = GrammarCompiler(TOKENIZER).compile(grammar)()
    assert isinstance(mask, GrammarMask)
    error = failure(mask, [token for letter in text for token in TOKENIZER.encode(letter)])
    matcher = mask._matcher
    assert sentence in str(error)
    assert sentence in matcher.get_error()
    assert matcher.is_error()
    assert matcher.is_stopped()
    assert matcher.stop_reason() == "InternalError", "there is a better signal now than the sentence"
    assert is_line_of(one_line(error), GrammarError)


def test_an_empty_language_is_told_by_a_word():
    matcher = llguidance.LLMatcher(make_tokens(TOKENIZER), translate("regex", r"[^\s\S]"), log_level=0)
    assert not matcher.is_error()
    matcher.compute_bitmask()
    assert matcher.is_error()
    assert matcher.get_error().startswith("NoExtension")
    assert matcher.stop_reason() == "InternalError", "there is a better signal now than the word"


def test_an_error_of_another_kind_is_not_taken_for_one_of_a_grammar():
    for error in (ValueError("GrammarError: x"), RuntimeError("the grammar cannot go on here: x")):
        assert not is_line_of(one_line(error), GrammarError)
