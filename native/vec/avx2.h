// Sixteen floats in two AVX registers, with fused multiply-add. Needs avx2, fma and f16c.
//
// Included inside the namespace of one translation unit, see isa/avx2.cpp.

struct Eight {
    static constexpr int kWidth = 8;
    struct Mask {
        __m256 bits;
    };
    __m256 v;

    FORERUN_INLINE Mask first_lanes(int n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane))};
    }
    FORERUN_INLINE Eight broadcast(float x) { return {_mm256_set1_ps(x)}; }
    FORERUN_INLINE Eight load(const float* p) { return {_mm256_loadu_ps(p)}; }
    FORERUN_INLINE void store(float* p, Eight x) { _mm256_storeu_ps(p, x.v); }
    FORERUN_INLINE Eight load(const uint16_t* p) {
        const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
    }
    FORERUN_INLINE void load_pairs(const uint16_t* p, Eight& even, Eight& odd) {
        const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
        even.v = _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
        odd.v = _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
    }
    // The rule of bf16.h.
    FORERUN_INLINE void store_bf16(uint16_t* p, Eight x) {
        const __m256i bits = _mm256_castps_si256(x.v), upper = _mm256_srli_epi32(bits, 16);
        const __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
        const __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
        const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), magnitude);
        const __m256i half = _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
        __m256i result = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
        result = _mm256_blendv_epi8(result, _mm256_and_si256(upper, _mm256_set1_epi32(0x8000)), tiny);
        result = _mm256_blendv_epi8(result, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
        const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
    }

    struct Words {
        __m256i v;
    };
    FORERUN_INLINE Words load_words(const uint8_t* p) {
        return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
    }
    template <int SHIFT>
    FORERUN_INLINE Words shift_right(Words words) {
        return {_mm256_srli_epi32(words.v, SHIFT)};
    }
    FORERUN_INLINE Words both(Words words, int mask) { return {_mm256_and_si256(words.v, _mm256_set1_epi32(mask))}; }
    FORERUN_INLINE Words either(Words a, Words b) { return {_mm256_or_si256(a.v, b.v)}; }
    FORERUN_INLINE Eight to_float(Words words) { return {_mm256_cvtepi32_ps(words.v)}; }
    FORERUN_INLINE Eight halves(const uint8_t* p) {
        const __m256 value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
        return {_mm256_blendv_ps(value, nan, _mm256_cmp_ps(value, value, _CMP_UNORD_Q))};
    }
    FORERUN_INLINE Eight bytes(const uint8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
    }
    FORERUN_INLINE Eight bytes(const int8_t* p) {
        return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
    }
};

FORERUN_INLINE Eight operator+(Eight a, Eight b) {
    return {_mm256_add_ps(a.v, b.v)};
}
FORERUN_INLINE Eight operator-(Eight a, Eight b) {
    return {_mm256_sub_ps(a.v, b.v)};
}
FORERUN_INLINE Eight operator*(Eight a, Eight b) {
    return {_mm256_mul_ps(a.v, b.v)};
}
FORERUN_INLINE Eight operator/(Eight a, Eight b) {
    return {_mm256_div_ps(a.v, b.v)};
}
FORERUN_INLINE Eight fma(Eight a, Eight b, Eight c) {
    return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}

FORERUN_INLINE Eight::Mask operator<(Eight a, Eight b) {
    return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)};
}
FORERUN_INLINE Eight select(Eight::Mask m, Eight yes, Eight no) {
    return {_mm256_blendv_ps(no.v, yes.v, m.bits)};
}
// The second operand when either is NaN.
FORERUN_INLINE Eight minimum(Eight a, Eight b) {
    return {_mm256_min_ps(a.v, b.v)};
}
FORERUN_INLINE Eight maximum(Eight a, Eight b) {
    return {_mm256_max_ps(a.v, b.v)};
}

// 2^n for whole n in [-126, 127].
FORERUN_INLINE Eight power_of_two(Eight n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvttps_epi32(n.v), _mm256_set1_epi32(127));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23))};
}

// Halves with halves: the shape is fixed.
FORERUN_INLINE float sum(Eight x) {
    const __m128 a = _mm_add_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
    const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
FORERUN_INLINE float largest(Eight x) {
    const __m128 a = _mm_max_ps(_mm256_castps256_ps128(x.v), _mm256_extractf128_ps(x.v, 1));
    const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

#include "vec/twice.h"

typedef Eight Reg;
typedef Twice<Eight> Vec;

#include "vec/sixteen.h"

// Vectors that fit the registers, two registers each.
constexpr int kVectors = 8;
