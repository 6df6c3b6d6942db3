// Packed tiles for products of 16 bits: the codes of a pair of inputs as two words of 16 bits in the dword of every
// output, as they lie in the file's line, hence a shift and a mask for 32 codes. Whole numbers are exact, so that codes
// may be taken in any order.

// take.operator()<PAIR>(codes) is told every pair of PANELS tiles, `panel_bytes` apart, in ascending order; codes
// [PANELS].

// A mask of 16 bits for both members of a pair.
constexpr int in_both(int mask) {
    return mask << 16 | mask;
}

// Code I of BITS bits of the line's words.
template <int BITS, int I>
FORERUN_INLINE Words line_codes(Words words) {
    if constexpr (I * BITS + BITS == 16) return shift_members<I * BITS>(words);
    return shift_members<I * BITS>(words) & in_both((1 << BITS) - 1);
}

template <int BITS, int COUNT, int PAIR, int I, int PANELS, class Take>
FORERUN_INLINE void take_pairs(const Words (&words)[PANELS], Take& take) {
    if constexpr (I < COUNT) {
        Words codes[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            codes[p] = line_codes<BITS, I>(words[p]);
        take.template operator()<PAIR + I>(codes);
        take_pairs<BITS, COUNT, PAIR, I + 1>(words, take);
    }
}

FORERUN_INLINE Words code_line(const uint8_t* codes, int line) {
    return load_words(codes + static_cast<size_t>(line) * kLineBytes);
}

template <int BITS, int LINES, int PANELS, int LINE = 0, class Take>
FORERUN_INLINE void take_lines(const uint8_t* codes, size_t panel_bytes, Take& take) {
    if constexpr (LINE < LINES) {
        constexpr int kPairs = 16 / BITS;
        Words words[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            words[p] = code_line(codes + p * panel_bytes, LINE);
        take_pairs<BITS, kPairs, kPairs * LINE, 0>(words, take);
        take_lines<BITS, LINES, PANELS, LINE + 1>(codes, panel_bytes, take);
    }
}

// Pair 15 of a tile of fives: bit 15 of line LINE is its bit LINE.
template <int LINE>
FORERUN_INLINE Words with_bit(Words codes, const uint8_t* from) {
    return with_bits(codes, shift_members<15 - LINE>(code_line(from, LINE)), in_both(1 << LINE));
}
FORERUN_INLINE Words last_fives(const uint8_t* from) {
    return with_bit<4>(with_bit<3>(with_bit<2>(with_bit<1>(with_bit<0>(same_words(0), from), from), from), from), from);
}

// Pairs 6 and 7 (I = 0, 1) of a tile of sixes: their lower bits on top of line I, their upper ones on top of line 2.
template <int I>
FORERUN_INLINE Words last_sixes(const uint8_t* from) {
    return with_bits(shift_members<12>(code_line(from, I)), shift_members<8 + 2 * I>(code_line(from, 2)),
                     in_both(0x30));
}

// Bytes lie in rows of sixteen outputs, four of them a line.
template <int PANELS, int LINE = 0, class Take>
FORERUN_INLINE void take_bytes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    if constexpr (LINE < kTileDepth / 4) {
        Words first[PANELS], second[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            byte_pairs(codes + p * panel_bytes + size_t{LINE} * kLineBytes, first[p], second[p]);
        take.template operator()<2 * LINE>(first);
        take.template operator()<2 * LINE + 1>(second);
        take_bytes<PANELS, LINE + 1>(codes, panel_bytes, take);
    }
}

template <int BITS, int PANELS, class Take>
FORERUN_INLINE void take_codes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    Words last[PANELS];
    if constexpr (BITS == 4) {
        take_lines<4, 4, PANELS>(codes, panel_bytes, take);
    } else if constexpr (BITS == 5) {
        take_lines<5, 5, PANELS>(codes, panel_bytes, take);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            last[p] = last_fives(codes + p * panel_bytes);
        take.template operator()<15>(last);
    } else if constexpr (BITS == 6) {
        take_lines<6, 3, PANELS>(codes, panel_bytes, take);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            last[p] = last_sixes<0>(codes + p * panel_bytes);
        take.template operator()<6>(last);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            last[p] = last_sixes<1>(codes + p * panel_bytes);
        take.template operator()<7>(last);
    } else {
        take_bytes<PANELS>(codes, panel_bytes, take);
    }
}
