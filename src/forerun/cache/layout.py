"""KvLayout: where keys and values live, as frozen data shared by planner, block pool and backends.

A block holds `block_size` consecutive token slots for every layer of every stack. Slot s of block b has the physical
number b * block_size + s. A stack is one model's or one trained head's layers; all stacks share block ids, and each has
a format of its own.
"""

from dataclasses import dataclass

CODEC_BYTES = {"bf16": 2, "fp32": 4}  # bytes of one stored number


@dataclass(frozen=True)
class KvStack:
    """KV of one model: L layers of G heads of size D, and how their numbers are stored, a key of CODEC_BYTES."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    codec: str

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one token over all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * CODEC_BYTES[self.codec]


@dataclass(frozen=True)
class KvLayout:
    """Size and format of the whole KV store."""

    num_blocks: int
    block_size: int
    stacks: tuple[KvStack, ...]

    @property
    def codecs(self) -> tuple[str, ...]:
        """Format of each stack."""
        return tuple(stack.codec for stack in self.stacks)

    @property
    def formats(self) -> dict[str, str]:
        """Format of each stack by its name, the target's first."""
        return {stack.name: stack.codec for stack in self.stacks}

    @property
    def bytes_per_block(self) -> int:
        return self.block_size * sum(stack.bytes_per_token for stack in self.stacks)

    @property
    def total_bytes(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def num_slots(self) -> int:
        return self.num_blocks * self.block_size
