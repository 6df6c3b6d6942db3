"""The text that benches and checks run on: prose and code, written for this project.

Real text, because drafts live on its repetitions and logits of random tokens say nothing. Part of the package, so that
a figure can be repeated anywhere.
"""

from collections.abc import Sequence as Seq
from importlib import resources

from forerun.errors import UsageError

NAME = "forerun-corpus-1"  # a new name whenever a word changes: figures on different texts are not comparable


def text() -> str:
    """The whole corpus."""
    return resources.files("forerun.bench").joinpath("corpus.txt").read_text(encoding="utf-8")


def excerpts(tokens: Seq[int], length: int, count: int) -> list[tuple[int, ...]]:
    """`count` runs of `length` tokens, each starting at another place, evenly over the corpus.

    Raises UsageError when the corpus is shorter than that.
    """
    last = len(tokens) - length
    if last < count - 1:
        raise UsageError(
            f"{count} prompts of {length} tokens do not fit the corpus of {len(tokens)} tokens: ask for shorter prompts"
        )
    starts = [last * index // max(1, count - 1) for index in range(count)]
    return [tuple(tokens[start : start + length]) for start in starts]
