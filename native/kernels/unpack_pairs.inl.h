// Packed tiles for VPDPWSSD: the codes of a pair of inputs as two words of 16 bits in the dword of every output, as
// they lie in the file's line, hence a shift and a mask for 32 codes. Whole numbers are exact, so that codes may be
// taken in any order.

// take.operator()<CHAIN>(p, pair, codes) is told every pair of PANELS tiles, `panel_bytes` apart. CHAIN, 0 to 3, goes
// round: sums that wait for one another may be kept apart by it.

template <int SHIFT>
FORERUN_INLINE __m512i word_shift(__m512i words) {
    return SHIFT == 0 ? words : _mm512_srli_epi16(words, SHIFT);
}

// Code I of BITS bits of the line's words.
template <int BITS, int I>
FORERUN_INLINE __m512i line_codes(__m512i words) {
    if constexpr (I * BITS + BITS == 16) return word_shift<I * BITS>(words);
    return _mm512_and_si512(word_shift<I * BITS>(words), _mm512_set1_epi16((1 << BITS) - 1));
}

template <int BITS, int COUNT, int I, int PANELS, class Take>
FORERUN_INLINE void take_pairs(const __m512i (&words)[PANELS], int pair, Take& take) {
    if constexpr (I < COUNT) {
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            take.template operator()<I & 3>(p, pair + I, line_codes<BITS, I>(words[p]));
        take_pairs<BITS, COUNT, I + 1>(words, pair, take);
    }
}

FORERUN_INLINE __m512i code_line(const uint8_t* codes, int line) {
    return _mm512_loadu_si512(codes + static_cast<size_t>(line) * kLineBytes);
}

template <int BITS, int LINES, int PANELS, class Take>
FORERUN_INLINE void take_lines(const uint8_t* codes, size_t panel_bytes, Take& take) {
    constexpr int kPairs = 16 / BITS;
    FORERUN_UNROLL
    for (int line = 0; line < LINES; ++line) {
        __m512i words[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            words[p] = code_line(codes + p * panel_bytes, line);
        take_pairs<BITS, kPairs, 0>(words, kPairs * line, take);
    }
}

// Pair 15 of a tile of fives: bit 15 of line LINE is its bit LINE.
template <int LINE>
FORERUN_INLINE __m512i with_bit(__m512i codes, const uint8_t* from) {
    const __m512i top = _mm512_srli_epi16(code_line(from, LINE), 15 - LINE);
    return _mm512_ternarylogic_epi32(codes, top, _mm512_set1_epi16(1 << LINE), 0xf8);  // codes | (top & mask)
}
FORERUN_INLINE __m512i last_fives(const uint8_t* from) {
    const __m512i zero = _mm512_setzero_si512();
    return with_bit<4>(with_bit<3>(with_bit<2>(with_bit<1>(with_bit<0>(zero, from), from), from), from), from);
}

// Pairs 6 and 7 (I = 0, 1) of a tile of sixes: their lower bits on top of line I, their upper ones on top of line 2.
template <int I>
FORERUN_INLINE __m512i last_sixes(const uint8_t* from) {
    const __m512i low = _mm512_srli_epi16(code_line(from, I), 12);
    const __m512i high = _mm512_srli_epi16(code_line(from, 2), 8 + 2 * I);
    return _mm512_ternarylogic_epi32(low, high, _mm512_set1_epi16(0x30), 0xf8);
}

// Bytes lie in rows of sixteen outputs, four of them a line. Dwords of the four rows come together first, then the
// bytes inside a dword change places: (a0, b0, a1, b1), which are two pairs of words on top of each other.
template <int PANELS, class Take>
FORERUN_INLINE void take_bytes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i within = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15));
    FORERUN_UNROLL
    for (int line = 0; line < kTileDepth / 4; ++line) {
        __m512i both[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            const __m512i rows = code_line(codes + p * panel_bytes, line);
            both[p] = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, rows), within);
        }
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            take.template operator()<0>(p, 2 * line, _mm512_srai_epi16(_mm512_slli_epi16(both[p], 8), 8));
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            take.template operator()<1>(p, 2 * line + 1, _mm512_srai_epi16(both[p], 8));
    }
}

template <int BITS, int PANELS, class Take>
FORERUN_INLINE void take_codes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    if constexpr (BITS == 4) {
        take_lines<4, 4, PANELS>(codes, panel_bytes, take);
    } else if constexpr (BITS == 5) {
        take_lines<5, 5, PANELS>(codes, panel_bytes, take);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            take.template operator()<3>(p, 15, last_fives(codes + p * panel_bytes));
    } else if constexpr (BITS == 6) {
        take_lines<6, 3, PANELS>(codes, panel_bytes, take);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            take.template operator()<2>(p, 6, last_sixes<0>(codes + p * panel_bytes));
            take.template operator()<3>(p, 7, last_sixes<1>(codes + p * panel_bytes));
        }
    } else {
        take_bytes<PANELS>(codes, panel_bytes, take);
    }
}
