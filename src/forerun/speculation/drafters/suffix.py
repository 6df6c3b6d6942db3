"""suffix drafter: how did the text go on wherever it stood before? Trees out of suffix automata that count.

A suffix automaton knows every context (run of tokens) of a text and how often each token followed it; adding a token
takes amortised constant time. The contexts of a sequence's end, longest first, predict its next token together: each
has a trust, the share of tokens so far that were among the known successors of a context that long and that frequent,
and shorter contexts get what the longer ones leave. The most likely nodes form the tree, and their scores are these
predictions.

    text   a b c X .. a b c X .. b c Y .. a b c       context "a b c" went on X, X;  "b c" X, X, Y;  "c" X, X, Y
    tree   root ─ X (0.8) ─ .. (0.9)
                └ Y (0.1)

Every sequence has an automaton of its own text, prompt included. With `shared` the outputs of finished sequences are
kept too, in shards within `shared_bytes`; the shard that has been of no use for longest is forgotten first. Shared
text is a side channel: how fast an answer comes may tell that somebody was answered alike. So it is off by default,
and requests with different salts never share.

Options: min_match=1 (shortest context that predicts), min_prob=0.05 (of a node being reached), alpha=2.0 and
offset=8.0 (at most alpha * length of the match + offset nodes), shared=False, shared_bytes=67108864.
Cost: about 10 us a proposal at any length, below 1 us a token.
Memory: 80 to 140 bytes a token of every running sequence, at most BYTES_PER_TOKEN.
Source: SuffixDecoding (Oliaro et al., arXiv:2411.04975); SAM-Decoding (Hu et al., arXiv:2411.10666); blending of
contexts as in prediction by partial matching (Cleary and Witten, 1984).
Differs: one automaton instead of a tree of limited depth; learned trust instead of raw counts, blended contexts instead
of the best single one; shards instead of single documents are forgotten.
"""

from collections import OrderedDict
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from forerun import _native
from forerun.errors import UsageError
from forerun.sequence import Sequence
from forerun.speculation.drafter import Ask, Seen, register
from forerun.speculation.tree import DraftTree

BYTES_PER_TOKEN = 256  # two states, three edges and their places in a table, each with the slack of a growing array
SHARD_BYTES = 4096  # of a shard without text
NUM_SHARDS = 8  # a shard is full with this part of the budget
LOOK_BACK = 64  # tokens by which a sequence finds its place in a shard that is new to it


@dataclass(eq=False)
class _Shard:
    """Outputs of finished sequences of one tenant."""

    salt: str
    automaton: _native.SuffixAutomaton = field(default_factory=_native.SuffixAutomaton)

    @property
    def num_bytes(self) -> int:
        return SHARD_BYTES + self.automaton.bytes


class _Corpus:
    """Shards of all tenants within a budget of bytes, the one of least recent use first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._shards: OrderedDict[_Shard, int] = OrderedDict()  # with its bytes
        self._by_salt: dict[str, list[_Shard]] = {}
        self.num_bytes = 0

    def of(self, salt: str) -> Seq[_Shard]:
        return self._by_salt.get(salt, ())

    def use(self, shard: _Shard) -> None:
        """The shard was of use: it is forgotten last."""
        self._shards.move_to_end(shard)

    def add(self, salt: str, tokens: Seq[int]) -> None:
        """Keep a text; of one that is too long for a shard, its end."""
        room = self._max_bytes // NUM_SHARDS
        shard = self._open_shard(salt, room)
        shard.automaton.extend(tokens[-max(1, (room - SHARD_BYTES) // BYTES_PER_TOKEN) :])
        shard.automaton.end_document()
        self.num_bytes += shard.num_bytes - self._shards[shard]
        self._shards[shard] = shard.num_bytes
        self.use(shard)
        while self.num_bytes > self._max_bytes:
            self._forget_oldest()

    def _open_shard(self, salt: str, room: int) -> _Shard:
        mine = self._by_salt.setdefault(salt, [])
        if not mine or mine[-1].num_bytes >= room // 2:  # arrays double: half a room may be a whole one next
            mine.append(_Shard(salt))
            self._shards[mine[-1]] = 0
        return mine[-1]

    def _forget_oldest(self) -> None:
        shard, num_bytes = self._shards.popitem(last=False)
        self.num_bytes -= num_bytes
        left = self._by_salt[shard.salt]
        left.remove(shard)
        if not left:
            del self._by_salt[shard.salt]


@dataclass(eq=False)
class _Place:
    """Where a sequence stands in a shard."""

    match: _native.SuffixMatch
    num_seen: int


@dataclass(eq=False)
class _Text:
    """A running sequence, the automaton of its own text, and its place in its tenant's shards."""

    sequence: Sequence
    automaton: _native.SuffixAutomaton = field(default_factory=_native.SuffixAutomaton)
    num_seen: int = 0
    places: dict[_Shard, _Place] = field(default_factory=dict)

    def catch_up(self) -> None:
        tokens = self.sequence.tokens
        if self.num_seen < len(tokens):
            self.automaton.extend(tokens[self.num_seen :])
            self.num_seen = len(tokens)

    def match_in(self, shard: _Shard) -> _native.SuffixMatch:
        """Longest suffix of the text that the shard knows."""
        tokens = self.sequence.tokens
        place = self.places.get(shard)
        if place is None:
            place = self.places[shard] = _Place(_native.SuffixMatch(), max(0, len(tokens) - LOOK_BACK))
        shard.automaton.advance(place.match, tokens[place.num_seen :])
        place.num_seen = len(tokens)
        return place.match


class SuffixDrafter:
    """Drafts from each sequence's own text and, where `shared`, from what its tenant was answered before."""

    name = "suffix"
    is_paid = False
    learns = False

    def __init__(
        self,
        min_match: int = 1,
        min_prob: float = 0.05,
        alpha: float = 2.0,
        offset: float = 8.0,
        shared: bool = False,
        shared_bytes: int = 64 << 20,
    ) -> None:
        if not 1 <= min_match <= 64:
            raise UsageError(f"suffix drafter: min_match must be between 1 and 64, got {min_match}")
        if not 0.001 <= min_prob < 1:
            raise UsageError(f"suffix drafter: min_prob must be at least 0.001 and below 1, got {min_prob}")
        if not (0 <= alpha <= 64 and 0 <= offset <= 64 and alpha + offset > 0):
            raise UsageError(
                f"suffix drafter: alpha and offset must be between 0 and 64, not both 0, got {alpha} and {offset}"
            )
        if shared_bytes < 1 << 20:
            raise UsageError(f"suffix drafter: shared_bytes must be at least {1 << 20}, got {shared_bytes}")
        self._min_match, self._min_prob = min_match, min_prob
        self._alpha, self._offset = alpha, offset
        self._corpus = _Corpus(shared_bytes) if shared else None
        self._texts: dict[int, _Text] = {}

    @property
    def num_bytes(self) -> int:
        """Memory of all automata."""
        own = sum(text.automaton.bytes for text in list(self._texts.values()))  # a copy: asked while it works
        return own + (self._corpus.num_bytes if self._corpus is not None else 0)

    def begin(self, sequence: Sequence) -> None:
        self._texts[sequence.id] = _Text(sequence)

    def propose(self, asks: Seq[Ask]) -> list[DraftTree | None]:
        return [self._propose(ask) for ask in asks]

    def observe(self, seen: Seq[Seen]) -> None:
        """Nothing to learn: the automata learn from the tokens when they catch up."""

    def end(self, sequence_id: int) -> None:
        text = self._texts.pop(sequence_id, None)
        if text is not None and self._corpus is not None and text.sequence.num_output > 1:
            self._corpus.add(text.sequence.request.salt, text.sequence.output)

    def _propose(self, ask: Ask) -> DraftTree | None:
        text = self._texts[ask.sequence.id]
        text.catch_up()
        best = self._draft(text.automaton, text.automaton.repeated_suffix(), ask)
        for tree in self._shared_drafts(text, ask):
            best = tree if best is None else best.merge(tree).prune(ask.max_nodes)
        return best

    def _shared_drafts(self, text: _Text, ask: Ask) -> Iterator[DraftTree]:
        """A tree from each shard that has something to say."""
        if self._corpus is None:
            return
        shards = self._corpus.of(text.sequence.request.salt)
        if len(text.places) > len(shards):
            text.places = {shard: place for shard, place in text.places.items() if shard in shards}
        for shard in shards:
            tree = self._draft(shard.automaton, text.match_in(shard), ask)
            if tree is not None:
                self._corpus.use(shard)
                yield tree

    def _draft(self, automaton: _native.SuffixAutomaton, match: _native.SuffixMatch, ask: Ask) -> DraftTree | None:
        max_nodes = min(ask.max_nodes, int(self._alpha * match.length + self._offset))
        tokens, parents, score = automaton.draft(match, max_nodes, ask.max_depth, self._min_match, self._min_prob)
        if len(tokens) == 1:
            return None
        tokens[0] = ask.sequence.tokens[-1]
        return DraftTree.of(tokens, parents, score, self.name)


register("suffix", SuffixDrafter)
