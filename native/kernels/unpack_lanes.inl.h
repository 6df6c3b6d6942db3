// Packed tiles to bfloat16 tiles in the order of packed_matrix.h, a lane for an output: the same bits as tile_values.
//
// A word of a line of nibbles holds one input of four outputs. It goes to the lanes of all four, and each lane masks
// its own bits. What is left is the code times a power of two that depends on the lane alone, which the lane's scale
// takes back: exact, and cheaper than shifts that differ from lane to lane.

// Of lane o: where its code lies in its word, and the code's unit there.
alignas(64) constexpr uint32_t kNibbleMask[kLanes] = {0xf, 0xf0, 0xf00, 0xf000, 0xf, 0xf0, 0xf00, 0xf000,
                                                      0xf, 0xf0, 0xf00, 0xf000, 0xf, 0xf0, 0xf00, 0xf000};
alignas(64) constexpr float kNibbleUnit[kLanes] = {1, 16, 256, 4096, 1, 16, 256, 4096,
                                                   1, 16, 256, 4096, 1, 16, 256, 4096};

// The same for the bits above a nibble, WIDTH of them, with what makes sixteen nibble units of a one there.
template <int WIDTH>
struct UpperBits {
    alignas(64) uint32_t mask[kLanes] = {};
    alignas(64) float factor[kLanes] = {};

    constexpr UpperBits() {
        for (int o = 0; o < kLanes; ++o) {
            const int bit = o * WIDTH % 16;
            mask[o] = ((1u << WIDTH) - 1) << bit;
            factor[o] = 16 * kNibbleUnit[o] / static_cast<float>(1u << bit);
        }
    }
};
template <int WIDTH>
constexpr UpperBits<WIDTH> kUpperBits;

struct LaneScales {
    Vec scale, other;  // other: what is added, or in Q6_K the scale of inputs 16 and up
};

template <TileFormat F>
FORERUN_INLINE LaneScales lane_scales(const uint8_t* header, const uint8_t* tile) {
    if constexpr (F == TileFormat::kQ6_K) {
        const Vec d = halves(header);
        const int8_t* scales = reinterpret_cast<const int8_t*>(tile);
        return {d * bytes(scales), d * bytes(scales + kLanes)};
    } else if constexpr (tile_shape(F).group_tiles > 1) {
        const Vec minimum = halves(header + 2 * kLanes) * bytes(tile + kLanes);
        return {halves(header) * bytes(tile), broadcast(-1.0f) * minimum};
    } else {
        return {halves(tile), has_minimum(F) ? halves(tile + 2 * kLanes) : zero()};
    }
}

// Inputs of the lower (SHIFT 0) or upper (SHIFT 16) halves of words `k` of a tile's lines.
template <TileFormat F, int SHIFT>
FORERUN_INLINE Vec lane_weights(const uint8_t* codes, int k, Vec scale, Vec minimum) {
    constexpr int kUpper = upper_bits(F);
    const uint8_t* line = codes + kUpper * kBitBytes + 4 * k;
    Vec numbers = field<SHIFT>(spread(line, line + 64, line + 128, line + 192), load_words(kNibbleMask));
    if constexpr (kUpper > 0) {
        const uint8_t *low = codes + 4 * k, *high = low + (kUpper - 1) * kBitBytes;
        const Vec upper = field<SHIFT>(spread(low, low, high, high), load_words(kUpperBits<kUpper>.mask));
        numbers = fma(upper, load(kUpperBits<kUpper>.factor), numbers);
    }
    if constexpr (has_minimum(F)) return fma(scale, numbers, minimum);
    const Vec zero_code = load(kNibbleUnit) * broadcast(static_cast<float>(tile_shape(F).zero_code));
    return scale * (numbers - zero_code);
}

template <TileFormat F>
FORERUN_INLINE void unpack_lanes(const uint8_t* header, const uint8_t* tile, uint16_t* out) {
    const LaneScales scales = lane_scales<F>(header, tile);
    const uint8_t* codes = tile + tile_shape(F).scale_bytes;
    constexpr int kPair = 2 * kLanes;
    if constexpr (F == TileFormat::kQ8_0) {
        // Four inputs of an output in a word, each as the upper byte of an integer.
        constexpr uint32_t kTop = 0xff000000;
        alignas(64) constexpr uint32_t kMask[kLanes] = {kTop, kTop, kTop, kTop, kTop, kTop, kTop, kTop,
                                                        kTop, kTop, kTop, kTop, kTop, kTop, kTop, kTop};
        const Words mask = load_words(kMask);
        const Vec scale = scales.scale * broadcast(0x1p-24f);
        for (int k = 0; k < kTileDepth; k += 4, out += 2 * kPair) {
            const Words words = strided(codes + k, kTileDepth);
            store_pairs(out, scale * field<-24>(words, mask), scale * field<-16>(words, mask));
            store_pairs(out + kPair, scale * field<-8>(words, mask), scale * field<0>(words, mask));
        }
    } else {
        const Vec unit = broadcast(1.0f) / load(kNibbleUnit);
        const Vec scale = scales.scale * unit;
        if constexpr (F == TileFormat::kQ6_K) {  // the upper half of word k is input 16 + k
            const Vec other = scales.other * unit;
            for (int k = 0; k < kLanes; k += 2, out += kPair) {
                store_pairs(out, lane_weights<F, 0>(codes, k, scale, zero()),
                            lane_weights<F, 0>(codes, k + 1, scale, zero()));
                store_pairs(out + kLanes / 2 * kPair, lane_weights<F, 16>(codes, k, other, zero()),
                            lane_weights<F, 16>(codes, k + 1, other, zero()));
            }
        } else {
            for (int pair = 0; pair < kTileDepth / 2; ++pair, out += kPair) {
                store_pairs(out, lane_weights<F, 0>(codes, pair, scale, scales.other),
                            lane_weights<F, 16>(codes, pair, scale, scales.other));
            }
        }
    }
}
