"""What a drafter's KV holds: blocks that were filled for the same prefix are found again, others never."""

import pytest

from forerun.batch import Outcome
from forerun.cache.layout import KvStack
from forerun.sequence import Request, SamplingParams, Sequence
from forerun.speculation.drafting.draft_kv import StackKv
from forerun.speculation.drafting.private_kv import PrivateKv, private_layout
from forerun.speculation.tree import DraftTree
from forerun.speculation.tree_search import TreeSearch
from forerun.speculation.vocabularies.draft_vocabulary import SameVocabulary

SIZE = 4
NOTHING = Outcome(DraftTree.root_only(0), (), (0,), (0,))


def a_sequence(number: int, tokens: list[int], blocks: list[int], digests: list[bytes]) -> Sequence:
    request = Request("r", tuple(tokens), SamplingParams())
    sequence = Sequence(number, request, 0, 0, (0, 0), list(tokens), len(tokens))
    sequence.block_ids, sequence.block_digests = list(blocks), list(digests)
    return sequence


@pytest.fixture
def kv() -> StackKv:
    return StackKv("draft", SIZE, SameVocabulary(100))


def fill(kv: StackKv, sequence: Sequence) -> None:
    """All but the last token computed."""
    kv.observe(sequence, NOTHING, None, 0)
    kv.write(sequence, kv.num_seen(sequence), len(sequence.tokens))
    kv.advance(sequence, len(sequence.tokens))


TOKENS = list(range(10))


def test_nothing_is_known_before_a_sequence_has_drawn(kv) -> None:
    sequence = a_sequence(1, TOKENS, [5, 6, 7], [b"a", b"b"])
    assert not kv.is_ready(sequence)
    kv.observe(sequence, NOTHING, None, 0)
    assert kv.is_ready(sequence)
    assert kv.num_seen(sequence) == 0


def test_the_last_token_is_always_computed(kv) -> None:
    sequence = a_sequence(1, TOKENS, [5, 6, 7], [b"a", b"b"])
    fill(kv, sequence)
    assert kv.num_seen(sequence) == 9


class TestSharedBlocks:
    def test_the_same_prefix_is_found_again(self, kv) -> None:
        fill(kv, a_sequence(1, TOKENS, [5, 6, 7], [b"a", b"b"]))
        hit = a_sequence(2, TOKENS, [5, 6, 9], [b"a", b"b"])
        kv.observe(hit, NOTHING, None, 0)
        assert kv.num_seen(hit) == 8

    def test_a_digest_that_comes_later_counts(self, kv) -> None:
        first = a_sequence(1, TOKENS, [5, 6, 7], [])
        fill(kv, first)
        first.block_digests = [b"a", b"b"]
        kv.advance(first, len(first.tokens))
        hit = a_sequence(2, TOKENS, [5, 6, 9], [b"a", b"b"])
        kv.observe(hit, NOTHING, None, 0)
        assert kv.num_seen(hit) == 8

    @pytest.mark.parametrize("digests", [[b"x", b"b"], [], [b"a", b"x"]])
    def test_a_recycled_block_is_not_trusted(self, kv, digests) -> None:
        fill(kv, a_sequence(1, TOKENS, [5, 6, 7], [b"a", b"b"]))
        other = a_sequence(2, TOKENS, [5, 6, 9], digests)
        kv.observe(other, NOTHING, None, 0)
        assert kv.num_seen(other) == (SIZE if digests[:1] == [b"a"] else 0)

    def test_a_block_that_was_written_since_is_not_trusted(self, kv) -> None:
        fill(kv, a_sequence(1, TOKENS, [5, 6, 7], [b"a", b"b"]))
        kv.write(a_sequence(2, TOKENS, [8, 6, 9], []), 5, 6)
        hit = a_sequence(3, TOKENS, [5, 6, 9], [b"a", b"b"])
        kv.observe(hit, NOTHING, None, 0)
        assert kv.num_seen(hit) == SIZE

    def test_preemption_starts_anew(self, kv) -> None:
        sequence = a_sequence(1, TOKENS, [5, 6, 7], [b"a", b"b"])
        fill(kv, sequence)
        sequence.seen_by.clear()
        sequence.block_ids, sequence.block_digests = [1, 2, 3], []
        assert not kv.is_ready(sequence)
        kv.observe(sequence, NOTHING, None, 0)
        assert kv.num_seen(sequence) == 0


class TestAcceptedNodes:
    """Tree: slots 1 and 2 hold the root's children 20 and 21, slot 3 holds 22 below 20."""

    @pytest.fixture
    def search(self) -> TreeSearch:
        search = TreeSearch(9, 10, 5, 2)
        search.add(0, [20, 21], [0.5, 0.45])
        first, _ = search.grow()
        search.add(first, [22], [0.9])
        search.grow()
        return search

    def seen(self, kv: StackKv, search: TreeSearch, appended: list[int], accepted: tuple[int, ...]) -> int:
        sequence = a_sequence(1, TOKENS, [5, 6, 7], [])
        fill(kv, sequence)
        sequence.tokens += appended
        kv.observe(sequence, Outcome(DraftTree.root_only(9), accepted, tuple(appended), (0,)), search, 9)
        return kv.num_seen(sequence)

    def test_stay_where_rows_and_slots_agree(self, kv, search) -> None:
        assert self.seen(kv, search, [20, 22, 30], (1, 3)) == 12

    def test_are_computed_again_where_the_verified_tree_has_them_in_other_rows(self, kv, search) -> None:
        assert self.seen(kv, search, [20, 22, 30], (1, 2)) == 11
        assert self.seen(kv, search, [20, 22, 30], (2, 3)) == 10

    def test_are_computed_again_where_nothing_was_computed(self, kv, search) -> None:
        assert self.seen(kv, search, [20, 22, 30, 31], (1, 3, 4)) == 12

    def test_of_the_target_are_the_target_s(self, search) -> None:
        assert self.seen(StackKv("self", SIZE, SameVocabulary(100), is_target=True), search, [50, 51], ()) == 11


class Letters:
    """Tokens are letters; implements host.Vocabulary."""

    vocab_size = 128

    def token_bytes(self, token: int) -> bytes:
        return bytes([token])

    def is_special(self, token: int) -> bool:
        return False

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids, *, skip_special: bool = True) -> str:
        return bytes(ids).decode()


class TestPrivateKv:
    @pytest.fixture
    def kv(self) -> PrivateKv:
        layout = private_layout(KvStack("draft", 1, 1, 1, "fp32"), 2, 30, 16)
        assert layout.num_blocks == 4
        return PrivateKv(layout, 2, SameVocabulary(128), Letters(), Letters())

    def a_text(self, number: int, text: str) -> Sequence:
        return a_sequence(number, list(text.encode()), [], [])

    def test_regions_do_not_overlap_and_come_back(self, kv) -> None:
        texts = [self.a_text(i, "abc") for i in range(3)]
        assert [kv.is_ready(text) for text in texts] == [True, True, False]
        assert not set(kv.blocks(texts[0])) & set(kv.blocks(texts[1]))
        assert kv.capacity(texts[0]) == 32
        kv.end(0)
        assert kv.is_ready(texts[2])

    def test_only_what_is_held_is_seen(self, kv) -> None:
        text = self.a_text(0, "some text")
        assert kv.is_ready(text)
        assert kv.num_seen(text) == 0
        kv.advance(text, kv.length(text))
        assert kv.num_seen(text) == 8
        kv.write(text, 3, 5)
        assert kv.num_seen(text) == 3

    def test_a_draft_is_held_until_another_text_is_there(self, kv) -> None:
        text = self.a_text(0, "some text")
        assert kv.is_ready(text)
        kv.advance(text, 9)
        search = TreeSearch(ord("t"), 5, 5)
        for letter in "abc":
            search.add(search.frontier[0], [ord(letter)], [0.9])
            search.grow()
        kv.observe(text, NOTHING, search, 8)
        text.tokens += b"abz"
        assert kv.is_ready(text)
        assert (kv.length(text), kv.num_seen(text)) == (12, 11)
