// Packed tiles as the first operand of a tile product: [16 outputs][32 inputs] bfloat16, scaled. Weights must lie in
// the order TileOrder::kRows. With AVX-512, VBMI and VBMI2.
//
// All inputs of an output in a tile share scale and minimum. Up to four bits, the sixteen values that its codes can
// have are one vector of floats, made by one multiply-add. Read as words, number 2c + 1 of that vector is the upper
// half of value c, which is the value as bfloat16, cut off: one vpermw looks 32 codes up, if each index is twice the
// code and an odd bit. Five bits take two such vectors, put together as 32 words, of which one vpermb takes both bytes.
//
// A code of six or eight bits becomes the end of the mantissa of a number, base + code, where it stands in its dword;
// a multiply-add with -(base + zero) times the scale leaves the value. For that product to be exact the scale is
// rounded to 14 bits, or 10 for codes of six, much less than bfloat16 loses. Two results of sixteen are put together.
//
// Cutting off instead of rounding would make every weight smaller, by half a unit of bfloat16's eighth bit on average.
// That share is put on the scales first, so that errors are even; a number of bfloat16 stays what it is.
//
// For some 200 cycles behind any tile instruction the processor multiplies on one of its two vector ports only. So
// beside tile products multiplies, shifts and half of every vpermw wait for that one; permutations, vpmultishiftqb and
// masked vpshufb have the other, logic takes either. Codes of more than four bits are unpacked with that in mind.

constexpr float kCutOff =
    1.0f + 0.72134752f / 256;  // mean loss where logarithms of mantissas are uniform: 1 / (2 ln 2)

constexpr int kRowTileWords = kLanes * kTileDepth;

// Tiles of the format in one of 32 inputs.
template <TileFormat F>
constexpr int kTilesPerStep = kTileDepth / tile_shape(F).inputs;

constexpr int kHalves = 2, kPlaces = 3;  // sixteen inputs of a step; where codes stand in their dwords

// The lowest bit of codes of six bits in their dwords, and of eight.
constexpr int kSixPlaces[kPlaces] = {5, 11, 17}, kEightPlaces[kPlaces] = {7, 15, 0};

// Scales of a step's outputs, where their broadcasts find them. Halves have their own in Q6_K only.
struct RowScales {
    alignas(64) float scale[kHalves][kLanes];
    alignas(64) float minimum[kLanes];
    alignas(64) float offset[kHalves][kPlaces][kLanes];  // what takes base and zero off a code at this place
};

FORERUN_INLINE Vec cut_halves(const uint8_t* from, float factor) {
    return {_mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))),
                          _mm512_set1_ps(factor))};
}

// d and dmin of a group's outputs, from its header; nothing where groups are single tiles.
struct GroupScales {
    alignas(64) float d[kLanes], minimum[kLanes];
};

template <TileFormat F>
FORERUN_INLINE void store_group(const uint8_t* header, GroupScales& to) {
    if constexpr (tile_shape(F).group_tiles == 1) return;
    const LaneScales group = group_scales<F>(header);
    store(to.d, group.scale * broadcast(kCutOff));
    if constexpr (has_minimum(F)) store(to.minimum, group.minimum * broadcast(kCutOff));
}

// The first BITS bits of every number, rounded.
template <int BITS>
FORERUN_INLINE Vec first_bits(Vec x) {
    constexpr int kDropped = 24 - BITS;
    const __m512i half = _mm512_set1_epi32(1 << (kDropped - 1)), kept = _mm512_set1_epi32(-(1 << kDropped));
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x.v), half), kept))};
}

// For codes of `places`, the number 0 being `zero`.
template <int COUNT>
FORERUN_INLINE void store_offsets(Vec scale, const int (&places)[kPlaces], int zero, float (&to)[kPlaces][kLanes]) {
    FORERUN_UNROLL
    for (int i = 0; i < COUNT; ++i)
        store(to[i], scale * broadcast(-static_cast<float>((1 << (23 - places[i])) + zero)));
}

template <TileFormat F>
FORERUN_INLINE void store_scales(const GroupScales& group, const uint8_t* tile, RowScales& to) {
    if constexpr (tile_shape(F).group_tiles == 1) {
        const Vec found = cut_halves(tile, kCutOff), scale = code_bits(F) == 8 ? first_bits<14>(found) : found;
        store(to.scale[0], scale);
        if constexpr (code_bits(F) == 8) store_offsets<2>(scale, kEightPlaces, 128, to.offset[0]);
        if constexpr (has_minimum(F)) store(to.minimum, cut_halves(tile + 2 * kLanes, kCutOff));
    } else if constexpr (F == TileFormat::kQ6_K) {
        FORERUN_UNROLL
        for (int half = 0; half < kHalves; ++half) {
            const uint8_t* const scales = tile + half * tile_shape(F).tile_bytes;
            const Vec scale = first_bits<10>(lane_scales<F, 0>({load(group.d), zero()}, scales).scale);
            store(to.scale[half], scale);
            store_offsets<3>(scale, kSixPlaces, tile_shape(F).zero_code, to.offset[half]);
        }
    } else {
        const LaneScales scales = lane_scales<F, 0>({load(group.d), load(group.minimum)}, tile);
        store(to.scale[0], scales.scale);
        store(to.minimum, scales.minimum);
    }
}

FORERUN_INLINE __m512i line_at(const uint8_t* codes, int line) {
    return _mm512_loadu_si512(codes + static_cast<size_t>(line) * kLineBytes);
}

// x >> shift in every word: a product, because shifts wait for the one port that permutations need.
FORERUN_INLINE __m512i shift_words(__m512i x, int shift) {
    return shift ? _mm512_mulhi_epu16(x, _mm512_set1_epi16(static_cast<short>(1 << (16 - shift)))) : x;
}

// Where vpmultishiftqb begins to read the bits of every byte.
struct ByteShifts {
    alignas(64) uint8_t bit[64];
    FORERUN_MEMBER __m512i load() const { return _mm512_load_si512(bit); }
};

// Eight bits of x, from bit `from` of every word on, to both bytes of the word.
constexpr ByteShifts word_shifts(int from) {
    ByteShifts shifts{};
    for (int i = 0; i < 64; ++i)
        shifts.bit[i] = static_cast<uint8_t>((i % 8 / 2 * 16 + from) & 63);
    return shifts;
}
template <int FROM>
FORERUN_INLINE __m512i both_bytes(__m512i x) {
    static constexpr ByteShifts kShifts = word_shifts(FROM);
    return _mm512_multishift_epi64_epi8(kShifts.load(), x);
}

// Every qword turned right.
constexpr ByteShifts turn_shifts(int bits) {
    ByteShifts shifts{};
    for (int i = 0; i < 64; ++i)
        shifts.bit[i] = static_cast<uint8_t>((i % 8 * 8 + bits) & 63);
    return shifts;
}
template <int BITS>
FORERUN_INLINE __m512i turned_right(__m512i x) {
    static constexpr ByteShifts kShifts = turn_shifts(BITS);
    return _mm512_multishift_epi64_epi8(kShifts.load(), x);
}

// mask ? a : b, bit by bit
FORERUN_INLINE __m512i choose(__m512i mask, __m512i a, __m512i b) {
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

// The values of sixteen codes of an output, first, first + step, ...
template <TileFormat F>
FORERUN_INLINE __m512i row_values(const RowScales& scales, int output, int first, int step) {
    alignas(64) float numbers[kLanes];  // a constant
    FORERUN_UNROLL
    for (int i = 0; i < kLanes; ++i)
        numbers[i] = static_cast<float>(first + i * step - tile_shape(F).zero_code);
    const __m512 codes = _mm512_load_ps(numbers);
    const __m512 scale = _mm512_set1_ps(scales.scale[0][output]);
    const __m512 values = has_minimum(F) ? _mm512_fmadd_ps(codes, scale, _mm512_set1_ps(scales.minimum[output]))
                                         : _mm512_mul_ps(codes, scale);
    return _mm512_castps_si512(values);
}

FORERUN_INLINE void store_weights(uint16_t* out, int output, __m512i values) {
    _mm512_store_si512(out + output * kTileDepth, values);
}

// Upper halves of `even` and of `odd`, in turns.
FORERUN_INLINE __m512i upper_halves(__m512i even, __m512i odd) {
    const __m512i down = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
    return _mm512_mask_shuffle_epi8(odd, 0x3333'3333'3333'3333u, even, down);
}

// fetch(output) is called before every output: what is fetched meanwhile must be asked for in even intervals, or the
// processor works while memory rests.
template <TileFormat F, class Fetch>
FORERUN_INLINE void unpack_four_bits(const uint8_t* codes, const RowScales& scales, uint16_t* out, const Fetch& fetch) {
    const __m512i odd_bits_a = _mm512_set1_epi16(0x1010), odd_bits_b = _mm512_set1_epi16(0x0101);
    FORERUN_UNROLL
    for (int line = 0; line < 4; ++line) {
        // Every code stands behind the highest bit of another, which is set where the code is looked up.
        const __m512i words = line_at(codes, line);
        const __m512i a = _mm512_or_si512(words, odd_bits_a), b = _mm512_or_si512(words, odd_bits_b);
        const __m512i index[4] = {b, shift_words(a, 4), shift_words(b, 8), _mm512_shldi_epi16(a, a, 4)};
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const int output = 4 * line + i;
            fetch(output);
            store_weights(out, output, _mm512_permutexvar_epi16(index[i], row_values<F>(scales, output, 0, 1)));
        }
    }
}

template <TileFormat F, int OUTPUT, class Fetch>
FORERUN_INLINE void unpack_five_bits(const uint8_t* codes, const RowScales& scales, uint16_t* out, const Fetch& fetch,
                                     __m512i last = _mm512_setzero_si512()) {
    if constexpr (OUTPUT < kLanes) {
        fetch(OUTPUT);
        const __m512i words = line_at(codes, OUTPUT / 3);
        __m512i code = last;  // from bit 1 of each byte on
        if constexpr (OUTPUT < 15) code = both_bytes<OUTPUT % 3 * 5 - 1>(words);
        const __m512i halves = _mm512_set1_epi16(0x0100), code_bits = _mm512_set1_epi8(0x3e);
        const __m512i bytes = choose(code_bits, code, halves);
        const __m512i values = upper_halves(row_values<F>(scales, OUTPUT, 0, 2), row_values<F>(scales, OUTPUT, 1, 2));
        store_weights(out, OUTPUT, _mm512_permutexvar_epi8(bytes, values));
        if constexpr (OUTPUT % 3 == 0 && OUTPUT < 15) {
            constexpr int kBit = OUTPUT / 3;  // of the last output
            last = choose(_mm512_set1_epi8(2 << kBit), both_bytes<14 - kBit>(words), last);
        }
        unpack_five_bits<F, OUTPUT + 1>(codes, scales, out, fetch, last);
    }
}

// The values of codes of BITS bits at place PLACE of every dword, which are those of a half's inputs.
template <int PLACE, int BITS>
FORERUN_INLINE __m512i field_values(__m512i dwords, const RowScales& scales, int half, int index, int output) {
    const __m512 base = _mm512_set1_ps(static_cast<float>(1 << (23 - PLACE)));
    const __m512i mask = _mm512_set1_epi32(((1 << BITS) - 1) << PLACE);
    const __m512i number = _mm512_ternarylogic_epi32(_mm512_castps_si512(base), dwords, mask, 0xf8);  // a | (b & c)
    const int scale = BITS == 6 ? half : 0;
    return _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(number), _mm512_set1_ps(scales.scale[scale][output]),
                                               _mm512_set1_ps(scales.offset[scale][index][output])));
}

// Number 2 x output + half of 32, five to a line: three where they stand, two after a turn that brings them there.
// Bits 3 and 4 of the lines are left over: of lines 0 to 2 they are number 30, of the others 31.
template <int NUMBER>
FORERUN_INLINE __m512i six_bits(const __m512i (&lines)[6], const RowScales& scales) {
    constexpr int kOutput = NUMBER / 2, kHalf = NUMBER % 2, kField = NUMBER % 5, kIndex = kField % 3;
    if constexpr (NUMBER < 30) {
        const __m512i line = kField < 3 ? lines[NUMBER / 5] : turned_right<18>(lines[NUMBER / 5]);
        return field_values<kSixPlaces[kIndex], 6>(line, scales, kHalf, kIndex, kOutput);
    } else {
        constexpr int kFirst = NUMBER == 30 ? 0 : 3;
        const __m512i two = choose(_mm512_set1_epi32(0x7f), turned_right<64 - 2>(lines[kFirst]),
                                   turned_right<64 - 4>(lines[kFirst + 1]));
        const __m512i line = choose(_mm512_set1_epi32(0x1ff), two, turned_right<64 - 6>(lines[kFirst + 2]));
        return field_values<kSixPlaces[0], 6>(line, scales, kHalf, 0, kOutput);
    }
}

template <int OUTPUT, class Fetch>
FORERUN_INLINE void unpack_six_bits(const __m512i (&lines)[6], const RowScales& scales, uint16_t* out,
                                    const Fetch& fetch) {
    if constexpr (OUTPUT < kLanes) {
        fetch(OUTPUT);
        store_weights(out, OUTPUT,
                      upper_halves(six_bits<2 * OUTPUT>(lines, scales), six_bits<2 * OUTPUT + 1>(lines, scales)));
        unpack_six_bits<OUTPUT + 1>(lines, scales, out, fetch);
    }
}

template <class Fetch>
FORERUN_INLINE void unpack_eight_bits(const uint8_t* codes, const RowScales& scales, uint16_t* out,
                                      const Fetch& fetch) {
    FORERUN_UNROLL
    for (int line = 0; line < 8; ++line) {
        __m512i dwords = line_at(codes, line);
        FORERUN_UNROLL
        for (int i = 0; i < 2; ++i) {
            const int output = 2 * line + i;
            fetch(output);
            store_weights(out, output,
                          upper_halves(field_values<kEightPlaces[0], 8>(dwords, scales, 0, 0, output),
                                       field_values<kEightPlaces[1], 8>(dwords, scales, 1, 1, output)));
            dwords = turned_right<16>(dwords);
        }
    }
}

// The step whose first tile is at `tile`. scales  store_scales of it. out [16][32], 64-byte aligned
template <TileFormat F, class Fetch>
FORERUN_INLINE void unpack_rows(const uint8_t* tile, const RowScales& scales, uint16_t* out, const Fetch& fetch) {
    constexpr TileShape kShape = tile_shape(F);
    const uint8_t* const codes = tile + kShape.scale_bytes;
    if constexpr (code_bits(F) == 4) {
        unpack_four_bits<F>(codes, scales, out, fetch);
    } else if constexpr (code_bits(F) == 5) {
        unpack_five_bits<F, 0>(codes, scales, out, fetch);
    } else if constexpr (code_bits(F) == 6) {
        const uint8_t* const next = codes + kShape.tile_bytes;
        const __m512i lines[6] = {line_at(codes, 0), line_at(codes, 1), line_at(codes, 2),
                                  line_at(next, 0),  line_at(next, 1),  line_at(next, 2)};
        unpack_six_bits<0>(lines, scales, out, fetch);
    } else {
        unpack_eight_bits(codes, scales, out, fetch);
    }
}
