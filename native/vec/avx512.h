// Sixteen floats in one AVX-512 register, with fused multiply-add. Needs avx512f, bw, vl and dq; uses bf16 when the
// unit is compiled for it.
//
// Included inside the namespace of one translation unit, see isa/avx512.cpp. vec/sixteen.h has the same interface.

struct Mask {
    __mmask16 bits;
};

struct Vec {
    __m512 v;
};

FORERUN_INLINE Mask first_lanes(int n) {
    return {static_cast<__mmask16>(n >= 16 ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u)};
}

FORERUN_INLINE Vec broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
FORERUN_INLINE Vec zero() {
    return {_mm512_setzero_ps()};
}

FORERUN_INLINE Vec load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
FORERUN_INLINE void store(float* p, Vec x) {
    _mm512_storeu_ps(p, x.v);
}

// The first n lanes; the others are zero.
FORERUN_INLINE Vec load_first(const float* p, int n) {
    return {_mm512_maskz_loadu_ps(first_lanes(n).bits, p)};
}
FORERUN_INLINE void store_first(float* p, Vec x, int n) {
    _mm512_mask_storeu_ps(p, first_lanes(n).bits, x.v);
}

FORERUN_INLINE Vec operator+(Vec a, Vec b) {
    return {_mm512_add_ps(a.v, b.v)};
}
FORERUN_INLINE Vec operator-(Vec a, Vec b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
FORERUN_INLINE Vec operator*(Vec a, Vec b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
FORERUN_INLINE Vec operator/(Vec a, Vec b) {
    return {_mm512_div_ps(a.v, b.v)};
}
FORERUN_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

FORERUN_INLINE Mask operator<(Vec a, Vec b) {
    return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
FORERUN_INLINE Vec select(Mask m, Vec yes, Vec no) {
    return {_mm512_mask_blend_ps(m.bits, no.v, yes.v)};
}
// The second operand when either is NaN.
FORERUN_INLINE Vec minimum(Vec a, Vec b) {
    return {_mm512_min_ps(a.v, b.v)};
}
FORERUN_INLINE Vec maximum(Vec a, Vec b) {
    return {_mm512_max_ps(a.v, b.v)};
}

// 2^n for whole n in [-126, 127].
FORERUN_INLINE Vec power_of_two(Vec n) {
    const __m512i exponent = _mm512_add_epi32(_mm512_cvttps_epi32(n.v), _mm512_set1_epi32(127));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(exponent, 23))};
}

// Halves added to halves: the shape of the sum is fixed.
FORERUN_INLINE float sum(Vec x) {
    const __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_shuffle_ps(c, c, 1)));
}
FORERUN_INLINE float largest(Vec x) {
    const __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    const __m128 c = _mm_max_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_shuffle_ps(c, c, 1)));
}

// ---- bfloat16 ----

FORERUN_INLINE Vec widen(__m256i half) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
FORERUN_INLINE Vec load(const uint16_t* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
FORERUN_INLINE Vec load_first(const uint16_t* p, int n) {
    return widen(_mm256_maskz_loadu_epi16(first_lanes(n).bits, p));
}

// Sixteen pairs of bfloat16: the even and the odd members.
FORERUN_INLINE void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
    const __m512i pairs = _mm512_loadu_si512(p);
    even.v = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    odd.v = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}

// The rule of bf16.h: nearest even, denormals to zero, NaN made quiet.
FORERUN_INLINE void store_bf16_first(uint16_t* p, Vec x, int n) {
#ifdef __AVX512BF16__
    const __m256bh rounded = _mm512_cvtneps_pbh(x.v);  // does just that, whatever MXCSR says
    __m256i result;
    __builtin_memcpy(&result, &rounded, sizeof result);
#else
    const __m512i bits = _mm512_castps_si512(x.v), upper = _mm512_srli_epi32(bits, 16);
    const __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    const __mmask16 tiny = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
    const __m512i half = _mm512_add_epi32(_mm512_and_si512(upper, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    __m512i words = _mm512_srli_epi32(_mm512_add_epi32(bits, half), 16);
    words = _mm512_mask_and_epi32(words, tiny, upper, _mm512_set1_epi32(0x8000));
    words = _mm512_mask_or_epi32(words, nan, upper, _mm512_set1_epi32(0x40));
    const __m256i result = _mm512_cvtepi32_epi16(words);
#endif
    _mm256_mask_storeu_epi16(p, first_lanes(n).bits, result);
}

// ---- one register, where a kernel counts them ----

typedef Vec Reg;
constexpr int kRegLanes = 16;

template <class T>
FORERUN_INLINE Reg load_reg(const T* p) {
    return load(p);
}
FORERUN_INLINE Reg broadcast_reg(float x) {
    return broadcast(x);
}

// ---- numbers of packed weights ----

struct Words {
    __m512i v;
};

FORERUN_INLINE Words load_words(const uint8_t* p) {
    return {_mm512_loadu_si512(p)};
}
template <int SHIFT>
FORERUN_INLINE Words shift_right(Words words) {
    return {_mm512_srli_epi32(words.v, SHIFT)};
}
FORERUN_INLINE Words operator&(Words words, int mask) {
    return {_mm512_and_si512(words.v, _mm512_set1_epi32(mask))};
}
FORERUN_INLINE Words operator|(Words a, Words b) {
    return {_mm512_or_si512(a.v, b.v)};
}
// As int32.
FORERUN_INLINE Vec to_float(Words words) {
    return {_mm512_cvtepi32_ps(words.v)};
}
// float16; NaN loses its payload.
FORERUN_INLINE Vec halves(const uint8_t* p) {
    const __m512 value = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q), value, nan)};
}
FORERUN_INLINE Vec bytes(const uint8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
FORERUN_INLINE Vec bytes(const int8_t* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

FORERUN_INLINE void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

// Vectors that fit the registers.
constexpr int kVectors = 32;
