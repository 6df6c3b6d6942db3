"""Meter: what a grammar may take of the time of all, for the text so far and for looks ahead, by itself and in all."""

import pytest

from forerun.errors import GrammarError
from forerun.grammar import meter
from forerun.grammar.compiler import GrammarCompiler
from forerun.grammar.mask import GrammarMask
from forerun.grammar.meter import Looks, Meter
from forerun.grammar.source import Grammar
from forerun.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_level

TOKENIZER = Tokenizer.from_gguf(byte_level("smollm")[1])
(A,) = TOKENIZER.encode("a")
COMPILER = GrammarCompiler(TOKENIZER)
AMBIGUOUS = Grammar.lark('start: a\na: a a | "a" | a a a | ""')  # slows down with the cube of the text


def masks_of(grammar: Grammar, count: int = 1) -> list[GrammarMask]:
    """Those of the choices of one request."""
    make = COMPILER.compile(grammar)
    return [mask for mask in (make() for _ in range(count)) if isinstance(mask, GrammarMask)]


def walk(mask: GrammarMask, steps: int = 500, masked: bool = True) -> None:
    for _ in range(steps):
        if masked:
            mask.allowed()
        mask.advance(A)


def test_a_mask_that_takes_too_long_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "CALL_LIMIT_S", 0.005)
    (slow,) = masks_of(AMBIGUOUS)
    with pytest.raises(GrammarError, match=r"the grammar cannot go on here: .* 0\.\d+ s to find"):
        walk(slow)
    with pytest.raises(GrammarError, match="to find"):  # a step that failed is tried again
        slow.allowed()


def test_a_token_that_takes_too_long_is_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "CALL_LIMIT_S", 0.0005)
    with pytest.raises(GrammarError, match="to find"):
        walk(masks_of(AMBIGUOUS)[0], masked=False)


def test_slow_calls_are_few_for_all_choices_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "SLOW_S", 0.001)
    monkeypatch.setattr(meter, "ALLOWANCE_S", 0.01)
    first, second = masks_of(AMBIGUOUS, 2)
    with pytest.raises(GrammarError, match=r"has taken 0\.\d+ s in steps of more than 1 ms, and 0\.01 s is the most"):
        walk(first)
    with pytest.raises(GrammarError, match="it has taken"):
        second.allowed()
    walk(masks_of(AMBIGUOUS)[0], 3)  # another request's is its own


def test_short_calls_never_end_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "ALLOWANCE_S", 0.0)
    walk(masks_of(Grammar.regex("a*"))[0], 300)


def test_looks_ahead_end_for_a_step_and_then_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "LOOK_LIMIT_S", 0.0)
    (mask,) = masks_of(Grammar.regex("aaa, and some text behind it"))
    fork = mask.fork()
    with pytest.raises(GrammarError, match="look ahead"):
        fork.allowed()
    with pytest.raises(GrammarError, match="look ahead"):
        fork.advance(A)
    assert mask.forced() == []
    mask.allowed()
    mask.advance(A)
    assert mask.forced() != []  # a new step
    monkeypatch.setattr(meter, "LOOK_LIMIT_S", 1e9)
    monkeypatch.setattr(meter, "SLOW_S", 0.0)
    monkeypatch.setattr(meter, "ALLOWANCE_S", 0.0)
    other, sister = masks_of(Grammar.regex("aaa, and some text behind it"), 2)
    fork = other.fork()
    monkeypatch.setattr(meter, "SLOW_S", 1e9)
    other.advance(A)
    for one in (other, sister):
        assert one.forced() == []
    with pytest.raises(GrammarError, match="look ahead"):
        fork.allowed()
    other.allowed()  # none of it ends the request


def test_what_looks_ahead_is_counted_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "SLOW_S", 0.0)
    spent = Meter()
    looks = Looks(spent)
    looks.add(3.0)
    assert not looks.may_go_on
    looks.begin_step()
    assert not looks.may_go_on  # the allowance of all steps is used up
    spent.add(0.01, 0.01)
    assert Looks(Meter()).may_go_on


def test_long_forced_text_is_found_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[GrammarMask] = []
    real = GrammarMask._find_forced

    def counted(mask: GrammarMask) -> list[int]:
        found.append(mask)
        return real(mask)

    monkeypatch.setattr(GrammarMask, "_find_forced", counted)
    (mask,) = masks_of(Grammar.regex("(x|y)" + "many words " * 20 + "[ab]"))
    mask.advance(TOKENIZER.encode("x")[0])
    forced = mask.forced()
    assert len(forced) > 20
    for number, token in enumerate(forced[:-1], start=1):
        mask.advance(token)
        assert mask.forced() == forced[number:]
    assert len(found) == 1
    mask.advance(forced[-1])
    assert mask.forced() == []
    assert len(found) == 2
