"""The KV plan: sizes are decided before anything is allocated, impossible wishes are refused with the numbers."""

from dataclasses import replace

import pytest

from forerun.cache.layout import KvStack
from forerun.cache.plan import DEFAULT_MODEL_LEN, DEFAULT_SEQUENCES, KvWish, plan_kv
from forerun.errors import CapacityError, UsageError

STACK = KvStack("target", num_layers=2, num_kv_heads=3, head_dim=64, codec="bf16")
BLOCK_BYTES = 16 * STACK.bytes_per_token


def test_without_wishes_the_cache_holds_four_full_sequences() -> None:
    layout, length = plan_kv(KvWish(), (STACK,), 1000, None)
    assert length == 1000
    assert layout.num_blocks == DEFAULT_SEQUENCES * 63  # 63 blocks of 16 hold 1000 tokens
    assert layout.total_bytes == layout.num_blocks * BLOCK_BYTES


def test_a_long_context_is_cut_to_the_default_unless_it_is_asked_for() -> None:
    assert plan_kv(KvWish(), (STACK,), 100_000, None)[1] == DEFAULT_MODEL_LEN
    assert plan_kv(KvWish(max_model_len=20_000), (STACK,), 100_000, None)[1] == 20_000


def test_a_length_left_open_shrinks_to_memory_and_a_named_one_is_refused() -> None:
    available = 20 * BLOCK_BYTES  # half of it may be taken
    layout, length = plan_kv(KvWish(), (STACK,), 1000, available)
    assert (layout.num_blocks, length) == (10, 160)
    with pytest.raises(CapacityError, match=r"1000 tokens .* 1\.5 MB .* allows 160 tokens"):
        plan_kv(KvWish(max_model_len=1000), (STACK,), 1000, available)


def test_a_cache_of_given_size_is_never_larger() -> None:
    layout, length = plan_kv(KvWish(kv_cache_bytes=7 * BLOCK_BYTES + 5), (STACK,), 1000, None)
    assert (layout.num_blocks, length) == (7, 112)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (KvWish(max_model_len=1), "max_model_len is 1"),
        (KvWish(max_model_len=1001), "max_model_len is 1001"),
        (KvWish(kv_cache_bytes=0), "kv_cache_bytes must be positive"),
    ],
)
def test_impossible_wishes_are_refused(wish: KvWish, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan_kv(wish, (STACK,), 1000, None)


def test_an_unknown_format_of_any_stack_is_refused() -> None:
    stacks = (STACK, replace(STACK, name="draft", codec="int3"))
    with pytest.raises(UsageError, match="unknown KV format 'int3'"):
        plan_kv(KvWish(), stacks, 1000, None)


def test_stacks_of_different_formats_share_a_block() -> None:
    stacks = (STACK, replace(STACK, name="draft", codec="fp32"))
    layout, _ = plan_kv(KvWish(kv_cache_bytes=21 * BLOCK_BYTES), stacks, 100, None)
    assert layout.num_blocks == 7  # a number of float32 takes twice as much as one of bfloat16
    assert layout.total_bytes == 21 * BLOCK_BYTES


def test_memory_for_less_than_one_block_is_refused() -> None:
    with pytest.raises(CapacityError, match="allows 0 tokens"):
        plan_kv(KvWish(kv_cache_bytes=10), (STACK,), 1000, None)
