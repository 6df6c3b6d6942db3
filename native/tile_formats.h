// Packed weight formats: a model file's quantised numbers, bit for bit, in an order from which a tile of codes is
// unpacked just before it is multiplied. Inputs of a tile share one scale per output, so the codes themselves are
// multiplied, as the small whole numbers that they are, and the sums are scaled.
//
//   panel   16 outputs, all inputs; a row of groups
//   group   one tile, or the tiles of 256 inputs with a header where the file shares scales among them (K formats)
//   header  d of the 16 outputs, then dmin where the format has it, as float16
//   tile    16 outputs x 32 inputs, in Q6_K x 16: scales, then lines of 32 words of 16 bits:
//
//   Q4_0    d [16] float16                 4 lines of nibbles
//   Q4_1    d, m [16] float16              4 lines of nibbles
//   Q5_0    d [16] float16                 5 lines of fives
//   Q5_1    d, m [16] float16              5 lines of fives
//   Q8_0    d [16] float16                 16 pairs of bytes
//   Q4_K    scale [16], min [16] uint8     4 lines of nibbles
//   Q5_K    scale [16], min [16] uint8     5 lines of fives
//   Q6_K    scale [16] int8                3 lines of sixes
//
// In the order of pairs, word w of a line belongs to output w / 2. Together the lines hold the codes of 16 pairs of
// inputs (Q6_K: 8 pairs), and w % 2 says which of the pair:
//
//   nibbles  line l: pairs 4l .. 4l + 3, the lowest bits first
//   fives    line l: pairs 3l .. 3l + 2 in bits 0 .. 14, the lowest first; bit 15 is bit l of pair 15
//   sixes    line l: pairs 2l, 2l + 1 in bits 0 .. 11; bits 12 .. 15 of lines 0 and 1 are the lower four bits of pairs
//            6 and 7, those of line 2 their upper two
//
//   bytes    of every pair: [16] int8 of its first input, then of its second
//
// In the order of rows, for tile products whose first operand are the weights, dword j of a line belongs to the inputs
// j and 16 + j of 32, its lower word to j:
//
//   nibbles  line l: outputs 4l .. 4l + 3 in bits 1 .. 4, 5 .. 8, 9 .. 12, and 13 .. 15 with bit 0 behind them
//   fives    line l: outputs 3l .. 3l + 2 in bits 0 .. 14, the lowest first; bit 15 is bit l of output 15
//
// or without words, where what goes beyond bit 31 is in the other dword of the qword, from its bit 0 on:
//
//   sixes    two tiles together, 6 lines: 32 numbers, of output 0 the codes of input j and of 16 + j, of output 1 and
//            so on, five to a line from bits 5, 11, 17, 23 and 29 on; bits 3, 4 of lines 0 to 2 are number 30, of the
//            others 31
//   bytes    line l: the two of output 2l from bits 7 and 15 on, of output 2l + 1 from bits 23 and 31 on; 128 is added
//
// A weight is d q + m with d q exact in float32.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

enum class TileFormat { kBf16, kQ4_0, kQ4_1, kQ5_0, kQ5_1, kQ8_0, kQ4_K, kQ5_K, kQ6_K };

enum class TileOrder { kPairs, kRows };

struct TileShape {
    const char* name;  // as GGUF calls it
    int block_inputs;  // of a block in the file
    size_t block_bytes;
    int inputs;       // of a tile
    int group_tiles;  // tiles that share a header
    size_t header_bytes;
    size_t scale_bytes;  // of a tile, before its codes
    size_t tile_bytes;
    int zero_code;  // code of the number 0 before scaling
};

constexpr size_t kLineBytes = 64;

constexpr TileShape tile_shape(TileFormat format) {
    switch (format) {
        case TileFormat::kQ4_0:
            return {"Q4_0", 32, 18, 32, 1, 0, 32, 32 + 4 * kLineBytes, 8};
        case TileFormat::kQ4_1:
            return {"Q4_1", 32, 20, 32, 1, 0, 64, 64 + 4 * kLineBytes, 0};
        case TileFormat::kQ5_0:
            return {"Q5_0", 32, 22, 32, 1, 0, 32, 32 + 5 * kLineBytes, 16};
        case TileFormat::kQ5_1:
            return {"Q5_1", 32, 24, 32, 1, 0, 64, 64 + 5 * kLineBytes, 0};
        case TileFormat::kQ8_0:
            return {"Q8_0", 32, 34, 32, 1, 0, 32, 32 + 8 * kLineBytes, 0};
        case TileFormat::kQ4_K:
            return {"Q4_K", 256, 144, 32, 8, 64, 32, 32 + 4 * kLineBytes, 0};
        case TileFormat::kQ5_K:
            return {"Q5_K", 256, 176, 32, 8, 64, 32, 32 + 5 * kLineBytes, 0};
        case TileFormat::kQ6_K:
            return {"Q6_K", 256, 210, 16, 16, 32, 16, 16 + 3 * kLineBytes, 32};
        case TileFormat::kBf16:
            break;
    }
    return {"BF16", 1, 2, 32, 1, 0, 0, 16 * kLineBytes, 0};
}

constexpr int code_bits(TileFormat format) {
    switch (format) {
        case TileFormat::kQ4_0:
        case TileFormat::kQ4_1:
        case TileFormat::kQ4_K:
            return 4;
        case TileFormat::kQ5_0:
        case TileFormat::kQ5_1:
        case TileFormat::kQ5_K:
            return 5;
        case TileFormat::kQ6_K:
            return 6;
        case TileFormat::kQ8_0:
            return 8;
        case TileFormat::kBf16:
            break;
    }
    return 16;
}

// Something is added behind the scaled code.
constexpr bool has_minimum(TileFormat format) {
    return format == TileFormat::kQ4_1 || format == TileFormat::kQ5_1 || format == TileFormat::kQ4_K ||
           format == TileFormat::kQ5_K;
}

// Tiles of a row of `inputs` weights, padded to whole groups.
constexpr int tile_count(const TileShape& shape, int64_t inputs) {
    const int64_t group_inputs = int64_t{shape.inputs} * shape.group_tiles;
    return static_cast<int>((inputs + group_inputs - 1) / group_inputs * shape.group_tiles);
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
