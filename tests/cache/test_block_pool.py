"""BlockPool: one state per block, all or nothing, blank ones last released first, cached ones least recently."""

import pytest

from forerun.cache.block_pool import BlockPool


def test_allocate_is_all_or_nothing():
    pool = BlockPool(3)
    assert pool.allocate(4) is None
    assert pool.num_free == 3
    assert sorted(pool.allocate(3)) == [0, 1, 2]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []
    assert (pool.num_free, pool.num_owned, pool.num_cached) == (0, 3, 0)


def test_shared_blocks_come_back_with_their_last_owner():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.share(block)
    assert pool.count(block) == 2
    pool.release([block])
    assert pool.num_owned == 1
    pool.release([block])
    assert pool.num_free == 2
    assert pool.is_blank(block)


def test_writable_means_alone_and_not_described():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    assert pool.is_writable(block)
    pool.share(block)
    assert not pool.is_writable(block)
    pool.release([block])
    assert pool.is_writable(block)
    pool.mark_indexed(block)
    assert not pool.is_writable(block)


def test_a_cached_block_can_be_shared_again_until_it_is_reused():
    forgotten = []
    pool = BlockPool(1, on_reuse=forgotten.append)
    (block,) = pool.allocate(1)
    pool.mark_indexed(block)
    pool.release([block])
    assert (pool.num_cached, pool.num_free, pool.is_blank(block)) == (1, 1, False)
    pool.share(block)
    assert (pool.num_cached, pool.num_owned) == (0, 1)
    pool.release([block])
    assert forgotten == []
    assert pool.allocate(1) == [block]
    assert forgotten == [block]
    assert pool.is_writable(block), "a reused block is still taken for an indexed one"


def test_blank_blocks_go_first_then_the_least_recently_released():
    forgotten = []
    pool = BlockPool(5, on_reuse=forgotten.append)
    blocks = pool.allocate(4)
    for block in blocks:
        pool.mark_indexed(block)
    pool.release(blocks[:2])  # the tail first: 1, 0
    pool.release(blocks[2:])  # then 3, 2
    pool.share(1)
    pool.release([1])  # used again, so it is the youngest
    assert pool.allocate(1) == [4]
    assert forgotten == []
    assert pool.allocate(4) == [0, 3, 2, 1] == forgotten


def test_a_blank_block_that_was_used_goes_before_one_that_never_was():
    pool = BlockPool(100)
    used = pool.allocate(3)
    for _ in range(50):  # draft slots come and go in every step: they must not walk through all of the memory
        pool.release(pool.allocate(2))
    pool.release(used)
    assert sorted(pool.allocate(5)) == [0, 1, 2, 3, 4]


def test_misuse_is_noticed():
    pool = BlockPool(2)
    with pytest.raises(ValueError, match="more often than it was taken"):
        pool.release([0])
    with pytest.raises(ValueError, match="nothing that could be shared"):
        pool.share(0)
    with pytest.raises(ValueError, match="owned by nobody"):
        pool.mark_indexed(0)


class TestCheck:
    def test_sound(self):
        pool = BlockPool(4)
        one, other = pool.allocate(2), pool.allocate(1)
        pool.share(one[0])
        pool.check([one, [*other, one[0]]])

    @pytest.mark.parametrize("owners", [[], [[0]], [[0, 1, 2]], [[0, 1], [1]]])
    def test_owners_that_do_not_add_up(self, owners):
        pool = BlockPool(4)
        assert pool.allocate(2) == [0, 1]
        with pytest.raises(AssertionError, match="block counts differ"):
            pool.check(owners)

    def test_damaged_state(self):
        for damage, message in (
            (lambda pool: pool._blank.pop(3), "lost"),
            (lambda pool: pool._cached.update({3: None}), "both blank and cached"),
            (lambda pool: pool._is_indexed.__setitem__(3, True), "an indexed block is blank"),
        ):
            pool = BlockPool(4)
            damage(pool)
            with pytest.raises(AssertionError, match=message):
                pool.check([])
