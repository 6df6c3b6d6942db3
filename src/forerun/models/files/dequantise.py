"""Stored formats to float32, in numpy, bit for bit what the `gguf` package computes, several times faster.

Used while a model loads. Blocks are decoded in groups that stay in the CPU's cache, into an output allocated once. A
format without a decoder here goes through the package.

Block layouts (d, m: float16 scale and minimum; elements in order unless a line says otherwise)
    Q8_0  d, 32 x int8                           q d
    Q4_0  d, 16 bytes                            (q - 8) d           low nibbles are elements 0-15, high ones 16-31
    Q4_1  d, m, 16 bytes                         q d + m
    Q5_0  d, 32 high bits, 16 bytes              (q - 16) d
    Q5_1  d, m, 32 high bits, 16 bytes           q d + m
    Q4_K  d, dmin, 12 bytes of scales, 128 bytes       8 sub-blocks of 32: q (d s) - dmin m, s and m 6 bits
    Q5_K  d, dmin, 12 bytes of scales, 32 bytes of high bits, 128 bytes   likewise
    Q6_K  128 bytes of low nibbles, 64 of high pairs, 16 int8 scales, d    16 sub-blocks of 16: (q - 32) (d s)
"""

from collections.abc import Callable

import gguf
import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
UInt8 = npt.NDArray[np.uint8]

GROUP = 1 << 16  # numbers decoded at a time: 256 kB of float32

# byte -> its 8 bits as 8 bytes, lowest bit first, each worth 16: the fifth bit of a 5-bit number
FIFTH_BITS = (np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") << 4).view(np.uint64)[
    :, 0
]


def dequantise(raw: UInt8, kind: gguf.GGMLQuantizationType, count: int) -> Float32:
    """`count` numbers stored in `raw` (flat bytes) as flat float32."""
    if kind.name in PLAIN:
        return PLAIN[kind.name](raw)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = raw.reshape(count // block_size, block_bytes)
    decode = DECODERS.get(kind.name)
    if decode is None:
        decoded: Float32 = gguf.quants.dequantize(blocks, kind).reshape(-1)
        return decoded
    out = np.empty((len(blocks), block_size), np.float32)
    step = max(1, GROUP // block_size)
    for start in range(0, len(blocks), step):
        decode(blocks[start : start + step], out[start : start + step])
    return out.reshape(-1)


def bf16_to_float32(raw: UInt8) -> Float32:
    """bfloat16 bytes as float32: the upper half of its bits."""
    return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)


PLAIN: dict[str, Callable[[UInt8], Float32]] = {
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": bf16_to_float32,
}


def _halves(blocks: UInt8, start: int) -> Float32:
    """[n, 1] float32 from the float16 at byte `start` of every block."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: UInt8) -> UInt8:
    """[n, 2 w] from packed [n, w]: all low nibbles of a block, then all high ones."""
    width = packed.shape[1]
    out = np.empty((len(packed), 2 * width), np.uint8)
    np.bitwise_and(packed, 15, out=out[:, :width])
    np.right_shift(packed, 4, out=out[:, width:])
    return out


def _five_bits(blocks: UInt8, start: int) -> UInt8:
    """[n, 32] numbers 0-31: high bits at byte `start` of a block, nibbles after them."""
    high = FIFTH_BITS[blocks[:, start : start + 4]].view(np.uint8)
    return np.bitwise_or(_nibbles(blocks[:, start + 4 :]), high, out=high)


def _q8_0(blocks: UInt8, out: Float32) -> None:
    np.copyto(out, blocks[:, 2:].view(np.int8))
    out *= _halves(blocks, 0)


def _q4_0(blocks: UInt8, out: Float32) -> None:
    np.copyto(out, _nibbles(blocks[:, 2:]))
    out -= 8.0
    out *= _halves(blocks, 0)


def _q4_1(blocks: UInt8, out: Float32) -> None:
    np.copyto(out, _nibbles(blocks[:, 4:]))
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)


def _q5_0(blocks: UInt8, out: Float32) -> None:
    np.copyto(out, _five_bits(blocks, 2))
    out -= 16.0
    out *= _halves(blocks, 0)


def _q5_1(blocks: UInt8, out: Float32) -> None:
    np.copyto(out, _five_bits(blocks, 4))
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)


def _scales_and_minima(blocks: UInt8) -> tuple[Float32, Float32]:
    """d s and dmin m of the 8 sub-blocks of Q4_K and Q5_K: two [n, 8, 1].

    Bytes 4-15 hold twelve groups: the low 6 bits of 0-3 are scales 0-3, of 4-7 minima 0-3; 8-11 hold the low nibbles of
    scales 4-7 and minima 4-7, whose upper two bits are the top bits of bytes 0-3 and 4-7.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([first & 63, (third & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (third >> 4) | ((second >> 2) & 48)], axis=1)
    return (_halves(blocks, 0) * scales)[:, :, None], (_halves(blocks, 2) * minima)[:, :, None]


def _pairs_of_sub_blocks(packed: UInt8) -> UInt8:
    """[n, 8, 32] from packed [n, 128]: 32 bytes hold sub-block 2i in their low nibbles, 2i + 1 in their high ones."""
    groups = packed.reshape(len(packed), 4, 1, 32)
    return np.concatenate([groups & 15, groups >> 4], axis=2).reshape(len(packed), 8, 32)


def _q4_k(blocks: UInt8, out: Float32) -> None:
    scales, minima = _scales_and_minima(blocks)
    y = out.reshape(len(blocks), 8, 32)
    np.copyto(y, _pairs_of_sub_blocks(blocks[:, 16:]))
    y *= scales
    y -= minima


def _q5_k(blocks: UInt8, out: Float32) -> None:
    scales, minima = _scales_and_minima(blocks)
    y = out.reshape(len(blocks), 8, 32)
    bit_of_sub_block = np.arange(8, dtype=np.uint8)[:, None]  # byte j holds element j's high bit of all 8 sub-blocks
    high = (blocks[:, None, 16:48] >> bit_of_sub_block & 1) << 4
    np.copyto(y, _pairs_of_sub_blocks(blocks[:, 48:]) | high)
    y *= scales
    y -= minima


def _q6_k(blocks: UInt8, out: Float32) -> None:
    """Each half of 128: element 32 i + j has its low nibble in byte j of (i even: bytes 0-31, odd: 32-63), low half for
    i < 2, and its high pair at bits 2 i of byte j."""
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 1, 64)
    q = np.concatenate([low & 15, low >> 4], axis=2).reshape(n, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    q |= (blocks[:, 128:192].reshape(n, 2, 1, 32) >> shifts & 3) << 4
    y = out.reshape(n, 16, 16)
    np.copyto(y, q.reshape(n, 16, 16))
    y -= 32.0
    y *= (_halves(blocks, 208) * blocks[:, 192:208].view(np.int8))[:, :, None]


DECODERS: dict[str, Callable[[UInt8, Float32], None]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
