// Four: four floats through the compiler's vector extension, on any 64-bit machine, all but `fma`: the including header
// says whether that rounds once or twice.

typedef float F32x4 __attribute__((vector_size(16)));
typedef int32_t I32x4 __attribute__((vector_size(16)));
typedef uint32_t U32x4 __attribute__((vector_size(16)));

struct Four {
    static constexpr int kWidth = 4;
    struct Mask {
        I32x4 bits;  // all ones where true
    };
    F32x4 v;

    FORERUN_INLINE Mask first_lanes(int n) {
        const I32x4 lane = {0, 1, 2, 3};
        return {lane < n};
    }
    FORERUN_INLINE Four broadcast(float x) { return {F32x4{x, x, x, x}}; }
    FORERUN_INLINE Four load(const float* p) {
        Four r;
        __builtin_memcpy(&r.v, p, sizeof r.v);
        return r;
    }
    FORERUN_INLINE void store(float* p, Four x) { __builtin_memcpy(p, &x.v, sizeof x.v); }
    FORERUN_INLINE Four load(const uint16_t* p) {
        typedef uint16_t U16x4 __attribute__((vector_size(8)));
        U16x4 half;
        __builtin_memcpy(&half, p, sizeof half);
        return {(F32x4)(__builtin_convertvector(half, U32x4) << 16)};
    }
    FORERUN_INLINE void load_pairs(const uint16_t* p, Four& even, Four& odd) {
        U32x4 pairs;
        __builtin_memcpy(&pairs, p, sizeof pairs);
        even.v = (F32x4)(pairs << 16);
        odd.v = (F32x4)(pairs & 0xffff0000u);
    }
    // The rule of bf16.h.
    FORERUN_INLINE void store_bf16(uint16_t* p, Four x) {
        const U32x4 bits = (U32x4)x.v, magnitude = bits & 0x7fffffffu;
        const U32x4 nan = (U32x4)(magnitude > 0x7f800000u), tiny = (U32x4)(magnitude < 0x00800000u);
        const U32x4 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const U32x4 quiet = (bits >> 16) | 0x40u, signed_zero = (bits >> 16) & 0x8000u;
        const U32x4 result = (nan & quiet) | (tiny & signed_zero) | (~nan & ~tiny & rounded);
        for (int i = 0; i < 4; ++i)
            p[i] = static_cast<uint16_t>(result[i]);
    }

    struct Words {
        U32x4 v;
    };
    FORERUN_INLINE Words load_words(const uint8_t* p) {
        Words words;
        __builtin_memcpy(&words.v, p, sizeof words.v);
        return words;
    }
    template <int SHIFT>
    FORERUN_INLINE Words shift_right(Words words) {
        return {words.v >> SHIFT};
    }
    FORERUN_INLINE Words both(Words words, int mask) { return {words.v & static_cast<uint32_t>(mask)}; }
    FORERUN_INLINE Words either(Words a, Words b) { return {a.v | b.v}; }
    FORERUN_INLINE Four to_float(Words words) { return {__builtin_convertvector((I32x4)words.v, F32x4)}; }
    FORERUN_INLINE Four halves(const uint8_t* p) {
        typedef uint16_t U16x4 __attribute__((vector_size(8)));
        U16x4 half;
        __builtin_memcpy(&half, p, sizeof half);
        const U32x4 bits = __builtin_convertvector(half, U32x4), magnitude = bits & 0x7fffu;
        // Exponents differ by 112; the product puts denormals right too.
        const U32x4 finite = (U32x4)((F32x4)(magnitude << 13) * 0x1p112f);
        const U32x4 infinite = (U32x4)(magnitude == 0x7c00u) & 0x7f800000u;
        const U32x4 nan = (U32x4)(magnitude > 0x7c00u) & 0x7fc00000u;
        const U32x4 is_finite = (U32x4)(magnitude < 0x7c00u);
        return {(F32x4)((bits & 0x8000u) << 16 | (finite & is_finite) | infinite | nan)};
    }
    template <class Byte>
    FORERUN_INLINE Four bytes(const Byte* p) {
        const F32x4 values = {static_cast<float>(p[0]), static_cast<float>(p[1]), static_cast<float>(p[2]),
                              static_cast<float>(p[3])};
        return {values};
    }
};

FORERUN_INLINE Four operator+(Four a, Four b) {
    return {a.v + b.v};
}
FORERUN_INLINE Four operator-(Four a, Four b) {
    return {a.v - b.v};
}
FORERUN_INLINE Four operator*(Four a, Four b) {
    return {a.v * b.v};
}
FORERUN_INLINE Four operator/(Four a, Four b) {
    return {a.v / b.v};
}

FORERUN_INLINE Four::Mask operator<(Four a, Four b) {
    return {a.v < b.v};
}
FORERUN_INLINE Four select(Four::Mask m, Four yes, Four no) {
    return {(F32x4)(((I32x4)yes.v & m.bits) | ((I32x4)no.v & ~m.bits))};
}
// The second operand when either is NaN.
FORERUN_INLINE Four minimum(Four a, Four b) {
    return select({a.v < b.v}, a, b);
}
FORERUN_INLINE Four maximum(Four a, Four b) {
    return select({a.v > b.v}, a, b);
}

// 2^n for whole n in [-126, 127].
FORERUN_INLINE Four power_of_two(Four n) {
    return {(F32x4)((__builtin_convertvector(n.v, I32x4) + 127) << 23)};
}

// Halves with halves: the shape is fixed.
FORERUN_INLINE float sum(Four x) {
    return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
}
FORERUN_INLINE float largest(Four x) {
    const float a = x.v[0] > x.v[2] ? x.v[0] : x.v[2], b = x.v[1] > x.v[3] ? x.v[1] : x.v[3];
    return a > b ? a : b;
}
