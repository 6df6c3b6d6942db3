// One output's weights of a packed tile in plain C++, as float32: the definition of the formats.

FORERUN_INLINE uint16_t word_at(const uint8_t* from, int word) {
    uint16_t value;
    __builtin_memcpy(&value, from + 2 * word, sizeof value);
    return value;
}

// The code of input `k` of output `lane`, as stored.
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

static void tile_values(TileFormat format, const uint8_t* header, const uint8_t* tile, int lane, float* out) {
    const TileShape shape = tile_shape(format);
    const LaneScale scale = tile_scale(format, header, tile, lane);
    for (int k = 0; k < shape.inputs; ++k) {
        const int number = tile_code(format, tile + shape.scale_bytes, lane, k) - shape.zero_code;
        out[k] = static_cast<float>(number) * scale.d;
        if (has_minimum(format)) out[k] += scale.m;
    }
}
