"""SequenceQueue: sequences in the order of their claims, the strongest first. The waiting and the running ones are two.

A claim is a moment: when the sequence arrived, moved by `priority_s` seconds for every level of its request's priority.
It never changes, so that whoever waits long enough stands before everybody who arrives later, whatever their priority:
nobody starves. Among equal priorities it is the order of arrival.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator

from forerun.sequence import Sequence

Claim = tuple[float, int]


class SequenceQueue:
    """Sequences by claim. Finding one takes the logarithm of the length, taking it out moves pointers only.

    priority_s  seconds of waiting that make up for one level of priority
    """

    def __init__(self, priority_s: float) -> None:
        self._priority_s = priority_s
        self._sequences: list[Sequence] = []

    def claim(self, sequence: Sequence) -> Claim:
        """What the order goes by, the lowest first."""
        return sequence.stats.arrived_s + self._priority_s * sequence.request.priority, sequence.id

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._sequences, sequence, key=self.claim)

    def discard(self, sequence: Sequence) -> bool:
        """Take a sequence out; False when it is not there."""
        place = self._place(sequence)
        if place is None:
            return False
        del self._sequences[place]
        return True

    def clear(self) -> list[Sequence]:
        """Take all of them out."""
        taken, self._sequences = self._sequences, []
        return taken

    def check(self) -> None:
        """Assert the order."""
        claims = [self.claim(sequence) for sequence in self._sequences]
        assert claims == sorted(set(claims)), "a queue is not in the order of claims"

    def _place(self, sequence: Sequence) -> int | None:
        place = bisect_left(self._sequences, self.claim(sequence), key=self.claim)
        return place if place < len(self) and self._sequences[place] is sequence else None

    def __contains__(self, sequence: Sequence) -> bool:
        return self._place(sequence) is not None

    def __getitem__(self, place: int) -> Sequence:
        return self._sequences[place]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __len__(self) -> int:
        return len(self._sequences)
