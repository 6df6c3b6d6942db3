"""HeadKv: what is known of each sequence by a head that reads hidden states and keeps KV of its own.

Hidden states come once, with the step that computes them, so unlike a draft model (draft_kv) a head can fill the slot
of a token only then. Where a prefix came from the cache, its slots hold what the sequence that computed them left
there, if the head drafted for that one; blocks are remembered with their digests, as in draft_kv. A sequence whose
cached blocks are not known to be filled is not drafted for: it decodes plainly, its output is what it is in any case.
Taken on trust is a block that is used in part, and the blocks before it that the last step of a sequence may have
completed: they are filled, but what they are called is known only when they no longer belong to it.
"""

from forerun.sequence import Sequence
from forerun.speculation.drafter import Computed, Seen
from forerun.speculation.drafting.draft_kv import StackKv
from forerun.speculation.host import DraftHost
from forerun.speculation.vocabularies.draft_vocabulary import SameVocabulary


def progress_key(name: str) -> str:
    """Key in Sequence.seen_by of the tokens whose hidden states a drafter has followed without a gap."""
    return f"{name}.hidden"


def follow(name: str, computed: Computed) -> bool:
    """Note that hidden states up to computed.stop have come; False when they do not follow those before: the sequence
    has joined, or joined again after a preemption, which empties seen_by."""
    seen = computed.sequence.seen_by
    continues = seen.get(progress_key(name)) == computed.start
    seen[progress_key(name)] = computed.stop
    return continues


def is_complete(name: str, sequence: Sequence) -> bool:
    """Have the hidden states of all tokens but the last come?"""
    return sequence.seen_by.get(progress_key(name)) == len(sequence.tokens) - 1


TRUSTED_BLOCKS = 2  # that one step may complete


class HeadKv:
    """Progress of a head's stack over all sequences. name  the drafter's"""

    def __init__(self, name: str, host: DraftHost) -> None:
        assert host.layout is not None, "a drafter loads when the KV memory is there"
        self._name, self._block_size = name, host.layout.block_size
        self._kv = StackKv(name, self._block_size, SameVocabulary(host.target.model.spec.vocab_size))
        self._cached: dict[int, int] = {}  # sequence id -> leading tokens that came from the cache
        self._unknown: set[int] = set()  # sequences whose cached blocks nobody is known to have filled

    def follow(self, computed: Computed) -> bool:
        """As the function `follow`."""
        continues = follow(self._name, computed)
        if not continues:
            self._cached[computed.sequence.id] = computed.start
            self._unknown.discard(computed.sequence.id)
        return continues

    def write(self, sequence: Sequence, start: int, stop: int) -> None:
        """Logical slots start..stop-1 are about to be written."""
        self._kv.write(sequence, start, stop)

    def fill(self, sequence: Sequence, num_filled: int) -> None:
        """Slots up to num_filled hold the sequence's tokens."""
        if sequence.id in self._cached and sequence.id not in self._unknown and self._kv.is_ready(sequence):
            self._kv.advance(sequence, num_filled)

    def observe(self, seen: Seen, num_filled: int) -> None:
        """The sequence has drawn, so that the digests of its blocks are known, as far as they are complete."""
        sequence = seen.sequence
        if sequence.is_finished or sequence.id not in self._cached:
            return
        if not self._kv.is_ready(sequence):
            self._kv.observe(sequence, seen.outcome, None, 0)
            self._check(sequence)
        self.fill(sequence, num_filled)

    def _check(self, sequence: Sequence) -> None:
        """Are the blocks filled that came from the cache?"""
        whole = self._cached[sequence.id] // self._block_size * self._block_size
        if self._kv.num_seen(sequence) < whole - TRUSTED_BLOCKS * self._block_size:
            self._unknown.add(sequence.id)

    def can_draft(self, sequence: Sequence) -> bool:
        """Is everything there that a draft needs?"""
        return self._kv.is_ready(sequence) and sequence.id not in self._unknown and is_complete(self._name, sequence)

    def end(self, sequence_id: int) -> None:
        """The sequence is gone; its blocks keep what they hold."""
        self._kv.end(sequence_id)
        self._cached.pop(sequence_id, None)
        self._unknown.discard(sequence_id)
