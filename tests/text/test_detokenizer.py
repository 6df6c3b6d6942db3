"""Streamed text equals the decoded whole, cut before the first stop string, however tokens divide it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forerun.sequence import StopMatcher
from forerun.text.detokenizer import LiveText, OutputText
from forerun.text.tokenizer import Tokenizer
from tests.text.vocabularies import byte_level, sentencepiece

TOKENIZERS = {
    "byte_level": Tokenizer.from_gguf(byte_level("smollm")[1]),
    "sentencepiece": Tokenizer.from_gguf(sentencepiece()[1]),
}
BYTES = TOKENIZERS["byte_level"]


def single(text: str) -> list[int]:
    """Byte tokens of `text`: the finest division there is."""
    by_bytes = {BYTES.token_bytes(i): i for i in range(BYTES.vocab_size) if len(BYTES.token_bytes(i)) == 1}
    return [by_bytes[bytes([byte])] for byte in text.encode()]


def cut(text: str, stop: list[str]) -> tuple[str, bool]:
    """Reference: the stop string complete first, the longest of those that end there."""
    ends = [(text.find(s) + len(s), text.find(s)) for s in stop if s in text]
    return (text[: min(ends)[1]], True) if ends else (text, False)


def stream(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> tuple[list[str], OutputText]:
    output = OutputText(tokenizer, stop)
    pieces = [output.push(i) for i in ids]
    return [*pieces, output.finish()], output


# Few letters, so that stop strings overlap with themselves, with each other and with the text.
letters = st.text(alphabet="ab \né😀", max_size=12)
stops = st.lists(st.text(alphabet="ab é", min_size=1, max_size=5), max_size=4)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data(), stop=stops)
def test_pushes_and_finish_are_the_decoded_whole_cut_at_the_first_stop(
    name: str, data: st.DataObject, stop: list[str]
) -> None:
    tokenizer = TOKENIZERS[name]
    anything = st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=30)
    ids = data.draw(anything | letters.map(tokenizer.encode))
    pieces, output = stream(tokenizer, ids, stop)
    want, stopped = cut(tokenizer.decode(ids), stop)
    assert ("".join(pieces), output.stopped, output.text) == (want, stopped, want)


@given(text=letters, stop=stops)
def test_the_division_into_tokens_does_not_matter(text: str, stop: list[str]) -> None:
    whole, output = stream(BYTES, BYTES.encode(text), stop)
    finest, other = stream(BYTES, single(text), stop)
    assert "".join(whole) == "".join(finest) == cut(text, stop)[0]
    assert output.stopped == other.stopped


@given(text=letters, stop=stops)
def test_the_matcher_of_commit_stops_at_the_token_that_completes_a_stop_string(text: str, stop: list[str]) -> None:
    matcher: StopMatcher = LiveText(BYTES, stop)
    ids = BYTES.encode(text)
    stopped = next((n for n, i in enumerate(ids, 1) if matcher.push(i, True)), None)
    first = next((n for n in range(1, len(ids) + 1) if any(s in safe(ids[:n]) for s in stop)), None)
    assert stopped == first


def safe(ids: list[int]) -> str:
    """Decoded text without an incomplete last character."""
    return b"".join(map(BYTES.token_bytes, ids)).decode("utf-8", errors="ignore")


def test_text_is_given_as_soon_as_it_is_final() -> None:
    output = OutputText(BYTES, ["stop", "end\n"])
    given_ = [output.push(i) for i in single("so sto. en 😀 endstop!")]
    assert given_ == [
        *("", "so", " ", "", "", "", "sto.", " ", "", "", "en ", "", "", "", "😀", " "),
        *("", "", "", "end", "", "", "", ""),
    ]
    assert (output.stopped, output.finish(), output.text) == (True, "", "so sto. en 😀 end")


def test_without_stop_strings_every_whole_character_is_given_at_once() -> None:
    output = OutputText(BYTES)
    assert [output.push(i) for i in single("aé")] == ["a", "", "é"]


def test_what_was_held_back_comes_with_finish() -> None:
    output = OutputText(BYTES, ["stop"])
    assert [output.push(i) for i in single("sto")] == ["", "", ""]
    assert (output.finish(), output.stopped) == ("sto", False)


def test_broken_utf8_becomes_the_replacement_character() -> None:
    output = OutputText(BYTES)
    euro = single("€")
    assert [output.push(i) for i in [*euro[:2], *single("x"), *euro[:1]]] == ["", "", "\ufffdx", ""]
    assert output.finish() == "\ufffd"


def test_control_tokens_add_nothing_and_do_not_break_a_character() -> None:
    first, second = single("é")
    output = OutputText(BYTES, ["<|im_end|>"])
    assert [output.push(i) for i in (1, first, 2, second)] == ["", "", "", "é"]
    assert not output.stopped


def test_of_overlapping_stop_strings_the_one_complete_first_wins_and_then_the_longest() -> None:
    assert "".join(stream(BYTES, single("xabcd"), ["abcd", "bc"])[0]) == "xa"
    assert "".join(stream(BYTES, single("xabc"), ["bc", "abc", "c"])[0]) == "x"
    assert "".join(stream(BYTES, single("aabaabaac"), ["aabaac"])[0]) == "aab"


def test_only_the_first_leading_space_of_sentencepiece_goes() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    word = tokenizer.encode("a", special=False)
    pieces, _ = stream(tokenizer, [1, *word, *word], [])
    assert "".join(pieces) == "a a"


def test_time_per_token_does_not_grow_with_the_output() -> None:
    output = OutputText(BYTES, ["\n\nUser:", "<end>"])
    ids = BYTES.encode("some words < and \n\n more. ")

    def seconds(rounds: int) -> float:
        start = time.perf_counter()
        for _ in range(rounds):
            for i in ids:
                output.push(i)
        return time.perf_counter() - start

    early = seconds(300)
    seconds(10_000)
    late = min(seconds(300) for _ in range(3))
    assert late < 10 * early  # quadratic work would make it several hundred times slower


def test_a_stop_string_is_ordinary_text_while_it_may_not_stop() -> None:
    live = LiveText(BYTES, ["stop"])
    ids = single("a stop b stop c")
    stopped = [live.push(token, number >= 8) for number, token in enumerate(ids)]
    assert stopped.index(True) == len("a stop b stop") - 1
    assert live.finish() == live.finish() == "a stop b "
    assert live.pieces[:8] == list("a stop b")


def test_a_continuation_keeps_the_space_before_its_first_word() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    texts = []
    for continues in (False, True):
        live = LiveText(tokenizer, continues=continues)
        for token in tokenizer.encode("word"):
            live.push(token, True)
        texts.append(live.finish())
    assert texts == ["word", " word"]
