"""PrefixIndex: whole and partial hits at block borders, salts, collisions, forgetting."""

import pytest

from forerun.cache.prefix_index import PrefixIndex, PrefixMatch
from forerun.sequence import Request, SamplingParams, Sequence
from tests.fakes import Setup, prompt_of, request, run

SIZE = 16
TEXT = list(range(100, 200))
NOTHING = PrefixMatch((), 0)


def publish(index, tokens, blocks, salt="", upto=None):
    wanted = Request("r", tuple(tokens), SamplingParams(seed=0), salt=salt)
    sequence = Sequence(0, wanted, 0, 0, (0, 0), list(tokens), len(tokens), block_ids=list(blocks))
    return index.publish(sequence, len(tokens) if upto is None else upto)


@pytest.fixture
def index():
    index = PrefixIndex(SIZE, ("bf16",))
    assert publish(index, TEXT[:48], [7, 2, 5]) == [7, 2, 5]
    return index


@pytest.mark.parametrize("length", [0, 1, 15, 16, 17, 31, 32, 33, 47, 48])
def test_every_prefix_is_found_to_the_token(index, length):
    blocks = (7, 2, 5)[: -(-length // SIZE)]
    assert index.match(TEXT[:length]) == PrefixMatch(blocks, length)
    assert index.match([*TEXT[:length], 1, 1, 1]) == PrefixMatch(blocks, length)
    assert index.match(TEXT, limit=length) == PrefixMatch(blocks, length)


def test_nothing_beyond_what_is_known(index):
    assert index.match(TEXT) == PrefixMatch((7, 2, 5), 48)
    assert index.match([1, *TEXT]) == NOTHING
    assert index.match(TEXT[16:]) == NOTHING  # the same tokens at other positions


def test_the_best_of_several_partly_equal_blocks_wins(index):
    publish(index, [*TEXT[:20], *[1] * 12], [7, 9])
    publish(index, [*TEXT[:25], *[1] * 7], [7, 11])
    assert index.match([*TEXT[:23], 1, 1]) in (PrefixMatch((7, 2), 23), PrefixMatch((7, 11), 23))  # equally good
    assert index.match([*TEXT[:20], 1, 1]) == PrefixMatch((7, 9), 22)
    assert index.match([*TEXT[:25], 1, 1]) == PrefixMatch((7, 11), 27)


@pytest.mark.parametrize(("upto", "new"), [(0, []), (15, []), (16, [7]), (31, [7]), (32, [7, 2]), (48, [7, 2, 5])])
def test_only_full_blocks_are_published(upto, new):
    assert publish(PrefixIndex(SIZE, ("bf16",)), TEXT[:48], [7, 2, 5], upto=upto) == new


def test_publishing_in_steps_equals_publishing_at_once():
    index = PrefixIndex(SIZE, ("bf16",))
    wanted = Request("r", tuple(TEXT[:48]), SamplingParams(seed=0))
    sequence = Sequence(0, wanted, 0, 0, (0, 0), TEXT[:48], 48, block_ids=[7, 2, 5])
    assert [index.publish(sequence, upto) for upto in (10, 16, 17, 40, 48, 48)] == [[], [7], [], [2], [5], []]
    assert index.match(TEXT) == PrefixMatch((7, 2, 5), 48)


def test_a_prefix_that_is_known_keeps_its_block(index):
    assert publish(index, TEXT[:64], [1, 3, 4, 6]) == [6]
    assert index.match(TEXT) == PrefixMatch((7, 2, 5, 6), 64)
    assert len(index) == 4


def test_salts_do_not_meet(index):
    assert index.match(TEXT, salt="tenant") == NOTHING
    publish(index, TEXT[:16], [9], salt="tenant")
    assert index.match(TEXT, salt="tenant") == PrefixMatch((9,), 16)
    assert index.match(TEXT) == PrefixMatch((7, 2, 5), 48)
    assert index.match(TEXT, salt="tenan") == NOTHING
    assert index.match(TEXT, salt="\ud800") == NOTHING  # not encodable as UTF-8, still a salt


def test_control_an_index_that_ignores_the_salt_is_found(monkeypatch):
    def hits():
        engine = Setup().engine()
        prompt = prompt_of(1, 40)
        salted = [request(prompt), request(prompt)]
        salted = [type(r)(r.id, r.prompt, r.params, r.eos_ids, salt=salt) for r, salt in zip(salted, "ab", strict=True)]
        return [run(engine, [r])[0][0].stats.cached_prompt_tokens for r in salted]

    assert hits() == [0, 0]
    origin = PrefixIndex._origin
    monkeypatch.setattr(PrefixIndex, "_origin", lambda self, salt: origin(self, ""))
    assert hits() == [0, 39]


@pytest.mark.parametrize(
    ("codecs", "size"), [(("fp32",), SIZE), (("bf16",), 32), (("bf16", "fp32"), SIZE), (("bf16", "bf16"), SIZE)]
)
def test_formats_have_different_origins(codecs, size):
    assert PrefixIndex(codecs=codecs, block_size=size)._origin("") != PrefixIndex(SIZE, ("bf16",))._origin("")


class TestForget:
    def test_a_tail(self, index):
        index.forget(5)
        assert index.match(TEXT) == PrefixMatch((7, 2), 32)

    def test_a_head_makes_the_rest_unreachable_until_it_is_published_again(self, index):
        index.forget(7)
        assert index.match(TEXT) == NOTHING
        assert publish(index, TEXT[:32], [8, 1]) == [8]
        assert index.match(TEXT) == PrefixMatch((8, 2, 5), 48)

    def test_everything_leaves_nothing_behind(self, index):
        for block in (2, 7, 5, 5, 99):
            index.forget(block)
        assert len(index) == 0
        assert not index._by_block
        assert not index._children


class TestCollisions:
    """With a digest that always collides, no text may ever get another text's blocks."""

    @pytest.fixture
    def weak(self, monkeypatch):
        monkeypatch.setattr(PrefixIndex, "_extend", staticmethod(lambda parent, tokens: b"same"))
        return PrefixIndex(SIZE, ("bf16",))

    def test_same_digest_other_tokens(self, weak):
        publish(weak, TEXT[:16], [7])
        assert weak.match([1] * 16) == NOTHING
        assert publish(weak, [1] * 32, [3, 4]) == []
        assert weak.match([1] * 32) == NOTHING
        assert weak.match(TEXT[:16]) == PrefixMatch((7,), 16)

    def test_a_chain_does_not_grow_behind_a_collision(self, monkeypatch):
        """Only the first block collides: what follows it must not be published under the other text."""
        extend = PrefixIndex._extend
        first = lambda parent, tokens: b"same" if tokens[0] in (1, 100) else extend(parent, tokens)  # noqa: E731
        monkeypatch.setattr(PrefixIndex, "_extend", staticmethod(first))
        index = PrefixIndex(SIZE, ("bf16",))
        publish(index, TEXT[:16], [7])
        publish(index, [*[1] * 16, *TEXT[16:32]], [3, 4])
        assert index.match(TEXT[:32]) == PrefixMatch((7,), 16)
