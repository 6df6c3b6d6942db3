// Packed tiles to bfloat16 tiles [16 outputs][32 inputs] with AVX-512: the same bits as tile_values, faster.
//
// The 32 weights of a vector share their scale, so a 4 or 5 bit code selects one of 16 or 32 values that are computed
// once per output: a table look-up by vpermw instead of a conversion. It uses the lowest five bits of every word, so a
// table of 16 entries that is stored twice needs no masking of the bits above the nibble.

// Makes the compiler store an array here and load from it behind: it would otherwise keep it in registers and replace
// broadcasts from memory, which cost no arithmetic port, by shuffles, which are what these loops are bound by.
template <class Array>
FORERUN_INLINE void keep_in_memory(Array& array) {
    __asm__("" : "+m"(array));
}

// One rounding of 32 floats: `low` to the first 16 words.
FORERUN_INLINE __m512i round_pair(__m512 low, __m512 high) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
    __m512i result;
    __builtin_memcpy(&result, &rounded, sizeof result);
    return result;
}

FORERUN_INLINE __m512 halves_at(const uint8_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
FORERUN_INLINE __m512 unsigned_at(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}
FORERUN_INLINE __m512 signed_at(const uint8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
}

constexpr bool is_k_format(TileFormat format) {
    return format == TileFormat::kQ4_K || format == TileFormat::kQ5_K || format == TileFormat::kQ6_K;
}

// What is added behind the scaled code of one output, and the codes' steps 0 .. 15 less the code of zero.
template <TileFormat F>
FORERUN_INLINE __m512 table_values(__m512 steps, const float* scales, int o) {
    const __m512 scale = _mm512_set1_ps(scales[o]);
    if constexpr (has_minimum(F)) return _mm512_fmadd_ps(steps, scale, _mm512_set1_ps(scales[kLanes + o]));
    return _mm512_mul_ps(steps, scale);
}

// Scales of the 16 outputs, then their minima or the scales of the second halves.
template <TileFormat F>
FORERUN_INLINE void expand_scales(const uint8_t* header, const uint8_t* tile, float* scales) {
    const __m512 d = halves_at(is_k_format(F) ? header : tile);
    if constexpr (F == TileFormat::kQ6_K) {
        _mm512_store_ps(scales, _mm512_mul_ps(d, signed_at(tile)));
        _mm512_store_ps(scales + kLanes, _mm512_mul_ps(d, signed_at(tile + kLanes)));
    } else if constexpr (is_k_format(F)) {
        _mm512_store_ps(scales, _mm512_mul_ps(d, unsigned_at(tile)));
        const __m512 minimum = _mm512_mul_ps(halves_at(header + 32), unsigned_at(tile + kLanes));
        _mm512_store_ps(scales + kLanes, _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0f)));
    } else {
        _mm512_store_ps(scales, d);
        if constexpr (has_minimum(F)) _mm512_store_ps(scales + kLanes, halves_at(tile + 32));
    }
}

template <TileFormat F>
FORERUN_INLINE void unpack_nibbles(const uint8_t* codes, const float* scales, uint16_t* out) {
    alignas(64) uint16_t tables[kLanes / 2][kTileDepth];  // two outputs in a line
    const __m512 steps = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                       _mm512_set1_ps(static_cast<float>(tile_shape(F).zero_code)));
    FORERUN_UNROLL
    for (int o = 0; o < kLanes; o += 2) {
        _mm512_store_si512(tables[o / 2],
                           round_pair(table_values<F>(steps, scales, o), table_values<F>(steps, scales, o + 1)));
    }
    keep_in_memory(tables);
    FORERUN_UNROLL
    for (int line = 0; line < 4; ++line) {
        const __m512i words = _mm512_loadu_si512(codes + 64 * line);
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int o = 4 * line + i;
            const __m512i table = _mm512_broadcast_i64x4(
                _mm256_load_si256(reinterpret_cast<const __m256i*>(tables[o / 2] + o % 2 * kLanes)));
            _mm512_store_si512(out + o * kTileDepth,
                               _mm512_permutexvar_epi16(i ? _mm512_srli_epi16(words, 4 * i) : words, table));
        }
    }
}

// Bits of `upper` from `bit` on moved to bit 4.
FORERUN_INLINE __m512i to_bit_4(__m512i upper, int bit) {
    return bit > 4 ? _mm512_srli_epi16(upper, bit - 4) : bit < 4 ? _mm512_slli_epi16(upper, 4 - bit) : upper;
}

// Nibbles below, other bits above.
FORERUN_INLINE __m512i join_bits(__m512i nibbles, __m512i upper) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi16(15), nibbles, upper, 0xca);
}

template <TileFormat F>
FORERUN_INLINE void unpack_five_bits(const uint8_t* codes, const float* scales, uint16_t* out) {
    const __m512 low = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                     _mm512_set1_ps(static_cast<float>(tile_shape(F).zero_code)));
    const __m512 high = _mm512_add_ps(low, _mm512_set1_ps(16.0f));
    const __m512i fifth = _mm512_loadu_si512(codes);
    FORERUN_UNROLL
    for (int line = 0; line < 4; ++line) {
        const __m512i words = _mm512_loadu_si512(codes + kBitBytes + 64 * line);
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int o = 4 * line + i;
            const __m512i table = round_pair(table_values<F>(low, scales, o), table_values<F>(high, scales, o));
            const __m512i index = join_bits(_mm512_srli_epi16(words, 4 * i), to_bit_4(fifth, o));
            _mm512_store_si512(out + o * kTileDepth, _mm512_permutexvar_epi16(index, table));
        }
    }
}

FORERUN_INLINE void unpack_six_bits(const uint8_t* codes, const float* scales, uint16_t* out) {
    // 2^23 + code as bits, minus 2^23 + 32: the code as float without a conversion.
    const __m512i magic = _mm512_set1_epi32(0x4b000000), keep = _mm512_set1_epi32(63);
    const __m512 zero_code = _mm512_set1_ps(8388608.0f + 32.0f);
    FORERUN_UNROLL
    for (int line = 0; line < 4; ++line) {
        const __m512i words = _mm512_loadu_si512(codes + 2 * kBitBytes + 64 * line);
        const __m512i pairs = _mm512_loadu_si512(codes + 64 * (line / 2));
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int o = 4 * line + i;
            const __m512i both = join_bits(_mm512_srli_epi16(words, 4 * i), to_bit_4(pairs, 2 * (o % 8)));
            const __m512 first = _mm512_castsi512_ps(_mm512_ternarylogic_epi32(keep, both, magic, 0xca));
            const __m512 second =
                _mm512_castsi512_ps(_mm512_ternarylogic_epi32(keep, _mm512_srli_epi32(both, 16), magic, 0xca));
            _mm512_store_si512(
                out + o * kTileDepth,
                round_pair(_mm512_mul_ps(_mm512_sub_ps(first, zero_code), _mm512_set1_ps(scales[o])),
                           _mm512_mul_ps(_mm512_sub_ps(second, zero_code), _mm512_set1_ps(scales[kLanes + o]))));
        }
    }
}

FORERUN_INLINE void unpack_bytes(const uint8_t* codes, const float* scales, uint16_t* out) {
    FORERUN_UNROLL
    for (int o = 0; o < kLanes; ++o) {
        const __m512 scale = _mm512_set1_ps(scales[o]);
        _mm512_store_si512(out + o * kTileDepth, round_pair(_mm512_mul_ps(signed_at(codes + 32 * o), scale),
                                                            _mm512_mul_ps(signed_at(codes + 32 * o + 16), scale)));
    }
}

// out [16][32] bfloat16, 64-byte aligned.
template <TileFormat F>
FORERUN_INLINE void unpack_tile(const uint8_t* header, const uint8_t* tile, uint16_t* out) {
    alignas(64) float scales[2 * kLanes];
    expand_scales<F>(header, tile, scales);
    keep_in_memory(scales);
    const uint8_t* codes = tile + tile_shape(F).scale_bytes;
    if constexpr (F == TileFormat::kQ8_0) {
        unpack_bytes(codes, scales, out);
    } else if constexpr (F == TileFormat::kQ6_K) {
        unpack_six_bits(codes, scales, out);
    } else if constexpr (upper_bits(F) == 1) {
        unpack_five_bits<F>(codes, scales, out);
    } else {
        unpack_nibbles<F>(codes, scales, out);
    }
}
