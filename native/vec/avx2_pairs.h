// Whole numbers for packed weights that meet inputs of 16 bits, sixteen int32 or as many pairs of int16 in two AVX
// registers. vec/avx512_pairs.h has the same interface.

// Rows and panels whose sums fit the registers. Products are added up by an instruction of one cycle, so that a row
// needs no sums that are kept apart.
constexpr int kPairRows = 4;
constexpr int kPairPanels = 1;
constexpr int kSumRows = kPairRows + 1;  // none
constexpr int pair_chains(int) {
    return 1;
}

FORERUN_INLINE Words pair_words(__m256i low, __m256i high) {
    Words words;
    words.low.v = low;
    words.high.v = high;
    return words;
}
FORERUN_INLINE Words same_words(int32_t value) {
    const __m256i half = _mm256_set1_epi32(value);
    return pair_words(half, half);
}
FORERUN_INLINE Words operator+(Words a, Words b) {
    return pair_words(_mm256_add_epi32(a.low.v, b.low.v), _mm256_add_epi32(a.high.v, b.high.v));
}
// The pair at `p` in all places.
FORERUN_INLINE Words same_pairs(const uint16_t* p) {
    int32_t pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return same_words(pair);
}
// to + the products of both members of every pair with those of `others`. Two products of which one factor is below
// 2^8 in magnitude and the other at most 2^15 stay in int32.
FORERUN_INLINE Words add_products(Words to, Words pairs, Words others) {
    to = to + pair_words(_mm256_madd_epi16(pairs.low.v, others.low.v), _mm256_madd_epi16(pairs.high.v, others.high.v));
    // Or the compiler adds up the products as a tree, most of which wait in memory.
    __asm__("" : "+x"(to.low.v), "+x"(to.high.v));
    return to;
}
template <int SHIFT>
FORERUN_INLINE Words shift_members(Words pairs) {
    if constexpr (SHIFT == 0) return pairs;
    return pair_words(_mm256_srli_epi16(pairs.low.v, SHIFT), _mm256_srli_epi16(pairs.high.v, SHIFT));
}
// words | (more & mask)
FORERUN_INLINE Words with_bits(Words words, Words more, int mask) {
    return words | (more & mask);
}

// Two rows of sixteen int8 as a vector of pairs.
FORERUN_INLINE Words row_pair(const uint8_t* rows) {
    const __m128i even = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows));
    const __m128i odd = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + kLanes));
    return pair_words(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(even, odd)),
                      _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(even, odd)));
}
// Four rows of sixteen int8 as two vectors of pairs.
FORERUN_INLINE void byte_pairs(const uint8_t* rows, Words& first, Words& second) {
    first = row_pair(rows);
    second = row_pair(rows + 2 * kLanes);
}

// ---- making them ----

// The bits of |x|.
FORERUN_INLINE Words magnitudes(Vec x) {
    return pair_words(_mm256_castps_si256(x.low.v), _mm256_castps_si256(x.high.v)) & 0x7fffffff;
}
FORERUN_INLINE Words larger(Words a, Words b) {
    return pair_words(_mm256_max_epu32(a.low.v, b.low.v), _mm256_max_epu32(a.high.v, b.high.v));
}
FORERUN_INLINE uint32_t largest(Words words) {
    const __m256i a = _mm256_max_epu32(words.low.v, words.high.v);
    const __m128i b = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i c = _mm_max_epu32(b, _mm_shuffle_epi32(b, 0x4e));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(c, _mm_shuffle_epi32(c, 0xb1))));
}
FORERUN_INLINE __m256i whole_numbers(__m256 x) {
    const __m256i finite = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_ORD_Q));
    return _mm256_and_si256(_mm256_cvtps_epi32(x), finite);
}
// The nearest whole numbers; 0 for NaN.
FORERUN_INLINE Words whole_numbers(Vec x) {
    return pair_words(whole_numbers(x.low.v), whole_numbers(x.high.v));
}
// The lower halves of numbers that int16 holds.
FORERUN_INLINE void store_int16(uint16_t* p, Words words) {
    const __m256i halves = _mm256_packs_epi32(words.low.v, words.high.v);  // in pieces of four, the middle two swapped
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(halves, 0xd8));
}

FORERUN_INLINE int32_t sum(Words words) {
    const __m256i a = _mm256_add_epi32(words.low.v, words.high.v);
    const __m128i b = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i c = _mm_add_epi32(b, _mm_shuffle_epi32(b, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(c, _mm_shuffle_epi32(c, 0xb1)));
}
// Stores 32 inputs, which int16 holds. Returns their sums; those of products are for MultiplySums, which does not pay
// here.
template <class Sums>
FORERUN_INLINE Sums store_int16(uint16_t* p, Words inputs, Words more) {
    store_int16(p, inputs);
    store_int16(p + kLanes, more);
    const int32_t first = sum(inputs);
    return {-(first + sum(more)), -first, 0, 0};
}

// ---- writing past the caches; `p` is a multiple of 64 bytes ----

FORERUN_INLINE void stream(float* p, Vec x) {
    _mm256_stream_ps(p, x.low.v);
    _mm256_stream_ps(p + Eight::kWidth, x.high.v);
}
FORERUN_INLINE void finish_streams() {
    _mm_sfence();
}
