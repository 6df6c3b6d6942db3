"""Chooser: which tokens follow the paths of one sequence's draft, out of a drafter's rows of logits.

Place: every drafter that draws from logits makes one for each sequence and draft, so that options, grammar and
verification count alike in all of them (candidates).
"""

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from forerun.batch import DrawRequest
from forerun.sampling.grammar import path_masks
from forerun.sampling.request import make_draw
from forerun.sequence import Sequence
from forerun.speculation.drafting.candidates import NONE, Candidates, choose, draw_one
from forerun.speculation.host import DraftHost
from forerun.speculation.tree import DraftTree


class Chooser:
    """Successors of one sequence's paths.

    columns  [C] target id of each column of a row, -1 where there is none; it may change between calls
    width    children of a node
    """

    def __init__(self, sequence: Sequence, columns: npt.NDArray[np.int32], width: int, host: DraftHost) -> None:
        self._draw = make_draw(sequence, DraftTree.root_only(sequence.tokens[-1]), 0)
        self._masks = path_masks(sequence)
        self._columns, self._vocab_size = columns, host.target.model.spec.vocab_size
        # Drawn nodes form a chain: what is kept of a tree may not depend on what was drawn in it. A greedy request's
        # nodes are never drawn.
        self.is_drawn = host.verification in ("rejection", "block") and sequence.params.temperature > 0.0
        self.width = 1 if self.is_drawn else width
        self.depends_on_path = self.is_drawn or sequence.params.has_penalties or self._masks is not None

    def successors(self, row: npt.NDArray[np.float32], path: Seq[int]) -> Candidates:
        """The best successors of a path, from the root's child down, given the scores [C] behind it."""
        mask = None
        if self._masks is not None:
            mask = self._masks.ahead(path)
            if mask is None:
                return NONE  # the text ends with the path, or what may follow takes too long to find
        if self.is_drawn:
            return draw_one(row, self._columns, self._draw, path, self._vocab_size, mask)
        return choose(row, self._columns, self._draw, path, self.width, mask)


class LikeliestText:
    """Successors where the columns are not the target's tokens, so that nothing of the request applies to them: always
    the likeliest, as a chain."""

    width = 1

    def __init__(self, columns: npt.NDArray[np.int32]) -> None:
        self._columns, self._draw = columns, DrawRequest(0, DraftTree.root_only(0), 0, (0, 0))

    def successors(self, row: npt.NDArray[np.float32], path: Seq[int]) -> Candidates:
        """The best successor of any path, given the scores [C] behind it."""
        return choose(row, self._columns, self._draw, path, self.width)
