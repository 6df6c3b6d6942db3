#include "packed_tiles.h"

#include <bit>
#include <cstring>

#include "bf16.h"
#include "half.h"
#include "kernel_table.h"

namespace forerun {

namespace {

#include "kernels/tile_values.inl.h"

// The numbers of a tile's inputs of one row, as the file's block has them.
struct RowGroup {
    uint8_t codes[kTileDepth] = {};
    uint16_t d = 0, m = 0;   // float16; of 256 inputs in the K formats
    uint8_t scales[2] = {};  // K formats: scale and minimum
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
RowGroup read_block(TileFormat format, const uint8_t* block) {
    RowGroup group;
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
RowGroup read_k_block(TileFormat format, const uint8_t* block, int part) {
    RowGroup group;
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

// Q6_K, 16 inputs from 16 * part on.
RowGroup read_q6_block(const uint8_t* block, int part) {
    RowGroup group;
    group.d = half_at(block + 208);
    group.scales[0] = block[192 + part];
    const int i = part / 2 % 4, half = part % 2 * 16;
    const uint8_t* nibbles = block + part / 8 * 64 + i % 2 * 32 + half;
    const uint8_t* pairs = block + 128 + part / 8 * 32 + half;
    for (int k = 0; k < 16; ++k) {
        const int nibble = i < 2 ? nibbles[k] & 15 : nibbles[k] >> 4;
        group.codes[k] = static_cast<uint8_t>(nibble | (pairs[k] >> 2 * i & 3) << 4);
    }
    return group;
}

RowGroup read_group(TileFormat format, const uint8_t* row, int tile) {
    const TileShape shape = tile_shape(format);
    const uint8_t* block = row + static_cast<size_t>(tile / shape.group_tiles) * shape.block_bytes;
    if (shape.group_tiles == 1) return read_block(format, block);
    const int part = tile % shape.group_tiles;
    return format == TileFormat::kQ6_K ? read_q6_block(block, part) : read_k_block(format, block, part);
}

// One word of every line: the codes of one input of all pairs. See tile_formats.h.
void pack_words(TileFormat format, const uint8_t (&codes)[kTileDepth / 2], uint16_t* lines) {
    switch (code_bits(format)) {
        case 4:
            for (int pair = 0; pair < 16; ++pair)
                lines[pair / 4] |= static_cast<uint16_t>(codes[pair] << pair % 4 * 4);
            break;
        case 5:
            for (int pair = 0; pair < 15; ++pair)
                lines[pair / 3] |= static_cast<uint16_t>(codes[pair] << pair % 3 * 5);
            for (int l = 0; l < 5; ++l)
                lines[l] |= static_cast<uint16_t>((codes[15] >> l & 1) << 15);
            break;
        default:
            for (int pair = 0; pair < 6; ++pair)
                lines[pair / 2] |= static_cast<uint16_t>(codes[pair] << pair % 2 * 6);
            for (int i = 0; i < 2; ++i) {
                lines[i] |= static_cast<uint16_t>((codes[6 + i] & 15) << 12);
                lines[2] |= static_cast<uint16_t>(codes[6 + i] >> 4 << (12 + 2 * i));
            }
    }
}

void pack_codes(TileFormat format, const RowGroup* groups, uint8_t* to) {
    const TileShape shape = tile_shape(format);
    if (format == TileFormat::kQ8_0) {
        for (int k = 0; k < kTileDepth; ++k) {
            for (int o = 0; o < kLanes; ++o)
                to[k * kLanes + o] = groups[o].codes[k];
        }
        return;
    }
    for (int word = 0; word < 2 * kLanes; ++word) {
        const uint8_t* codes = groups[word / 2].codes;
        uint8_t column[kTileDepth / 2] = {};
        for (int pair = 0; pair < shape.inputs / 2; ++pair)
            column[pair] = codes[2 * pair + word % 2];
        uint16_t lines[5] = {};
        pack_words(format, column, lines);
        const size_t num_lines = (shape.tile_bytes - shape.scale_bytes) / kLineBytes;
        for (size_t l = 0; l < num_lines; ++l)
            std::memcpy(to + l * kLineBytes + 2 * static_cast<size_t>(word), &lines[l], sizeof lines[l]);
    }
}

// ---- in rows: groups[o] has the codes of output o ----

// The inputs of words 0 .. 31.
int word_input(int word) {
    return word / 2 + 16 * (word % 2);
}

void put_word(uint8_t* line, int word, int value) {
    const uint16_t bits = static_cast<uint16_t>(value);
    std::memcpy(line + 2 * static_cast<size_t>(word), &bits, sizeof bits);
}

// A line as it is put together. Codes of sixteen inputs, one to a dword, from bit `bit` on; what does not fit is in the
// other dword of its qword, from bit 0.
struct TurnedLine {
    uint64_t qwords[kLineBytes / sizeof(uint64_t)] = {};

    void add(const uint8_t* codes, int bit) { add_bits(codes, 0, 255, bit); }
    // The bits of `mask` of every code shifted right.
    void add_bits(const uint8_t* codes, int shift, unsigned mask, int bit) {
        for (int q = 0; q < kLanes / 2; ++q) {
            const uint64_t even = codes[2 * q] >> shift & mask, odd = codes[2 * q + 1] >> shift & mask;
            qwords[q] |= std::rotl(even, bit) | std::rotl(odd, bit + 32);
        }
    }
    void store(uint8_t* to) const { std::memcpy(to, qwords, sizeof qwords); }
};

void pack_row_nibbles(const RowGroup* groups, uint8_t* to) {
    for (int line = 0; line < 4; ++line, to += kLineBytes, groups += 4) {
        for (int word = 0; word < kTileDepth; ++word) {
            const int k = word_input(word), last = groups[3].codes[k];
            put_word(to, word,
                     groups[0].codes[k] << 1 | groups[1].codes[k] << 5 | groups[2].codes[k] << 9 | (last & 7) << 13 |
                         last >> 3);
        }
    }
}

void pack_row_fives(const RowGroup* groups, uint8_t* to) {
    for (int line = 0; line < 5; ++line, to += kLineBytes) {
        const RowGroup* const three = groups + 3 * line;
        for (int word = 0; word < kTileDepth; ++word) {
            const int k = word_input(word), last = groups[15].codes[k] >> line & 1;
            put_word(to, word, three[0].codes[k] | three[1].codes[k] << 5 | three[2].codes[k] << 10 | last << 15);
        }
    }
}

void pack_row_bytes(const RowGroup* groups, uint8_t* to) {
    for (int l = 0; l < kLanes / 2; ++l, to += kLineBytes) {
        TurnedLine line;
        for (int i = 0; i < 2; ++i) {
            uint8_t codes[kTileDepth];
            for (int k = 0; k < kTileDepth; ++k)
                codes[k] = groups[2 * l + i].codes[k] ^ 128;
            line.add(codes, 7 + 16 * i);
            line.add(codes + kLanes, 15 + 16 * i);
        }
        line.store(to);
    }
}

// Codes of a step: step[0] of its first sixteen inputs, step[1] of its last. `to`: codes of the two tiles, `next` bytes
// apart
void pack_row_sixes(const RowGroup (&step)[2][kLanes], uint8_t* to, size_t next) {
    for (int l = 0; l < 6; ++l) {
        TurnedLine line;
        for (int field = 0; field < 5; ++field) {
            const int number = 5 * l + field;
            line.add(step[number % 2][number / 2].codes, 5 + 6 * field);
        }
        line.add_bits(step[l / 3][kLanes - 1].codes, 2 * (l % 3), 3, 3);
        line.store(to + static_cast<size_t>(l / 3) * next + static_cast<size_t>(l % 3) * kLineBytes);
    }
}

void pack_row_codes(TileFormat format, const RowGroup* groups, uint8_t* to) {
    switch (code_bits(format)) {
        case 4:
            return pack_row_nibbles(groups, to);
        case 5:
            return pack_row_fives(groups, to);
        default:
            return pack_row_bytes(groups, to);
    }
}

// Scales, before the codes.
void pack_scales(TileFormat format, const RowGroup* groups, uint8_t* header, uint8_t* tile) {
    const TileShape shape = tile_shape(format);
    const bool shared = shape.group_tiles > 1;
    uint8_t* const halves = shared ? header : tile;
    for (int o = 0; o < kLanes; ++o) {
        std::memcpy(halves + 2 * o, &groups[o].d, 2);
        if (has_minimum(format)) std::memcpy(halves + 32 + 2 * o, &groups[o].m, 2);
        if (!shared) continue;
        tile[o] = groups[o].scales[0];
        if (has_minimum(format)) tile[kLanes + o] = groups[o].scales[1];
    }
}

void read_groups(TileFormat format, const uint8_t* rows, size_t row_bytes, int count, int tile, RowGroup* groups) {
    for (int o = 0; o < kLanes; ++o)
        groups[o] = o < count ? read_group(format, rows + static_cast<size_t>(o) * row_bytes, tile) : RowGroup{};
}

}  // namespace

void pack_panel(TileFormat format, TileOrder order, const uint8_t* rows, size_t row_bytes, int count, int tiles,
                uint8_t* panel) {
    const TileShape shape = tile_shape(format);
    RowGroup of_step[2][kLanes];  // of an even tile and of the next
    for (int tile = 0; tile < tiles; ++tile) {
        uint8_t *const at = panel + tile_offset(shape, tile), *const codes = at + shape.scale_bytes;
        RowGroup* const groups = of_step[tile % 2];
        read_groups(format, rows, row_bytes, count, tile, groups);
        pack_scales(format, groups, panel + header_offset(shape, tile), at);
        if (order == TileOrder::kPairs) {
            pack_codes(format, groups, codes);
        } else if (format != TileFormat::kQ6_K) {
            pack_row_codes(format, groups, codes);
        } else if (tile % 2 == 1) {
            pack_row_sixes(of_step, codes - shape.tile_bytes, shape.tile_bytes);
        }
    }
}

void read_lane(TileFormat format, TileOrder order, const uint8_t* panel, int tiles, int lane, float* out) {
    const TileShape shape = tile_shape(format);
    for (int tile = 0; tile < tiles; ++tile, out += shape.inputs)
        tile_values(format, order, panel + header_offset(shape, tile), panel + tile_offset(shape, tile), tile, lane,
                    out);
}

}  // namespace forerun
