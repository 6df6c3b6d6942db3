// Sixteen floats through the compiler's vector extension: any 64-bit machine. No fused multiply-add: `fma` rounds
// twice.
//
// Included inside the namespace of one translation unit, see isa/portable.cpp. vec/avx512.h has the same interface.

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));

struct Mask {
    Ints bits;  // all ones where true
};

struct Vec {
    Floats v;
};

FORERUN_INLINE Mask first_lanes(int n) {
    const Ints lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return {lane < n};
}

FORERUN_INLINE Vec broadcast(float x) {
    return {x - Floats{}};
}
FORERUN_INLINE Vec zero() {
    return {Floats{}};
}

FORERUN_INLINE Vec load(const float* p) {
    Vec r;
    __builtin_memcpy(&r.v, p, 64);
    return r;
}
FORERUN_INLINE void store(float* p, Vec x) {
    __builtin_memcpy(p, &x.v, 64);
}

// The first n lanes; the others are zero.
FORERUN_INLINE Vec load_first(const float* p, int n) {
    if (n >= 16) return load(p);
    Vec r = zero();
    for (int i = 0; i < n; ++i)
        r.v[i] = p[i];
    return r;
}
FORERUN_INLINE void store_first(float* p, Vec x, int n) {
    if (n >= 16) return store(p, x);
    for (int i = 0; i < n; ++i)
        p[i] = x.v[i];
}

FORERUN_INLINE Vec operator+(Vec a, Vec b) {
    return {a.v + b.v};
}
FORERUN_INLINE Vec operator-(Vec a, Vec b) {
    return {a.v - b.v};
}
FORERUN_INLINE Vec operator*(Vec a, Vec b) {
    return {a.v * b.v};
}
FORERUN_INLINE Vec operator/(Vec a, Vec b) {
    return {a.v / b.v};
}
FORERUN_INLINE Vec fma(Vec a, Vec b, Vec c) {
    return {a.v * b.v + c.v};
}

FORERUN_INLINE Mask operator<(Vec a, Vec b) {
    return {a.v < b.v};
}
FORERUN_INLINE Vec select(Mask m, Vec yes, Vec no) {
    return {(Floats)(((Ints)yes.v & m.bits) | ((Ints)no.v & ~m.bits))};
}
// The second operand when either is NaN.
FORERUN_INLINE Vec minimum(Vec a, Vec b) {
    return select({a.v < b.v}, a, b);
}
FORERUN_INLINE Vec maximum(Vec a, Vec b) {
    return select({a.v > b.v}, a, b);
}

// 2^n for whole n in [-126, 127].
FORERUN_INLINE Vec power_of_two(Vec n) {
    return {(Floats)((__builtin_convertvector(n.v, Ints) + 127) << 23)};
}

// Halves added to halves: the shape of the sum is fixed.
FORERUN_INLINE float sum(Vec x) {
    float lanes[16];
    store(lanes, x);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i)
            lanes[i] = lanes[i] + lanes[i + half];
    }
    return lanes[0];
}
FORERUN_INLINE float largest(Vec x) {
    float lanes[16];
    store(lanes, x);
    for (int half = 8; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i)
            lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    }
    return lanes[0];
}

// ---- bfloat16 ----

FORERUN_INLINE Vec load(const uint16_t* p) {
    typedef uint16_t Shorts __attribute__((vector_size(32)));
    Shorts half;
    __builtin_memcpy(&half, p, 32);
    return {(Floats)(__builtin_convertvector(half, Words) << 16)};
}
FORERUN_INLINE Vec load_first(const uint16_t* p, int n) {
    if (n >= 16) return load(p);
    uint16_t lanes[16] = {};
    for (int i = 0; i < n; ++i)
        lanes[i] = p[i];
    return load(lanes);
}

// Sixteen pairs of bfloat16: the even and the odd members.
FORERUN_INLINE void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
    Words pairs;
    __builtin_memcpy(&pairs, p, 64);
    even.v = (Floats)(pairs << 16);
    odd.v = (Floats)(pairs & 0xffff0000u);
}

FORERUN_INLINE void store_bf16_first(uint16_t* p, Vec x, int n) {
    const Words bits = (Words)x.v, magnitude = bits & 0x7fffffffu;
    const Words nan = (Words)(magnitude > 0x7f800000u), tiny = (Words)(magnitude < 0x00800000u);
    const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const Words result = (nan & ((bits >> 16) | 0x40u)) | (tiny & ((bits >> 16) & 0x8000u)) | (~nan & ~tiny & rounded);
    for (int i = 0; i < n; ++i)
        p[i] = (uint16_t)result[i];
}

FORERUN_INLINE void prefetch(const void* p) {
    __builtin_prefetch(p);
}
