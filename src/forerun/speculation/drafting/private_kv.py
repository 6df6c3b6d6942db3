"""PrivateKv: the KV of a draft model with another tokenizer, whose positions are not the target's.

The draft program has a store of its own, cut into one region per sequence. What a region holds is remembered token by
token, so nothing has to follow what happens to the target's blocks: preemption costs nothing, and after a rejection,
or when the open word is spelled anew, the common beginning is kept.

    region  [ The ][ ferry][ is ][ la ][ te ]      held: the draft token behind each slot's KV
    text    [ The ][ ferry][ is ][ late ]          seen: 3
"""

from collections.abc import Sequence as Seq

from forerun.batch import Outcome
from forerun.cache.layout import KvLayout, KvStack
from forerun.sequence import Sequence
from forerun.speculation.host import Vocabulary
from forerun.speculation.tree_search import TreeSearch
from forerun.speculation.vocabularies.draft_vocabulary import DraftVocabulary
from forerun.speculation.vocabularies.foreign_text import ForeignText


def private_layout(stack: KvStack, num_sequences: int, max_len: int, block_size: int) -> KvLayout:
    """Room for `num_sequences` sequences of `max_len` draft tokens each."""
    return KvLayout(num_sequences * -(-max_len // block_size), block_size, (stack,))


class _Region:
    """One sequence's text and blocks. held  draft token behind the KV of each leading slot"""

    def __init__(self, text: ForeignText, blocks: range) -> None:
        self.text, self.blocks = text, blocks
        self.held: list[int] = []


class PrivateKv:
    """One region per sequence; sequences that find none free are not drafted for. Implements DraftKv.

    layout         of the program's store, see private_layout
    num_sequences  regions in it
    """

    def __init__(
        self,
        layout: KvLayout,
        num_sequences: int,
        vocabulary: DraftVocabulary,
        target: Vocabulary,
        draft: Vocabulary,
    ) -> None:
        self.block_size = layout.block_size
        per_region = layout.num_blocks // num_sequences
        self._free = [range(i * per_region, (i + 1) * per_region) for i in range(num_sequences)]
        self._regions: dict[int, _Region] = {}
        self._vocabulary, self._target, self._draft = vocabulary, target, draft

    def is_ready(self, sequence: Sequence) -> bool:
        region = self._regions.get(sequence.id)
        if region is None:
            if not self._free:
                return False
            region = self._regions[sequence.id] = _Region(ForeignText(self._target, self._draft), self._free.pop())
        region.text.read(sequence.tokens)
        return bool(region.text.tokens)

    def length(self, sequence: Sequence) -> int:
        return len(self._regions[sequence.id].text.tokens)

    def capacity(self, sequence: Sequence) -> int:
        return len(self._regions[sequence.id].blocks) * self.block_size

    def tokens(self, sequence: Sequence, start: int, stop: int) -> Seq[int]:
        return self._regions[sequence.id].text.tokens[start:stop]

    def blocks(self, sequence: Sequence) -> Seq[int]:
        return self._regions[sequence.id].blocks

    def num_seen(self, sequence: Sequence) -> int:
        region = self._regions[sequence.id]
        tokens, held = region.text.tokens, region.held
        end = min(len(tokens) - 1, len(held))
        return next((i for i in range(end) if tokens[i] != held[i]), end)

    def write(self, sequence: Sequence, start: int, stop: int) -> None:
        del self._regions[sequence.id].held[start:]

    def advance(self, sequence: Sequence, num_seen: int) -> None:
        region = self._regions[sequence.id]
        region.held = region.text.tokens[:num_seen]

    def observe(self, sequence: Sequence, outcome: Outcome, search: TreeSearch | None, root: int) -> None:
        """What was drafted in its place is held, whether accepted or not: the next text decides."""
        region = self._regions.get(sequence.id)
        if region is not None and search is not None and len(region.held) == root + 1:
            region.held += self._vocabulary.to_draft(search.leading_chain())

    def end(self, sequence_id: int) -> None:
        region = self._regions.pop(sequence_id, None)
        if region is not None:
            self._free.append(region.blocks)
