"""TrimmedVocabulary: a draft model's output matrix, cut to the tokens that matter.

The vocabulary matrix is most of a small draft model's cost, and most of its rows are hardly ever the answer. So the
draft program multiplies by a matrix of its own rows only:

    kept     ids below `size` and all control tokens. In vocabularies learned by merging pairs (BPE) an id is the rank
             of its merge, so low ids are the frequent tokens
    context  up to EXTRA rows for further tokens of the running texts, the least recently seen replaced first; a text
             repeats its names and rare words. They are packed again when they change

Coverage of Spec-Bench prompts and Python sources by ids below 8k / 16k / 32k, before context rows: Qwen2.5's 152k
tokens 0.72-0.88 / 0.82-0.93 / 0.90-0.99, translation 0.60 / 0.70 / 0.81; SmolLM2's 49k tokens 0.78-0.91 / 0.89-0.96 /
0.95-0.99.

Source: FR-Spec, Zhao et al., arXiv:2502.14856 (frequency-ranked draft vocabulary).
Differs: ranked by merge instead of counted; the tokens of the running contexts are added.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from forerun.backends.base import LoadedModel, Weights
from forerun.sequence import Sequence
from forerun.speculation.tree import DraftTree
from forerun.speculation.tree_search import TreeSearch

EXTRA = 512  # rows for tokens of the running contexts
PANEL = 16  # rows that backends pack together
KEPT = "output.kept"  # logical name of the cut matrix

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


class KeptRows:
    """`Weights` with one more matrix, KEPT: chosen rows of another one. `rows` [C] may change between reads."""

    def __init__(self, weights: Weights, source: str, rows: Int32) -> None:
        self._weights, self._source = weights, source
        self.rows = rows

    def __contains__(self, name: str) -> bool:
        return name == KEPT or name in self._weights

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape."""
        return (len(self.rows), self._weights.shape(self._source)[1]) if name == KEPT else self._weights.shape(name)

    def stored_format(self, name: str) -> str:
        """Format in the file."""
        return self._weights.stored_format(self._source if name == KEPT else name)

    def num_bytes(self, name: str) -> int:
        """Bytes in the file, of the rows that are read."""
        if name != KEPT:
            return self._weights.num_bytes(name)
        return self._weights.num_bytes(self._source) * len(self.rows) // self._weights.shape(self._source)[0]

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Float32:
        """Rows start..stop as float32."""
        if name != KEPT:
            return self._weights.read(name, start, stop)
        wanted = self.rows[start:stop]
        return np.concatenate([self._weights.read(self._source, first, last) for first, last in _runs(wanted)])

    def read_stored(self, name: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Rows start..stop as the file has them."""
        if name != KEPT:
            return self._weights.read_stored(name, start, stop)
        wanted = self.rows[start:stop]
        return np.concatenate([self._weights.read_stored(self._source, first, last) for first, last in _runs(wanted)])


class TrimmedVocabulary:
    """Which tokens the draft model can propose. Implements DraftVocabulary over target ids that are its own too.

    model       the draft model; `trimmed` is what its program reads
    size        ids below it are kept, rounded up to whole panels
    known       ids below it are known to both models
    is_special  control tokens are always kept
    """

    proposes_ids = True

    def __init__(self, model: LoadedModel, size: int, known: int, is_special: Callable[[int], bool]) -> None:
        size = min(-(-size // PANEL) * PANEL, known)
        ids = [*range(size), *(token for token in range(size, known) if is_special(token))]
        ids += [-1] * (-len(ids) % PANEL + EXTRA)
        self._columns = np.array(ids, np.int32)
        self._first_extra = len(ids) - EXTRA
        self._known = known
        self._kept = {token for token in ids if token >= 0}
        self._column_of: dict[int, int] = {}  # context token -> its column, least recently seen first
        self._num_read: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()
        self._weights = KeptRows(model.weights, model.spec.output_weight, np.maximum(self._columns, 0))
        self.trimmed = LoadedModel(model.spec, self._weights)
        self.shapes = {**model.spec.weight_shapes(), KEPT: self._weights.shape(KEPT)}
        self.reload: Callable[[str, int, int], None]  # of the program, once it is loaded

    @property
    def columns(self) -> Int32:
        return self._columns

    def to_draft(self, tokens: Seq[int]) -> Seq[int]:
        return [token if token < self._known else 0 for token in tokens]

    def prepare(self, sequences: Seq[Sequence]) -> None:
        """Give the texts' tokens a row, those seen last when there are too many."""
        changed = set()
        for sequence in sequences:
            start = self._num_read.get(sequence, 0)
            self._num_read[sequence] = len(sequence.tokens)
            for token in dict.fromkeys(sequence.tokens[start:]):
                if token not in self._kept and token < self._known:
                    changed |= self._see(token)
        self._weights.rows = np.maximum(self._columns, 0)
        for first, last in _runs(np.array(sorted({column // PANEL for column in changed}), np.int32)):
            self.reload(KEPT, first * PANEL, last * PANEL)

    def tree(self, search: TreeSearch, source: str) -> DraftTree | None:
        return search.tree(source)

    def _see(self, token: int) -> set[int]:
        """Columns that change because a token is met."""
        column = self._column_of.pop(token, None)
        is_new = column is None
        if column is None:
            column = self._first_extra + len(self._column_of)
            if column == len(self._columns):
                column = self._column_of.pop(next(iter(self._column_of)))
            self._columns[column] = token
        self._column_of[token] = column
        return {column} if is_new else set()


def _runs(rows: Int32) -> list[tuple[int, int]]:
    """(first, behind the last) of each stretch of consecutive numbers."""
    if not len(rows):
        return []
    cuts = np.flatnonzero(np.diff(rows) != 1) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, cuts)]
