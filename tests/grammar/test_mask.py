"""Masks of grammars over tokens: only texts of the grammar come out, of every kind of vocabulary and of padded ones."""

import random

import numpy as np
import pytest

from forerun.errors import GrammarError, RequestError, UsageError
from forerun.grammar.compiler import GrammarCompiler
from forerun.grammar.compose import behind_thought, lark_of, literal, without
from forerun.grammar.source import MAX_SOURCE_BYTES, Grammar
from forerun.sampling.grammar import allows, unpack
from forerun.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_level, sentencepiece

TOKENIZERS = {
    "byte-level": Tokenizer.from_gguf(byte_level("smollm")[1]),
    "qwen": Tokenizer.from_gguf(byte_level("qwen2")[1]),
    "sentencepiece": Tokenizer.from_gguf(sentencepiece()[1]),
}
SMOL = TOKENIZERS["byte-level"]


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def mask_of(grammar: Grammar, tokenizer: Tokenizer = SMOL):
    return GrammarCompiler(tokenizer).compile(grammar)()


def spells(tokenizer: Tokenizer, text: str) -> list[int]:
    """Tokens of a text in the middle of an output."""
    ids = tokenizer.encode("\x02" + text, special=False)
    read = b""
    for at, token in enumerate(ids):
        read += tokenizer.token_bytes(token)
        if read.endswith(b"\x02"):
            return ids[at + 1 :]
    raise AssertionError(text)


def takes(grammar: Grammar, text: str, tokenizer: Tokenizer = SMOL) -> str:
    """ "whole" when the text is one of the grammar, "begun" when one begins so, else "no"."""
    mask = mask_of(grammar, tokenizer)
    for token in spells(tokenizer, text):
        if not allows(mask.allowed(), token):
            return "no"
        mask.advance(token)
    return "whole" if allows(mask.allowed(), tokenizer.eos_ids[0]) else "begun"


@pytest.mark.parametrize(
    ("grammar", "whole", "begun", "no"),
    [
        (Grammar.regex(r"[a-c]+\d"), ["a1", "abc7"], ["a"], ["d", "a1a"]),
        (Grammar.choice(["red", "green\n", "é<>%#-&~/\\\"' x"]), ["red", "green\n", "é<>%#-&~/\\\"' x"], ["g"], ["b"]),
        (Grammar.json_object(), ['{"a": [1, {}]}', "{}"], ["{"], ["[1]", "1"]),
        (Grammar.json_schema({"type": "integer", "minimum": 7}), ["7", "12"], [], ["3 ", "x"]),
        (Grammar.json_schema('{"enum": ["x", 1]}'), ['"x"', "1"], ['"'], ["2"]),
        (Grammar.json_schema(True), ["null", "[1]"], ["["], ["x"]),
        (Grammar.lark('start: "a" b\nb: "b" | "(" b ")"'), ["ab", "a((b))"], ["a(("], ["a)"]),
    ],
)
def test_texts_of_the_grammar_and_no_others(tokenizer: Tokenizer, grammar, whole, begun, no):
    assert {text: takes(grammar, text, tokenizer) for text in whole} == dict.fromkeys(whole, "whole")
    assert {text: takes(grammar, text, tokenizer) for text in begun} == dict.fromkeys(begun, "begun")
    assert {text: takes(grammar, text, tokenizer) for text in no} == dict.fromkeys(no, "no")


def test_any_walk_stays_within_the_grammar(tokenizer: Tokenizer):
    grammar = Grammar.json_schema(
        {"type": "object", "properties": {"a": {"enum": ["x", "yy"]}, "b": {"type": "boolean"}}, "required": ["a"]}
        | {"additionalProperties": False}
    )
    rng = random.Random(5)
    for _ in range(20):
        mask, tokens = mask_of(grammar, tokenizer), []
        while len(tokens) < 300:
            allowed = np.flatnonzero(unpack(mask.allowed(), tokenizer.vocab_size))
            token = int(rng.choice(allowed))
            if token in tokenizer.eos_ids:
                break
            tokens.append(token)
            mask.advance(token)
        raw = b"".join(tokenizer.token_bytes(token) for token in tokens)
        assert takes(grammar, raw.decode(), tokenizer) == "whole"


def test_no_id_behind_the_vocabulary_and_no_control_token_is_allowed(tokenizer: Tokenizer):
    words = mask_of(Grammar.regex(r"(?s:.*)"), tokenizer).allowed()
    assert len(words) == -(-tokenizer.vocab_size // 32)
    allowed = unpack(words, 32 * len(words))
    assert not allowed[tokenizer.vocab_size :].any()
    control = {i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i)} - set(tokenizer.eos_ids)
    assert control
    assert not any(allowed[i] for i in control)
    assert all(allowed[i] for i in tokenizer.eos_ids)


def test_a_fork_is_independent():
    mask = mask_of(Grammar.regex("ab|cd"))
    fork = mask.fork()
    (c,) = SMOL.encode("c")
    fork.advance(c)
    assert allows(mask.allowed(), SMOL.encode("a")[0])
    assert not allows(fork.allowed(), SMOL.encode("a")[0])


def test_a_token_that_is_not_allowed_is_an_error():
    mask = mask_of(Grammar.regex("ab"))
    with pytest.raises(GrammarError, match="the grammar cannot go on"):
        mask.advance(SMOL.encode("x")[0])


def test_forced_text_is_spelled_by_the_tokenizer_up_to_the_end(tokenizer: Tokenizer):
    mask = mask_of(Grammar.regex("(yes|no), some name of it"), tokenizer)
    assert mask.forced() == []
    for token in spells(tokenizer, "yes"):
        mask.advance(token)
    forced = mask.forced()
    assert forced == [*spells(tokenizer, ", some name of it"), tokenizer.eos_ids[0]]
    assert not mask.may_end
    for token in forced[:-1]:
        mask.advance(token)
    assert mask.forced() == [tokenizer.eos_ids[0]]
    assert mask.may_end


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Grammar.json_schema({"type": "strng"}, "response_format"), "response_format: .*Invalid type: strng"),
        (lambda: Grammar.json_schema({"not": {}}), "not"),
        (lambda: Grammar.json_schema({"enum": []}), "Unsatisfiable"),
        (lambda: Grammar.json_schema(False), "Unsatisfiable"),
        (lambda: Grammar.json_schema({"$ref": "#"}), "no text can match"),
        (lambda: Grammar.json_schema("{"), "is no JSON"),
        (lambda: Grammar.json_schema(3), "an object"),
        (lambda: Grammar.regex("(a"), "unclosed group"),
        (lambda: Grammar.regex("(?=a)b"), "look-around"),
        (lambda: Grammar.regex(r"[^\s\S]"), "no text can match"),
        (lambda: Grammar.lark("start: foo"), 'unknown name: "foo"'),
        (lambda: Grammar.choice([]), "at least one text"),
        (lambda: Grammar.choice(["a", ""]), "none of them empty"),
        (lambda: Grammar.regex("a" * (MAX_SOURCE_BYTES + 1)), "longer than 256 KiB"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_option_and_the_reason(make, words):
    with pytest.raises(RequestError, match=words) as caught:
        mask_of(make())
    assert "\n" not in str(caught.value)
    assert caught.value.param in ("grammar", "response_format")


def test_the_cache_is_bounded_and_forgets_what_was_used_least():
    compiler = GrammarCompiler(SMOL, max_cached=2)
    first, second, third = (Grammar.regex(letter) for letter in "abc")
    compiler.compile(first)
    compiler.compile(second)
    compiler.compile(first)
    compiler.compile(third)
    assert [compiler.knows(grammar) for grammar in (first, second, third)] == [True, False, True]


def test_a_grammar_behind_thoughts():
    grammar = behind_thought(Grammar.json_object(), "</think>")
    assert takes(grammar, 'so {"a"} it is </think>\n\n{"a": 1}') == "whole"
    assert takes(grammar, "so it") == "begun"
    assert takes(grammar, "</think>x") == "no"
    assert takes(behind_thought(Grammar.regex("a/\n\\/b"), "</think>"), "</think>a/\n/b") == "whole"
    with pytest.raises(RequestError, match="cannot be joined"):
        behind_thought(Grammar.lark('start: "a"'), "</think>")


def test_text_without_a_mark():
    grammar = Grammar.lark(
        lark_of(
            {
                "answer": "FREE | TO tail",
                "FREE": without("<x>"),
                "TO": without("<x>") + literal("<x>"),
                "tail": literal("!"),
            }
        )
    )
    assert takes(grammar, "") == "whole"
    assert takes(grammar, "a < b <x") == "whole"
    assert takes(grammar, "a <x>") == "begun"
    assert takes(grammar, "a <x>!") == "whole"
    assert takes(grammar, "a <x>?") == "no"


def test_a_model_without_an_end_has_no_grammars():
    metadata = {**byte_level("smollm")[1]}
    del metadata["tokenizer.ggml.eos_token_id"]
    metadata["tokenizer.ggml.tokens"] = [
        text.replace("<|im_end|>", "<|x|>").replace("<|endoftext|>", "<|y|>")
        for text in metadata["tokenizer.ggml.tokens"]
    ]
    with pytest.raises(UsageError, match="end token"):
        GrammarCompiler(Tokenizer.from_gguf(metadata)).compile(Grammar.regex("a"))
