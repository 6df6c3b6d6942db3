// Codes of packed tiles as bfloat16, which holds them exactly, in the order of a tile product's second operand:
// [inputs / 2][16 outputs][2]. Scales come after the product. With AVX-512.
//
// Up to five bits vpermw looks a code up among the 32 values that it can have; it ignores the bits above. Six bits
// become the mantissa of a number from 128 to 191, and what that adds is taken back with the scale.

constexpr int kMantissaBase = 128;  // numbers from here to 255 differ in the last bit of bfloat16

// What unpacked codes exceed the numbers that the file means by.
constexpr int code_excess(TileFormat format) {
    return code_bits(format) == 6 ? kMantissaBase + tile_shape(format).zero_code : 0;
}

// One rounding of 32 floats: `low` to the first 16 words.
FORERUN_INLINE __m512i round_pair(__m512 low, __m512 high) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(high, low);
    __m512i result;
    __builtin_memcpy(&result, &rounded, sizeof result);
    return result;
}

// Values of codes 0 .. 31, of 4 bits twice 0 .. 15.
template <TileFormat F>
FORERUN_INLINE __m512i code_values() {
    constexpr TileShape kShape = tile_shape(F);
    const __m512 first = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                       _mm512_set1_ps(static_cast<float>(kShape.zero_code)));
    return round_pair(first, code_bits(F) == 4 ? first : _mm512_add_ps(first, _mm512_set1_ps(16.0f)));
}

FORERUN_INLINE __m512i line_at(const uint8_t* codes, int line) {
    return _mm512_loadu_si512(codes + static_cast<size_t>(line) * kLineBytes);
}

FORERUN_INLINE void unpack_nibbles(const uint8_t* codes, __m512i values, uint16_t* out) {
    FORERUN_UNROLL
    for (int line = 0; line < 4; ++line) {
        const __m512i words = line_at(codes, line);
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const __m512i index = i ? _mm512_srli_epi16(words, 4 * i) : words;
            _mm512_store_si512(out + (4 * line + i) * kTileDepth, _mm512_permutexvar_epi16(index, values));
        }
    }
}

FORERUN_INLINE void unpack_fives(const uint8_t* codes, __m512i values, uint16_t* out) {
    __m512i last = _mm512_setzero_si512();  // bit l from bit 15 of line l
    FORERUN_UNROLL
    for (int line = 0; line < 5; ++line) {
        const __m512i words = line_at(codes, line);
        FORERUN_UNROLL
        for (int i = 0; i < 3; ++i) {
            const __m512i index = i ? _mm512_srli_epi16(words, 5 * i) : words;
            _mm512_store_si512(out + (3 * line + i) * kTileDepth, _mm512_permutexvar_epi16(index, values));
        }
        const __m512i bit = _mm512_set1_epi16(static_cast<short>(1 << line));
        last = _mm512_ternarylogic_epi32(last, _mm512_srli_epi16(words, 15 - line), bit, 0xf8);  // a | (b & c)
    }
    _mm512_store_si512(out + 15 * kTileDepth, _mm512_permutexvar_epi16(last, values));
}

FORERUN_INLINE void unpack_sixes(const uint8_t* codes, uint16_t* out) {
    const __m512i base = _mm512_set1_epi16(0x4300), six = _mm512_set1_epi16(63);  // 128 as bfloat16
    const auto store = [&](int pair, __m512i index) __attribute__((always_inline)) {
        _mm512_store_si512(out + pair * kTileDepth, _mm512_ternarylogic_epi32(base, index, six, 0xf8));
    };
    __m512i words[3];
    FORERUN_UNROLL
    for (int line = 0; line < 3; ++line) {
        words[line] = line_at(codes, line);
        store(2 * line, words[line]);
        store(2 * line + 1, _mm512_srli_epi16(words[line], 6));
    }
    FORERUN_UNROLL
    for (int i = 0; i < 2; ++i) {
        const __m512i upper = _mm512_srli_epi16(words[2], 8 + 2 * i), two = _mm512_set1_epi16(48);
        store(6 + i, _mm512_ternarylogic_epi32(_mm512_srli_epi16(words[i], 12), upper, two, 0xf8));
    }
}

FORERUN_INLINE void unpack_bytes(const uint8_t* codes, uint16_t* out) {
    const auto numbers = [](const uint8_t* from) __attribute__((always_inline)) {
        return _mm512_castps_si512(
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))));
    };
    FORERUN_UNROLL
    for (int pair = 0; pair < kTileDepth / 2; ++pair) {
        // Upper halves of floats: exact, since the lower ones are empty.
        const __m512i first = _mm512_srli_epi32(numbers(codes + 2 * kLanes * pair), 16);
        const __m512i second = numbers(codes + 2 * kLanes * pair + kLanes);
        _mm512_store_si512(out + pair * kTileDepth, _mm512_or_si512(first, second));
    }
}

// out [inputs / 2][32], 64-byte aligned. values  code_values<F>()
template <TileFormat F>
FORERUN_INLINE void unpack_codes(const uint8_t* codes, __m512i values, uint16_t* out) {
    if constexpr (code_bits(F) == 4) {
        unpack_nibbles(codes, values, out);
    } else if constexpr (code_bits(F) == 5) {
        unpack_fives(codes, values, out);
    } else if constexpr (code_bits(F) == 6) {
        unpack_sixes(codes, out);
    } else {
        unpack_bytes(codes, out);
    }
}
