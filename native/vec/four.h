// Four: four floats through the compiler's vector extension, on any 64-bit machine, all but `fma`: the including header
// says whether that rounds once or twice.

typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));

struct Four {
    static constexpr int kWidth = 4;
    struct Mask {
        Ints bits;  // all ones where true
    };
    Floats v;

    FORERUN_INLINE Mask first_lanes(int n) {
        const Ints lane = {0, 1, 2, 3};
        return {lane < n};
    }
    FORERUN_INLINE Four broadcast(float x) { return {Floats{x, x, x, x}}; }
    FORERUN_INLINE Four load(const float* p) {
        Four r;
        __builtin_memcpy(&r.v, p, sizeof r.v);
        return r;
    }
    FORERUN_INLINE void store(float* p, Four x) { __builtin_memcpy(p, &x.v, sizeof x.v); }
    FORERUN_INLINE Four load(const uint16_t* p) {
        typedef uint16_t Shorts __attribute__((vector_size(8)));
        Shorts half;
        __builtin_memcpy(&half, p, sizeof half);
        return {(Floats)(__builtin_convertvector(half, Words) << 16)};
    }
    FORERUN_INLINE void load_pairs(const uint16_t* p, Four& even, Four& odd) {
        Words pairs;
        __builtin_memcpy(&pairs, p, sizeof pairs);
        even.v = (Floats)(pairs << 16);
        odd.v = (Floats)(pairs & 0xffff0000u);
    }
    // The rule of bf16.h.
    FORERUN_INLINE void store_bf16(uint16_t* p, Four x) {
        const Words bits = (Words)x.v, magnitude = bits & 0x7fffffffu;
        const Words nan = (Words)(magnitude > 0x7f800000u), tiny = (Words)(magnitude < 0x00800000u);
        const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        const Words quiet = (bits >> 16) | 0x40u, signed_zero = (bits >> 16) & 0x8000u;
        const Words result = (nan & quiet) | (tiny & signed_zero) | (~nan & ~tiny & rounded);
        for (int i = 0; i < 4; ++i)
            p[i] = static_cast<uint16_t>(result[i]);
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
    return {(Floats)(((Ints)yes.v & m.bits) | ((Ints)no.v & ~m.bits))};
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
    return {(Floats)((__builtin_convertvector(n.v, Ints) + 127) << 23)};
}

// Halves with halves: the shape is fixed.
FORERUN_INLINE float sum(Four x) {
    return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
}
FORERUN_INLINE float largest(Four x) {
    const float a = x.v[0] > x.v[2] ? x.v[0] : x.v[2], b = x.v[1] > x.v[3] ? x.v[1] : x.v[3];
    return a > b ? a : b;
}
