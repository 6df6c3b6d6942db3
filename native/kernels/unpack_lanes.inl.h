// Packed tiles a lane for an output, for any vectors: codes as float32.
//
// A lane takes its output's words of a line, one for the first input of a pair and one for the second, as one dword: a
// mask that is the same for all lanes brings out a code. It is converted where it lies, as code * 2^shift, which saves
// a shift; the input it is multiplied with takes the power of two back, exactly (scale_inputs).

// Power of two by which the code of input `k` comes too large.
constexpr int code_shift(int bits, int k) {
    if (bits == 8) return 0;
    const int per_line = bits == 4 ? 4 : bits == 5 ? 3 : 2, lines = bits == 4 ? 4 : bits == 5 ? 5 : 3;
    if (k >= 2 * per_line * lines) return k % 2 * 16;
    const int shift = k / 2 % per_line * bits + k % 2 * 16;
    return shift + bits == 32 ? 0 : shift;  // the top bits would be a sign
}

struct InputScales {
    alignas(64) float values[kTileDepth];
};

constexpr InputScales input_scales(int bits) {
    InputScales scales = {};
    for (int k = 0; k < kTileDepth; ++k)
        scales.values[k] = 1.0f / static_cast<float>(1 << code_shift(bits, k));
    return scales;
}

template <int BITS>
constexpr InputScales kInputScales = input_scales(BITS);

// Code I of the codes in one line.
template <int BITS, int I>
FORERUN_INLINE Vec line_code(Words words) {
    constexpr int kShift = I / 2 * BITS + I % 2 * 16;
    if constexpr (kShift + BITS == 32) return to_float(shift_right<kShift>(words));
    return to_float(words & ((1 << BITS) - 1) << kShift);
}

// take.operator()(p, k, code) is told every code of PANELS tiles, `panel_bytes` apart, in ascending order of inputs k.
template <int BITS, int COUNT, int I, int PANELS, class Take>
FORERUN_INLINE void take_words(const Words (&words)[PANELS], int k, Take& take) {
    if constexpr (I < COUNT) {
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            take(p, k + I, line_code<BITS, I>(words[p]));
        take_words<BITS, COUNT, I + 1>(words, k, take);
    }
}

template <int PANELS>
FORERUN_INLINE void load_line(Words (&words)[PANELS], const uint8_t* codes, size_t panel_bytes, int line) {
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p)
        words[p] = load_words(codes + p * panel_bytes + static_cast<size_t>(line) * kLineBytes);
}

template <int PANELS, class Take>
FORERUN_INLINE void take_nibbles(const uint8_t* codes, size_t panel_bytes, Take& take) {
    for (int line = 0; line < 4; ++line) {
        Words words[PANELS];
        load_line(words, codes, panel_bytes, line);
        take_words<4, 8, 0>(words, 8 * line, take);
    }
}

// Bit 15 of both words of line LINE where bit LINE of a code belongs.
template <int LINE>
FORERUN_INLINE Words last_bit(const uint8_t* codes) {
    return shift_right<15 - LINE>(load_words(codes + LINE * kLineBytes)) & 0x10001 << LINE;
}

template <int PANELS, class Take>
FORERUN_INLINE void take_fives(const uint8_t* codes, size_t panel_bytes, Take& take) {
    Words words[PANELS];
    for (int line = 0; line < 5; ++line) {
        load_line(words, codes, panel_bytes, line);
        take_words<5, 6, 0>(words, 6 * line, take);
    }
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        const uint8_t* const at = codes + p * panel_bytes;
        words[p] = last_bit<0>(at) | last_bit<1>(at) | last_bit<2>(at) | last_bit<3>(at) | last_bit<4>(at);
    }
    take_words<5, 2, 0>(words, 30, take);
}

// Pairs 6 and 7 (I = 0, 1) from the top bits of all lines.
template <int I>
FORERUN_INLINE Words last_sixes(const uint8_t* codes) {
    return (shift_right<12>(load_words(codes + I * kLineBytes)) & 0xf000f) |
           (shift_right<8 + 2 * I>(load_words(codes + 2 * kLineBytes)) & 0x300030);
}

template <int PANELS, class Take>
FORERUN_INLINE void take_sixes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    Words words[PANELS];
    for (int line = 0; line < 3; ++line) {
        load_line(words, codes, panel_bytes, line);
        take_words<6, 4, 0>(words, 4 * line, take);
    }
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p)
        words[p] = last_sixes<0>(codes + p * panel_bytes);
    take_words<6, 2, 0>(words, 12, take);
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p)
        words[p] = last_sixes<1>(codes + p * panel_bytes);
    take_words<6, 2, 0>(words, 14, take);
}

template <int PANELS, class Take>
FORERUN_INLINE void take_bytes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    constexpr int kTogether = 8;
    for (int k = 0; k < kTileDepth; k += kTogether) {
        FORERUN_UNROLL
        for (int i = 0; i < kTogether; ++i) {
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                take(p, k + i, bytes(reinterpret_cast<const int8_t*>(codes + p * panel_bytes + (k + i) * kLanes)));
        }
    }
}

template <int BITS, int PANELS, class Take>
FORERUN_INLINE void take_codes(const uint8_t* codes, size_t panel_bytes, Take& take) {
    if constexpr (BITS == 4) {
        take_nibbles<PANELS>(codes, panel_bytes, take);
    } else if constexpr (BITS == 5) {
        take_fives<PANELS>(codes, panel_bytes, take);
    } else if constexpr (BITS == 6) {
        take_sixes<PANELS>(codes, panel_bytes, take);
    } else {
        take_bytes<PANELS>(codes, panel_bytes, take);
    }
}
