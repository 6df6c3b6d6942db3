// Packed tiles to bfloat16 in the order of packed_matrix.h, a lane for an output: the weights of tile_values, rounded.
//
// A lane takes its output's words of a line, one for the first input of a pair and one for the second, as one dword: a
// shift and a mask that are the same for all lanes bring out a code.

struct LaneScales {
    Vec scale, minimum;
};

template <TileFormat F>
FORERUN_INLINE LaneScales lane_scales(const uint8_t* header, const uint8_t* tile) {
    if constexpr (F == TileFormat::kQ6_K) {
        return {halves(header) * bytes(reinterpret_cast<const int8_t*>(tile)), zero()};
    } else if constexpr (tile_shape(F).group_tiles > 1) {
        const Vec minimum = halves(header + 2 * kLanes) * bytes(tile + kLanes);
        return {halves(header) * bytes(tile), broadcast(-1.0f) * minimum};
    } else {
        return {halves(tile), has_minimum(F) ? halves(tile + 2 * kLanes) : zero()};
    }
}

// Codes of pair PAIR: of its first input with HALF 0, of its second with HALF 16.
template <int BITS, int PAIR, int HALF>
FORERUN_INLINE Vec lane_codes(const uint8_t* codes) {
    const auto line = [&](int l) __attribute__((always_inline)) { return load_words(codes + l * kLineBytes); };
    if constexpr (BITS == 4) {
        return field<PAIR % 4 * 4 + HALF>(line(PAIR / 4), 15);
    } else if constexpr (BITS == 5 && PAIR < 15) {
        return field<PAIR % 3 * 5 + HALF>(line(PAIR / 3), 31);
    } else if constexpr (BITS == 5) {
        Vec code = field<15 + HALF>(line(0), 1);
        FORERUN_UNROLL
        for (int l = 1; l < 5; ++l)
            code = fma(field<15 + HALF>(line(l), 1), broadcast(static_cast<float>(1 << l)), code);
        return code;
    } else if constexpr (PAIR < 6) {
        return field<PAIR % 2 * 6 + HALF>(line(PAIR / 2), 63);
    } else {
        const Vec upper = field<12 + 2 * (PAIR - 6) + HALF>(line(2), 3);
        return fma(upper, broadcast(16.0f), field<12 + HALF>(line(PAIR - 6), 15));
    }
}

template <TileFormat F>
FORERUN_INLINE Vec lane_weights(Vec codes, const LaneScales& scales) {
    if constexpr (has_minimum(F)) return fma(scales.scale, codes, scales.minimum);
    if constexpr (tile_shape(F).zero_code == 0) return scales.scale * codes;
    return scales.scale * (codes - broadcast(static_cast<float>(tile_shape(F).zero_code)));
}

template <TileFormat F, int PAIR>
FORERUN_INLINE void unpack_pairs(const uint8_t* codes, const LaneScales& scales, uint16_t* out) {
    if constexpr (2 * PAIR < tile_shape(F).inputs) {
        constexpr int kBits = code_bits(F);
        store_pairs(out, lane_weights<F>(lane_codes<kBits, PAIR, 0>(codes), scales),
                    lane_weights<F>(lane_codes<kBits, PAIR, 16>(codes), scales));
        unpack_pairs<F, PAIR + 1>(codes, scales, out + 2 * kLanes);
    }
}

template <TileFormat F>
FORERUN_INLINE void unpack_lanes(const uint8_t* header, const uint8_t* tile, uint16_t* out) {
    const LaneScales scales = lane_scales<F>(header, tile);
    const uint8_t* codes = tile + tile_shape(F).scale_bytes;
    if constexpr (F == TileFormat::kQ8_0) {
        const int8_t* numbers = reinterpret_cast<const int8_t*>(codes);
        for (int pair = 0; pair < kTileDepth / 2; ++pair, numbers += 2 * kLanes, out += 2 * kLanes)
            store_pairs(out, scales.scale * bytes(numbers), scales.scale * bytes(numbers + kLanes));
    } else {
        unpack_pairs<F, 0>(codes, scales, out);
    }
}
