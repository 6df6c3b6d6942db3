// Whole numbers for packed weights that meet inputs of 16 bits, sixteen int32 or as many pairs of int16 in one AVX-512
// register. Needs avx512_vnni beside what vec/avx512.h needs. vec/avx2_pairs.h has the same interface.

// Rows and panels whose sums fit the registers, and sums that a row keeps apart, so that few rows need not wait for one
// product after the other.
constexpr int kPairRows = 8;
constexpr int kPairPanels = 2;
constexpr int kSumRows = 5;  // from which on half of the products are products of sums
constexpr int pair_chains(int rows) {
    return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

FORERUN_INLINE Words same_words(int32_t value) {
    return {_mm512_set1_epi32(value)};
}
FORERUN_INLINE Words operator+(Words a, Words b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
FORERUN_INLINE Words operator-(Words a, Words b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}
// The pair at `p` in all places.
FORERUN_INLINE Words same_pairs(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return same_words(pair);
}
// to + the products of both members of every pair with those of `others`.
FORERUN_INLINE Words add_products(Words to, Words pairs, Words others) {
    return {_mm512_dpwssd_epi32(to.v, pairs.v, others.v)};
}
// Each member of a pair for itself.
FORERUN_INLINE Words add_members(Words a, Words b) {
    return {_mm512_add_epi16(a.v, b.v)};
}
template <int SHIFT>
FORERUN_INLINE Words shift_members(Words pairs) {
    return {SHIFT == 0 ? pairs.v : _mm512_srli_epi16(pairs.v, SHIFT)};
}
// words | (more & mask)
FORERUN_INLINE Words with_bits(Words words, Words more, int mask) {
    return {_mm512_ternarylogic_epi32(words.v, more.v, _mm512_set1_epi32(mask), 0xf8)};
}

// Four rows of sixteen int8 as two vectors of pairs. Dwords of the four rows come together first, then the bytes inside
// a dword change places: (a0, b0, a1, b1), which are two pairs of words on top of each other.
FORERUN_INLINE void byte_pairs(const uint8_t* rows, Words& first, Words& second) {
    const __m512i dwords = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i within = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 4, 12, 1, 9, 5, 13, 2, 10, 6, 14, 3, 11, 7, 15));
    const __m512i both = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(dwords, _mm512_loadu_si512(rows)), within);
    first.v = _mm512_srai_epi16(_mm512_slli_epi16(both, 8), 8);
    second.v = _mm512_srai_epi16(both, 8);
}

// ---- making them ----

// The bits of |x|.
FORERUN_INLINE Words magnitudes(Vec x) {
    return {_mm512_and_si512(_mm512_castps_si512(x.v), _mm512_set1_epi32(0x7fffffff))};
}
FORERUN_INLINE Words larger(Words a, Words b) {
    return {_mm512_max_epu32(a.v, b.v)};
}
FORERUN_INLINE uint32_t largest(Words words) {
    return _mm512_reduce_max_epu32(words.v);
}
// The nearest whole numbers; 0 for NaN.
FORERUN_INLINE Words whole_numbers(Vec x) {
    return {_mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q), x.v)};
}
// Stores 32 inputs, which int16 holds. Returns their sums and those of the products a b that MultiplySums takes off:
// of pairs 2 and 3, 6 and 7 and so on. A product's overflow is lost here and there alike.
template <class Sums>
FORERUN_INLINE Sums store_int16(uint16_t* p, Words inputs, Words more) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i pairs =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi32_epi16(inputs.v)), _mm512_cvtepi32_epi16(more.v), 1);
    _mm512_storeu_si512(p, pairs);
    const __m512i next = _mm512_maskz_shuffle_epi32(0x4444, pairs, _MM_PERM_CDAB);
    const __m512i sums = _mm512_dpwssd_epi32(zero, pairs, _mm512_set1_epi16(1));
    const __m512i products = _mm512_dpwssd_epi32(zero, pairs, next);
    // Of every four lanes: sum, product, sum, product.
    const __m512i halves =
        _mm512_add_epi32(_mm512_unpacklo_epi32(sums, products), _mm512_unpackhi_epi32(sums, products));
    const __m512i quarters = _mm512_add_epi32(halves, _mm512_shuffle_epi32(halves, _MM_PERM_BADC));
    const __m256i lower = _mm512_castsi512_si256(quarters), upper = _mm512_extracti64x4_epi64(quarters, 1);
    const __m128i first = _mm_add_epi32(_mm256_castsi256_si128(lower), _mm256_extracti128_si256(lower, 1));
    const __m128i last = _mm_add_epi32(_mm256_castsi256_si128(upper), _mm256_extracti128_si256(upper, 1));
    const __m128i minus_all = _mm_sub_epi32(_mm_setzero_si128(), _mm_add_epi32(first, last));
    const __m128i minus_first = _mm_sub_epi32(_mm_setzero_si128(), first);
    return {_mm_cvtsi128_si32(minus_all), _mm_cvtsi128_si32(minus_first), _mm_extract_epi32(minus_all, 1),
            _mm_extract_epi32(minus_first, 1)};
}

// ---- writing past the caches; `p` is a multiple of 64 bytes ----

FORERUN_INLINE void stream(float* p, Vec x) {
    _mm512_stream_ps(p, x.v);
}
FORERUN_INLINE void finish_streams() {
    _mm_sfence();
}
