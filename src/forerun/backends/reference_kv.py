"""The numpy backend's KV memory, and which of its slots a row sees."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from forerun.batch import Batch
from forerun.cache.layout import KvLayout
from forerun.errors import UsageError

Float32 = npt.NDArray[np.float32]
Int32 = npt.NDArray[np.int32]


def round_to_bf16(x: Float32) -> Float32:
    """x rounded to bfloat16 (nearest, ties to even; float32 denormals to signed zero), kept as float32.

    The same function as in the native store. NaN stays NaN: its quiet bit is set, so the cut cannot make it infinite.
    """
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    rounded = np.where((bits & 0x7F800000) == 0, bits & 0x80000000, rounded)
    rounded = np.where((bits & 0x7FFFFFFF) > 0x7F800000, (bits & 0xFFFF0000) | 0x00400000, rounded)
    return rounded.astype(np.uint32).view(np.float32)


ENCODE: dict[str, Callable[[Float32], Float32]] = {"fp32": lambda x: x, "bf16": round_to_bf16}


class KvStore:
    """Keys and values of all stacks as plain float32 arrays that hold what each stack's codec can hold.

    keys, values  per layer, those of the first stack first: [slots, G, D] float32
    """

    def __init__(self, layout: KvLayout) -> None:
        for codec in layout.codecs:
            if codec not in ENCODE:
                raise UsageError(f"KV codec {codec!r} is unknown; choose one of {', '.join(sorted(ENCODE))}")
        layers = [stack for stack in layout.stacks for _ in range(stack.num_layers)]
        shapes = [(layout.num_slots, stack.num_kv_heads, stack.head_dim) for stack in layers]
        self.layout = layout
        self._encode = [ENCODE[stack.codec] for stack in layers]
        self.keys = [np.zeros(shape, np.float32) for shape in shapes]
        self.values = [np.zeros(shape, np.float32) for shape in shapes]

    @property
    def num_bytes(self) -> int:
        """Bytes held: float32 whatever the codecs."""
        return sum(array.nbytes for array in (*self.keys, *self.values))

    def write(self, layer: int, slots: Int32, k: Float32, v: Float32) -> None:
        """Encode k and v [R, G * D] into `slots` of `layer`."""
        encode = self._encode[layer]
        shape = (len(slots), *self.keys[layer].shape[1:])
        self.keys[layer][slots] = encode(k).reshape(shape)
        self.values[layer][slots] = encode(v).reshape(shape)

    def copy(self, source: slice | int, target: slice | int) -> None:
        """Copy slots in every layer."""
        for array in (*self.keys, *self.values):
            array[target] = array[source]

    def clear(self, slots: slice) -> None:
        """Zero slots in every layer."""
        for array in (*self.keys, *self.values):
            array[slots] = 0.0

    def block(self, block: int) -> slice:
        """Slots of a block."""
        return slice(block * self.layout.block_size, (block + 1) * self.layout.block_size)


def visible_slots(batch: Batch, row: int, block_size: int) -> Int32:
    """Physical slots of the keys that `row` sees, in the order they are summed.

    Context first, then, for a row of a branching tree, its ancestors below the root and itself. A parent's row comes
    before its child's, so ascending rows are ascending depths and the order is that of plain decoding.
    """
    sequence = int(np.searchsorted(batch.query_start, row, side="right")) - 1
    ancestors = int(batch.ancestors[row])
    root = int(batch.tree_root[sequence])
    last = root if ancestors else int(batch.positions[row])
    nodes = [root + i for i in range(1, 64) if ancestors >> i & 1]
    logical = np.array([*range(last + 1), *nodes])
    slots = batch.block_table[sequence][logical // block_size] * block_size + logical % block_size
    return np.asarray(slots, np.int32)
