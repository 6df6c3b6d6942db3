"""first_difference: every way in which two answers can differ is seen, at the right place."""

import pytest

from forerun.bench.lossless import Answer, Cell, Setting, first_difference, longest_blocks
from forerun.sequence import SamplingParams

PLAIN = Answer((5, 6, 7), (b"a", b"b", b"c"), "length")


def test_equal_answers_have_none() -> None:
    assert first_difference(Setting(), "cell", PLAIN, Answer((5, 6, 7), (b"a", b"b", b"c"), "length")) is None


@pytest.mark.parametrize(
    ("found", "position", "kind", "words"),
    [
        (Answer((5, 9, 7), (b"a", b"b", b"c"), "length"), 1, "token", "token 9, plain decoding gives 6"),
        (Answer((5, 6, 7), (b"a", b"b", b"d"), "length"), 2, "logits", "logits 64, plain decoding gives 63"),
        (Answer((5, 9, 7), (b"x", b"b", b"c"), "length"), 0, "logits", "output token 0"),
        (Answer((5, 6), (b"a", b"b"), "length"), 2, "finish", "length after 2 tokens"),
        (Answer((5, 6, 7, 8), (b"a", b"b", b"c", b"d"), "length"), 3, "finish", "length after 4 tokens"),
        (Answer((5, 6, 7), (b"a", b"b", b"c"), "stop"), 3, "finish", "stop after 3 tokens"),
    ],
)
def test_the_first_difference_is_named(found: Answer, position: int, kind: str, words: str) -> None:
    difference = first_difference(Setting("ngram", 3, cache=True, threads=2), "prompt-1", PLAIN, found)
    assert difference is not None
    assert (difference.position, difference.kind) == (position, kind)
    text = str(difference)
    assert words in text
    assert "prompt prompt-1, drafter ngram, batch 3, chunk whole, cache on, pool roomy, threads 2" in text


def test_a_tight_pool_holds_the_longest_request_exactly() -> None:
    cells = [Cell("a", (1,) * 30, SamplingParams(max_tokens=2)), Cell("b", (1,) * 20, SamplingParams(max_tokens=13))]
    assert longest_blocks(cells, 16) == 3  # 33 tokens
    assert longest_blocks(cells[:1], 16) == 2
