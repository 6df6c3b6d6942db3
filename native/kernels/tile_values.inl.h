// One output's 32 weights of a packed tile in plain C++, as float32 before rounding: the definition of the formats.

FORERUN_INLINE uint16_t word_at(const uint8_t* from, int word) {
    uint16_t value;
    __builtin_memcpy(&value, from + 2 * word, sizeof value);
    return value;
}

// codes[k] of output `lane`: its bits in words that hold 16 / WIDTH outputs each.
template <int WIDTH>
FORERUN_INLINE void lane_bits(const uint8_t* codes, int lane, int32_t (&bits)[kTileDepth]) {
    constexpr int kPerWord = 16 / WIDTH;
    const uint8_t* line = codes + lane / kPerWord * 64;
    const int shift = lane % kPerWord * WIDTH;
    for (int k = 0; k < kTileDepth; ++k)
        bits[k] = word_at(line, k) >> shift & ((1 << WIDTH) - 1);
}

template <int UPPER_BITS>
FORERUN_INLINE void lane_codes(const uint8_t* codes, int lane, int zero_code, int32_t (&numbers)[kTileDepth]) {
    lane_bits<4>(codes + UPPER_BITS * kBitBytes, lane, numbers);
    if constexpr (UPPER_BITS > 0) {
        int32_t upper[kTileDepth];
        lane_bits<UPPER_BITS>(codes, lane, upper);
        for (int k = 0; k < kTileDepth; ++k)
            numbers[k] |= upper[k] << 4;
    }
    for (int k = 0; k < kTileDepth; ++k)
        numbers[k] -= zero_code;
}

FORERUN_INLINE void scale_lane(const int32_t (&numbers)[kTileDepth], float scale, float* out) {
    for (int k = 0; k < kTileDepth; ++k)
        out[k] = static_cast<float>(numbers[k]) * scale;
}

static void tile_values(TileFormat format, const uint8_t* header, const uint8_t* tile, int lane, float* out) {
    const TileShape shape = tile_shape(format);
    const uint8_t* codes = tile + shape.scale_bytes;
    const uint8_t* halves = shape.group_tiles > 1 ? header : tile;
    const float d = float_from_half(word_at(halves, lane));
    int32_t numbers[kTileDepth];
    float minimum = 0;
    switch (format) {
        case TileFormat::kQ4_0:
        case TileFormat::kQ5_0:
            if (format == TileFormat::kQ4_0) {
                lane_codes<0>(codes, lane, shape.zero_code, numbers);
            } else {
                lane_codes<1>(codes, lane, shape.zero_code, numbers);
            }
            return scale_lane(numbers, d, out);
        case TileFormat::kQ8_0:
            for (int k = 0; k < kTileDepth; ++k)
                numbers[k] = static_cast<int8_t>(codes[lane * kTileDepth + k]);
            return scale_lane(numbers, d, out);
        case TileFormat::kQ6_K: {
            float halves_out[kTileDepth];
            lane_codes<2>(codes, lane, shape.zero_code, numbers);
            scale_lane(numbers, 1.0f, halves_out);
            for (int k = 0; k < kTileDepth; ++k)  // word 2i is input i, word 2i + 1 is input 16 + i
                out[k / 2 + k % 2 * kLanes] =
                    halves_out[k] * (d * static_cast<float>(static_cast<int8_t>(tile[k % 2 * kLanes + lane])));
            return;
        }
        case TileFormat::kQ4_1:
        case TileFormat::kQ5_1:
            minimum = float_from_half(word_at(halves, kLanes + lane));
            break;
        default:
            minimum = float_from_half(word_at(halves, kLanes + lane)) * -static_cast<float>(tile[kLanes + lane]);
            break;
    }
    const float scale = shape.group_tiles > 1 ? d * static_cast<float>(tile[lane]) : d;
    if (format == TileFormat::kQ4_1 || format == TileFormat::kQ4_K) {
        lane_codes<0>(codes, lane, 0, numbers);
    } else {
        lane_codes<1>(codes, lane, 0, numbers);
    }
    scale_lane(numbers, scale, out);
    for (int k = 0; k < kTileDepth; ++k)
        out[k] += minimum;
}
