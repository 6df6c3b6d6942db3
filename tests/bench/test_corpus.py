"""The corpus is real text of a known size, and excerpts start at different places."""

import pytest

from forerun.bench.corpus import excerpts, text
from forerun.errors import UsageError


def test_the_corpus_is_prose_and_code() -> None:
    assert 6000 < len(text()) < 9000
    assert "```python" in text()


def test_excerpts_start_at_other_places_within_the_text() -> None:
    tokens = list(range(100))
    assert excerpts(tokens, 10, 1) == [tuple(range(10))]
    runs = excerpts(tokens, 10, 4)
    assert [run[0] for run in runs] == [0, 30, 60, 90]
    assert all(len(run) == 10 for run in runs)
    assert len(set(excerpts(tokens, 97, 4))) == 4


@pytest.mark.parametrize(("length", "count"), [(101, 1), (98, 4)])
def test_too_much_is_refused_with_the_numbers(length: int, count: int) -> None:
    with pytest.raises(UsageError, match=f"{count} prompts of {length} tokens do not fit the corpus of 100"):
        excerpts(list(range(100)), length, count)
