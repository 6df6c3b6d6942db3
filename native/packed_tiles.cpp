#include "packed_tiles.h"

#include <cstring>

#include "bf16.h"
#include "half.h"
#include "kernel_table.h"

namespace forerun {

namespace {

#include "kernels/tile_values.inl.h"

// The numbers of 32 inputs of one row, as the file's block has them.
struct GroupOf32 {
    uint8_t codes[kTileDepth];
    uint16_t d = 0, m = 0;   // float16; of 256 inputs in the K formats
    uint8_t scales[2] = {};  // K formats: scale and minimum, or the scales of both halves
};

void take_nibbles(const uint8_t* from, uint8_t* codes) {
    for (int i = 0; i < 16; ++i) {
        codes[i] = from[i] & 15;
        codes[16 + i] = from[i] >> 4;
    }
}

void add_fifth_bits(const uint8_t* from, uint8_t* codes) {
    uint32_t bits;
    std::memcpy(&bits, from, sizeof bits);
    for (int i = 0; i < kTileDepth; ++i)
        codes[i] |= static_cast<uint8_t>((bits >> i & 1) << 4);
}

uint16_t half_at(const uint8_t* from) {
    uint16_t half;
    std::memcpy(&half, from, sizeof half);
    return half;
}

// Blocks of 32: [d], [m], [fifth bits], codes.
GroupOf32 read_block(TileFormat format, const uint8_t* block) {
    GroupOf32 group;
    group.d = half_at(block);
    block += 2;
    if (format == TileFormat::kQ4_1 || format == TileFormat::kQ5_1) {
        group.m = half_at(block);
        block += 2;
    }
    const bool five = format == TileFormat::kQ5_0 || format == TileFormat::kQ5_1;
    if (format == TileFormat::kQ8_0) {
        std::memcpy(group.codes, block, kTileDepth);
    } else {
        take_nibbles(block + (five ? 4 : 0), group.codes);
        if (five) add_fifth_bits(block, group.codes);
    }
    return group;
}

// Q4_K and Q5_K, sub-block `part` of 8. See models/files/dequantise.py for where the file has its bits.
GroupOf32 read_k_block(TileFormat format, const uint8_t* block, int part) {
    GroupOf32 group;
    group.d = half_at(block);
    group.m = half_at(block + 2);
    const uint8_t *first = block + 4, *second = block + 8, *third = block + 12;
    const int i = part % 4;
    group.scales[0] = part < 4 ? first[i] & 63 : (third[i] & 15) | (first[i] >> 2 & 48);
    group.scales[1] = part < 4 ? second[i] & 63 : third[i] >> 4 | (second[i] >> 2 & 48);
    const bool five = format == TileFormat::kQ5_K;
    const uint8_t* nibbles = block + (five ? 48 : 16) + part / 2 * kTileDepth;
    for (int k = 0; k < kTileDepth; ++k) {
        group.codes[k] = part % 2 ? nibbles[k] >> 4 : nibbles[k] & 15;
        if (five) group.codes[k] |= static_cast<uint8_t>((block[16 + k] >> part & 1) << 4);
    }
    return group;
}

// Q6_K, 32 inputs from 32 * part on.
GroupOf32 read_q6_block(const uint8_t* block, int part) {
    GroupOf32 group;
    group.d = half_at(block + 208);
    group.scales[0] = block[192 + 2 * part];
    group.scales[1] = block[192 + 2 * part + 1];
    const int i = part % 4;
    const uint8_t* nibbles = block + part / 4 * 64 + i % 2 * kTileDepth;
    const uint8_t* pairs = block + 128 + part / 4 * kTileDepth;
    for (int k = 0; k < kTileDepth; ++k) {
        const int nibble = i < 2 ? nibbles[k] & 15 : nibbles[k] >> 4;
        group.codes[k] = static_cast<uint8_t>(nibble | (pairs[k] >> 2 * i & 3) << 4);
    }
    return group;
}

GroupOf32 read_group(TileFormat format, const uint8_t* row, int tile) {
    const TileShape shape = tile_shape(format);
    const uint8_t* block = row + static_cast<size_t>(tile / shape.group_tiles) * shape.block_bytes;
    if (shape.group_tiles == 1) return read_block(format, block);
    const int part = tile % shape.group_tiles;
    return format == TileFormat::kQ6_K ? read_q6_block(block, part) : read_k_block(format, block, part);
}

// Bits `shift` .. of every code, `width` wide, into words that hold 16 / width outputs each.
void pack_bits(const GroupOf32* groups, const uint8_t* order, int shift, int width, uint8_t* to) {
    const int per_word = 16 / width;
    for (int line = 0; line < kLanes / per_word; ++line) {
        uint16_t words[kTileDepth] = {};
        for (int i = 0; i < per_word; ++i) {
            const uint8_t* codes = groups[line * per_word + i].codes;
            for (int k = 0; k < kTileDepth; ++k)
                words[k] |= static_cast<uint16_t>((codes[order[k]] >> shift & ((1 << width) - 1)) << width * i);
        }
        std::memcpy(to + static_cast<size_t>(line) * sizeof words, words, sizeof words);
    }
}

void pack_tile(TileFormat format, const GroupOf32* groups, uint8_t* header, uint8_t* tile) {
    const TileShape shape = tile_shape(format);
    const bool shared = shape.group_tiles > 1;
    uint8_t* const halves = shared ? header : tile;
    const bool has_minimum = (shared ? shape.header_bytes : shape.scale_bytes) == 64;
    for (int o = 0; o < kLanes; ++o) {
        std::memcpy(halves + 2 * o, &groups[o].d, 2);
        if (has_minimum) std::memcpy(halves + 32 + 2 * o, &groups[o].m, 2);
        if (!shared) continue;
        tile[o] = groups[o].scales[0];
        tile[kLanes + o] = groups[o].scales[1];
    }
    uint8_t* codes = tile + shape.scale_bytes;
    uint8_t order[kTileDepth];
    for (int k = 0; k < kTileDepth; ++k)
        order[k] = static_cast<uint8_t>(format == TileFormat::kQ6_K ? k / 2 + k % 2 * kLanes : k);
    const int upper_bits = static_cast<int>((shape.tile_bytes - shape.scale_bytes - kNibbleBytes) / kBitBytes);
    if (format == TileFormat::kQ8_0) {
        for (int o = 0; o < kLanes; ++o)
            std::memcpy(codes + o * kTileDepth, groups[o].codes, kTileDepth);
        return;
    }
    if (upper_bits > 0) pack_bits(groups, order, 4, upper_bits, codes);
    pack_bits(groups, order, 0, 4, codes + upper_bits * kBitBytes);
}

}  // namespace

void pack_panel(TileFormat format, const uint8_t* rows, size_t row_bytes, int count, int tiles, uint8_t* panel) {
    const TileShape shape = tile_shape(format);
    for (int tile = 0; tile < tiles; ++tile) {
        GroupOf32 groups[kLanes];
        for (int o = 0; o < kLanes; ++o) {
            if (o < count) {
                groups[o] = read_group(format, rows + static_cast<size_t>(o) * row_bytes, tile);
            } else {
                groups[o] = GroupOf32{};
            }
        }
        pack_tile(format, groups, panel + header_offset(shape, tile), panel + tile_offset(shape, tile));
    }
}

void read_lane(TileFormat format, const uint8_t* panel, int tiles, int lane, float* out) {
    const TileShape shape = tile_shape(format);
    for (int tile = 0; tile < tiles; ++tile, out += kTileDepth) {
        tile_values(format, panel + header_offset(shape, tile), panel + tile_offset(shape, tile), lane, out);
        for (int k = 0; k < kTileDepth; ++k)
            out[k] = float_from_bf16(bf16_from_float(out[k]));
    }
}

}  // namespace forerun
