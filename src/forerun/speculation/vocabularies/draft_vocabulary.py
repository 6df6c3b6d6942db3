"""DraftVocabulary: how a draft program's token ids correspond to the target's."""

from collections.abc import Sequence as Seq
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forerun.sequence import Sequence
from forerun.speculation.tree import DraftTree
from forerun.speculation.tree_search import TreeSearch


class DraftVocabulary(Protocol):
    """How a draft program's ids correspond to the target's.

    proposes_ids  what it proposes are target ids, so that bias, penalties and noise apply; else the search holds the
                  draft's own tokens, its likeliest, and `tree` makes target tokens of them
    """

    @property
    def proposes_ids(self) -> bool: ...

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        """[C] target id of each column of the logits, -1 for columns that are never proposed."""
        ...

    def to_draft(self, tokens: Seq[int]) -> Seq[int]:
        """[n] target ids as ids of the program's embedding table, one each."""
        ...

    def prepare(self, sequences: Seq[Sequence]) -> None:
        """These sequences are drafted for next."""
        ...

    def tree(self, search: TreeSearch, source: str) -> DraftTree | None:
        """A finished search in the target's ids; None when it is empty."""
        ...


class SameVocabulary:
    """The draft's ids are the target's. Implements DraftVocabulary."""

    proposes_ids = True

    def __init__(self, vocab_size: int) -> None:
        self._columns = np.arange(vocab_size, dtype=np.int32)

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        return self._columns

    def to_draft(self, tokens: Seq[int]) -> Seq[int]:
        return tokens

    def prepare(self, sequences: Seq[Sequence]) -> None:
        """Nothing depends on the sequences."""

    def tree(self, search: TreeSearch, source: str) -> DraftTree | None:
        return search.tree(source)


class SharedVocabulary:
    """Ids below `known` are the same in both models. Implements DraftVocabulary.

    columns   [C] id of each column of the draft's logits, -1 beyond the target's vocabulary
    stand_in  what the draft model reads for an id that it does not know
    """

    proposes_ids = True

    def __init__(self, known: int, draft_size: int, stand_in: int = 0) -> None:
        ids = np.arange(draft_size, dtype=np.int32)
        self._columns = np.where(ids < known, ids, -1).astype(np.int32)
        self._known, self._stand_in = known, stand_in

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        return self._columns

    def to_draft(self, tokens: Seq[int]) -> Seq[int]:
        return [token if token < self._known else self._stand_in for token in tokens]

    def prepare(self, sequences: Seq[Sequence]) -> None:
        """Nothing depends on the sequences."""

    def tree(self, search: TreeSearch, source: str) -> DraftTree | None:
        return search.tree(source)
