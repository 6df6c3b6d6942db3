"""Vocabularies of draft models with another tokenizer than the target's.

    intersection   the draft proposes tokens whose bytes both vocabularies know, as the target's ids: chains and trees,
                   coupled to the target's noise, verified by any rule (TLI)
    text           the draft writes on in its own tokens; the text is encoded with the target's tokenizer. Chains, and
                   always the draft's most likely text: for rejection a draft that was chosen, not drawn (SLEM)

Source: Timor et al., "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous
vocabularies", arXiv:2502.05202.
"""

from collections.abc import Sequence as Seq

import numpy as np
import numpy.typing as npt

from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.host import OpenedModel, Vocabulary
from forerun.speculation.tree import DraftTree
from forerun.speculation.tree_search import TreeSearch
from forerun.speculation.vocabularies.foreign_text import adds_space

MIN_SHARED = 64  # tokens below which an intersection is no vocabulary to speak of


class IntersectionVocabulary:
    """Tokens with the same bytes in both vocabularies. Implements DraftVocabulary.

    draft_size  columns of the draft's logits
    Raises UsageError when they have next to nothing in common.
    """

    proposes_ids = True

    def __init__(self, target: OpenedModel, draft: OpenedModel, draft_size: int) -> None:
        mine, other = target.vocabulary, draft.vocabulary
        target_id: dict[bytes, int] = {}
        for token in range(mine.vocab_size):
            spelling = _spelling(mine, token)
            if spelling:
                target_id.setdefault(spelling, token)
        self._draft_id: dict[int, int] = {}
        self._columns = np.full(draft_size, -1, np.int32)
        for token in range(min(draft_size, other.vocab_size)):
            shared = target_id.get(_spelling(other, token))
            if shared is not None and shared not in self._draft_id:
                self._draft_id[shared] = token
                self._columns[token] = shared
        if len(self._draft_id) < MIN_SHARED:
            raise UsageError(
                f"{draft.name} and {target.name} have {len(self._draft_id)} tokens in common: choose another draft "
                "model, or match=text"
            )

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        return self._columns

    @property
    def num_shared(self) -> int:
        """Tokens that can be proposed."""
        return len(self._draft_id)

    def to_draft(self, tokens: Seq[int]) -> Seq[int]:
        return [self._draft_id[token] for token in tokens]

    def prepare(self, sequences: Seq[Sequence]) -> None:
        """Nothing depends on the sequences."""

    def tree(self, search: TreeSearch, source: str) -> DraftTree | None:
        return search.tree(source)


class TextVocabulary:
    """The draft's own tokens, whose text the target's tokenizer encodes. Implements DraftVocabulary."""

    proposes_ids = False

    def __init__(self, target: OpenedModel, draft: OpenedModel, draft_size: int) -> None:
        self._target, self._draft = target.vocabulary, draft.vocabulary
        ids = np.arange(draft_size, dtype=np.int32)
        speaks = [
            token < self._draft.vocab_size and bool(self._draft.token_bytes(token)) for token in range(draft_size)
        ]
        self._columns = np.where(speaks, ids, -1).astype(np.int32)
        self._adds_space = adds_space(self._target)

    @property
    def columns(self) -> npt.NDArray[np.int32]:
        return self._columns

    def to_draft(self, tokens: Seq[int]) -> Seq[int]:
        return tokens

    def prepare(self, sequences: Seq[Sequence]) -> None:
        """Nothing depends on the sequences."""

    def tree(self, search: TreeSearch, source: str) -> DraftTree | None:
        """The likeliest text as a chain of target tokens, at most as many as there are slots for."""
        path = search.best_path()
        pieces = [self._draft.token_bytes(token) for token, _ in path]
        text = b"".join(pieces).decode("utf-8", "ignore")
        if self._adds_space:  # then text that goes on inside a word cannot be encoded by itself
            text = text[1:] if text.startswith(" ") else ""
        tokens = self._target.encode(text, special=False)[: search.max_nodes] if text else []
        if not tokens:
            return None
        survival = _survival(pieces, [value for _, value in path], [self._target.token_bytes(t) for t in tokens])
        scores = [value / before for value, before in zip(survival, [1.0, *survival], strict=False)]
        return DraftTree.chain(search.token(0), tokens, scores, source)


def _survival(pieces: Seq[bytes], values: Seq[float], tokens: Seq[bytes]) -> list[float]:
    """Of each target token, the value of the draft token in which it ends."""
    ends = np.cumsum([len(piece) for piece in pieces])
    stops = np.cumsum([len(token) for token in tokens])
    at = np.minimum(np.searchsorted(ends, stops), len(values) - 1)
    return [max(values[index], 1e-9) for index in at.tolist()]


def _spelling(vocabulary: Vocabulary, token: int) -> bytes:
    """Bytes that stand for a token in comparisons; control tokens by their name, apart from all texts."""
    if vocabulary.is_special(token):
        return b"\0control " + vocabulary.decode([token], skip_special=False).encode()
    return vocabulary.token_bytes(token)
