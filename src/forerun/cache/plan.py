"""plan_kv: how many KV blocks to allocate, decided once, before anything is allocated."""

from dataclasses import dataclass

from forerun.cache.layout import CODEC_BYTES, KvLayout, KvStack
from forerun.errors import CapacityError, UsageError

DEFAULT_MODEL_LEN = 8192  # longest context when the user names none and the model allows more
DEFAULT_SEQUENCES = 4  # sequences of full length that the default cache holds
MEMORY_SHARE = 0.5  # of the available memory that the default cache may take


@dataclass(frozen=True)
class KvWish:
    """What the user asked for; None leaves it to the plan."""

    kv_cache_bytes: int | None = None
    max_model_len: int | None = None
    block_size: int = 16


def plan_kv(wish: KvWish, stacks: tuple[KvStack, ...], max_context: int, available: int | None) -> tuple[KvLayout, int]:
    """The layout and the longest sequence (prompt and output) it serves.

    A length that the user named is kept or refused; one that he left open shrinks to what memory holds.
    available  bytes free after the weights, None when unknown

    Raises UsageError for impossible wishes, CapacityError with the numbers when memory is too small.
    """
    for stack in stacks:
        if stack.codec not in CODEC_BYTES:
            raise UsageError(f"unknown KV format {stack.codec!r}: choose {' or '.join(CODEC_BYTES)}")
    if wish.max_model_len is not None and not 2 <= wish.max_model_len <= max_context:
        raise UsageError(f"max_model_len is {wish.max_model_len}, but the model allows 2 to {max_context}")
    if wish.kv_cache_bytes is not None and wish.kv_cache_bytes <= 0:
        raise UsageError(f"kv_cache_bytes must be positive, got {wish.kv_cache_bytes}")
    one_block = KvLayout(1, wish.block_size, stacks)
    length = wish.max_model_len or min(max_context, DEFAULT_MODEL_LEN)
    blocks_of_one = -(-length // wish.block_size)
    if wish.kv_cache_bytes is not None:
        num_blocks = wish.kv_cache_bytes // one_block.bytes_per_block
        limit = "kv_cache_bytes"
    else:
        num_blocks = blocks_of_one * DEFAULT_SEQUENCES
        if available is not None:
            num_blocks = min(num_blocks, int(available * MEMORY_SHARE) // one_block.bytes_per_block)
        limit = "the memory that is free"
    if num_blocks < blocks_of_one:
        capacity = num_blocks * wish.block_size
        if wish.max_model_len is not None or capacity < 2:
            needed_mb = blocks_of_one * one_block.bytes_per_block / 1e6
            raise CapacityError(
                f"{length} tokens of context need {needed_mb:.1f} MB of KV cache, "
                f"but {limit} allows {max(0, capacity)} tokens: lower max_model_len or raise kv_cache_bytes"
            )
        length = capacity
    return KvLayout(num_blocks, wish.block_size, stacks), length
