// One output's weights of a packed tile in plain C++, as float32: the definition of the formats.

FORERUN_INLINE uint16_t word_at(const uint8_t* from, int word) {
    uint16_t value;
    __builtin_memcpy(&value, from + 2 * word, sizeof value);
    return value;
}

// Qword `qword` turned right.
FORERUN_INLINE uint64_t turned_qword(const uint8_t* from, int qword, int bits) {
    uint64_t value;
    __builtin_memcpy(&value, from + 8 * qword, sizeof value);
    return bits ? value >> bits | value << (64 - bits) : value;
}

// The code of input `k` of output `lane` in a step of 32 inputs of TileOrder::kRows. `first`, `second`: codes of its
// tiles, the same where it has but one.
FORERUN_INLINE int row_code(TileFormat format, const uint8_t* first, const uint8_t* second, int lane, int k) {
    const int dword = k % 16, half = k / 16;
    const auto word = [&](int l) {
        return int{word_at(first + static_cast<size_t>(l) * kLineBytes, 2 * dword + half)};
    };
    // Bits of a dword from `bit` on; what is behind its end is in the other dword of its qword.
    const auto turned = [&](const uint8_t* line, int bit) {
        return static_cast<int>(turned_qword(line, dword / 2, dword % 2 * 32 + bit) & 255);
    };
    switch (code_bits(format)) {
        case 4: {
            const int value = word(lane / 4);
            return lane % 4 == 3 ? value >> 13 | (value & 1) << 3 : value >> (1 + lane % 4 * 4) & 15;
        }
        case 5: {
            if (lane < 15) return word(lane / 3) >> lane % 3 * 5 & 31;
            int code = 0;
            for (int l = 0; l < 5; ++l)
                code |= word(l) >> 15 << l;
            return code;
        }
        case 6: {
            const auto line = [&](int l) { return (l < 3 ? first : second) + static_cast<size_t>(l % 3) * kLineBytes; };
            const int number = 2 * lane + half;
            if (number < 30) return turned(line(number / 5), 5 + number % 5 * 6) & 63;
            const int l = number == 30 ? 0 : 3;
            return (turned(line(l), 3) & 3) | (turned(line(l + 1), 3) & 3) << 2 | (turned(line(l + 2), 3) & 3) << 4;
        }
        default:
            return turned(first + static_cast<size_t>(lane / 2) * kLineBytes, 7 + 16 * (lane % 2) + 8 * half) - 128;
    }
}

// The code of input `k` of output `lane`, as stored in TileOrder::kPairs.
FORERUN_INLINE int tile_code(TileFormat format, const uint8_t* codes, int lane, int k) {
    const int pair = k / 2, word = 2 * lane + k % 2;
    const auto line = [&](int l) { return int{word_at(codes + static_cast<size_t>(l) * kLineBytes, word)}; };
    switch (code_bits(format)) {
        case 4:
            return line(pair / 4) >> pair % 4 * 4 & 15;
        case 5: {
            if (pair < 15) return line(pair / 3) >> pair % 3 * 5 & 31;
            int code = 0;
            for (int l = 0; l < 5; ++l)
                code |= line(l) >> 15 << l;
            return code;
        }
        case 6:
            if (pair < 6) return line(pair / 2) >> pair % 2 * 6 & 63;
            return line(pair - 6) >> 12 | (line(2) >> (12 + 2 * (pair - 6)) & 3) << 4;
        default:
            return static_cast<int8_t>(codes[k * 16 + lane]);
    }
}

// d and m of output `lane`: a weight is d (code - zero_code) + m.
struct LaneScale {
    float d, m;
};

FORERUN_INLINE LaneScale tile_scale(TileFormat format, const uint8_t* header, const uint8_t* tile, int lane) {
    const bool shared = tile_shape(format).group_tiles > 1;
    const uint8_t* halves = shared ? header : tile;
    const float d = float_from_half(word_at(halves, lane));
    const float m = has_minimum(format) ? float_from_half(word_at(halves, 16 + lane)) : 0.0f;
    if (!shared) return {d, m};
    if (format == TileFormat::kQ6_K) return {d * static_cast<float>(static_cast<int8_t>(tile[lane])), 0.0f};
    return {d * static_cast<float>(tile[lane]), m * -static_cast<float>(tile[16 + lane])};
}

// Tile number `index` of its panel.
static void tile_values(TileFormat format, TileOrder order, const uint8_t* header, const uint8_t* tile, int index,
                        int lane, float* out) {
    const TileShape shape = tile_shape(format);
    const LaneScale scale = tile_scale(format, header, tile, lane);
    const uint8_t* const codes = tile + shape.scale_bytes;
    // A step of 32 inputs is one tile or an even one and the next.
    const bool is_second = shape.inputs < kTileDepth && index % 2 == 1;
    const uint8_t* const first = is_second ? codes - shape.tile_bytes : codes;
    const uint8_t* const second = shape.inputs < kTileDepth ? first + shape.tile_bytes : first;
    for (int k = 0; k < shape.inputs; ++k) {
        const int code = order == TileOrder::kRows
                             ? row_code(format, first, second, lane, is_second ? shape.inputs + k : k)
                             : tile_code(format, codes, lane, k);
        const int number = code - shape.zero_code;
        out[k] = static_cast<float>(number) * scale.d;
        if (has_minimum(format)) out[k] += scale.m;
    }
}
