// Packed weight formats: a model file's quantised numbers, bit for bit, in an order from which a tile of 16 outputs x
// 32 inputs is unpacked to bfloat16 just before it is multiplied.
//
//   panel   16 outputs, all inputs; a row of groups
//   group   one tile, or 8 tiles with a header where the file shares scales among 256 inputs (the K formats)
//   header  d of the 16 outputs, then dmin where the format has it, as float16
//   tile    scales, then codes:
//
//   Q4_0    d [16] float16                              lines of nibbles
//   Q4_1    d, m [16] float16                           lines of nibbles
//   Q5_0    d [16] float16                              fifth bits, lines of nibbles
//   Q5_1    d, m [16] float16                           fifth bits, lines of nibbles
//   Q8_0    d [16] float16                              [16][32] int8
//   Q4_K    scale [16], min [16] uint8                  lines of nibbles
//   Q5_K    scale [16], min [16] uint8                  fifth bits, lines of nibbles
//   Q6_K    scale [2][16] int8, one per 16 inputs       pairs of bits, lines of nibbles
//
//   lines of nibbles  4 lines of 32 words: word k of line l holds input k of outputs 4l .. 4l+3, the lowest nibble
//   first fifth bits        32 words: bit o of word k is that of input k of output o pairs of bits     2 lines of 32
//   words: word k of line l holds those of outputs 8l .. 8l+7, the lowest pair first For Q6_K word k is input k/2 + 16
//   (k % 2): the halves of 16 inputs with a scale each are the halves of dwords.
//
// A weight is bf16(d q + m) with d q exact in float32, so every way to compute it gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

enum class TileFormat { kBf16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

struct TileShape {
    const char* name;  // as GGUF calls it
    int block_inputs;  // of a block in the file
    size_t block_bytes;
    int group_tiles;  // tiles that share a header
    size_t header_bytes;
    size_t scale_bytes;  // of a tile, before its codes
    size_t tile_bytes;
    int zero_code;  // code of the number 0 before scaling
};

constexpr size_t kNibbleBytes = 256;  // of a tile
constexpr size_t kBitBytes = 64;      // for every bit above the nibble

constexpr TileShape tile_shape(TileFormat format) {
    switch (format) {
        case TileFormat::kQ4_0:
            return {"Q4_0", 32, 18, 1, 0, 32, 32 + kNibbleBytes, 8};
        case TileFormat::kQ4_1:
            return {"Q4_1", 32, 20, 1, 0, 64, 64 + kNibbleBytes, 0};
        case TileFormat::kQ5_0:
            return {"Q5_0", 32, 22, 1, 0, 32, 32 + kBitBytes + kNibbleBytes, 16};
        case TileFormat::kQ5_1:
            return {"Q5_1", 32, 24, 1, 0, 64, 64 + kBitBytes + kNibbleBytes, 0};
        case TileFormat::kQ8_0:
            return {"Q8_0", 32, 34, 1, 0, 32, 32 + 512, 0};
        case TileFormat::kQ4_K:
            return {"Q4_K", 256, 144, 8, 64, 32, 32 + kNibbleBytes, 0};
        case TileFormat::kQ5_K:
            return {"Q5_K", 256, 176, 8, 64, 32, 32 + kBitBytes + kNibbleBytes, 0};
        case TileFormat::kQ6_K:
            return {"Q6_K", 256, 210, 8, 32, 32, 32 + 2 * kBitBytes + kNibbleBytes, 32};
        case TileFormat::kBf16:
            break;
    }
    return {"BF16", 1, 2, 1, 0, 0, 1024, 0};
}

// Something is added behind the scaled code.
constexpr bool has_minimum(TileFormat format) {
    return format == TileFormat::kQ4_1 || format == TileFormat::kQ5_1 || format == TileFormat::kQ4_K ||
           format == TileFormat::kQ5_K;
}
// Bits of a code above the nibble.
constexpr int upper_bits(TileFormat format) {
    switch (format) {
        case TileFormat::kQ5_0:
        case TileFormat::kQ5_1:
        case TileFormat::kQ5_K:
            return 1;
        case TileFormat::kQ6_K:
            return 2;
        default:
            return 0;
    }
}

constexpr size_t group_bytes(const TileShape& shape) {
    return shape.header_bytes + static_cast<size_t>(shape.group_tiles) * shape.tile_bytes;
}

// Where a tile of a panel and its group's header begin, in bytes.
constexpr size_t header_offset(const TileShape& shape, int tile) {
    return static_cast<size_t>(tile / shape.group_tiles) * group_bytes(shape);
}
constexpr size_t tile_offset(const TileShape& shape, int tile) {
    return header_offset(shape, tile) + shape.header_bytes +
           static_cast<size_t>(tile % shape.group_tiles) * shape.tile_bytes;
}

}  // namespace forerun
