// Whole numbers for packed weights that meet inputs of 16 bits, sixteen int32 or as many pairs of int16 in one AVX-512
// register. Needs avx512_vnni beside what vec/avx512.h needs. vec/avx2_pairs.h has the same interface.

// Rows and panels whose sums fit the registers, and sums that a row keeps apart, so that few rows need not wait for one
// product after the other.
constexpr int kPairRows = 8;
constexpr int kPairPanels = 2;
constexpr int pair_chains(int rows) {
    return rows == 1 ? 4 : rows == 2 ? 2 : 1;
}

FORERUN_INLINE Words same_words(int32_t value) {
    return {_mm512_set1_epi32(value)};
}
FORERUN_INLINE Words operator+(Words a, Words b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
// to + the products of both members of every pair with those of `inputs`.
FORERUN_INLINE Words add_products(Words to, Words pairs, int32_t inputs) {
    return {_mm512_dpwssd_epi32(to.v, pairs.v, _mm512_set1_epi32(inputs))};
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
FORERUN_INLINE int32_t sum(Words words) {
    return _mm512_reduce_add_epi32(words.v);
}
// The nearest whole numbers, at most 2^15 - 1; 0 for NaN.
FORERUN_INLINE Words whole_numbers(Vec x) {
    const __mmask16 finite = _mm512_cmp_ps_mask(x.v, x.v, _CMP_ORD_Q);
    return {_mm512_min_epi32(_mm512_maskz_cvtps_epi32(finite, x.v), _mm512_set1_epi32(0x7fff))};
}
// The lower halves of numbers that int16 holds.
FORERUN_INLINE void store_int16(uint16_t* p, Words words) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words.v));
}

// ---- writing past the caches; `p` is a multiple of 64 bytes ----

FORERUN_INLINE void stream(float* p, Vec x) {
    _mm512_stream_ps(p, x.v);
}
FORERUN_INLINE void finish_streams() {
    _mm_sfence();
}
