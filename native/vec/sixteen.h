// The interface of the kernels to sixteen lanes, on top of `Vec` = Twice<...> of the including header. vec/avx512.h has
// the same interface on one register.

typedef Vec::Mask Mask;
static_assert(Vec::kWidth == kLanes, "kernels count on 16 lanes");

FORERUN_INLINE Mask first_lanes(int n) {
    return Vec::first_lanes(n);
}
FORERUN_INLINE Vec broadcast(float x) {
    return Vec::broadcast(x);
}
FORERUN_INLINE Vec zero() {
    return broadcast(0.0f);
}

FORERUN_INLINE Vec load(const float* p) {
    return Vec::load(p);
}
FORERUN_INLINE Vec load(const uint16_t* p) {
    return Vec::load(p);
}
FORERUN_INLINE void store(float* p, Vec x) {
    Vec::store(p, x);
}

// The first n lanes; the others are zero.
template <class T>
FORERUN_INLINE Vec load_first(const T* p, int n) {
    if (n >= kLanes) return load(p);
    T lanes[kLanes] = {};
    for (int i = 0; i < n; ++i)
        lanes[i] = p[i];
    return load(lanes);
}
FORERUN_INLINE void store_first(float* p, Vec x, int n) {
    if (n >= kLanes) return store(p, x);
    float lanes[kLanes];
    store(lanes, x);
    for (int i = 0; i < n; ++i)
        p[i] = lanes[i];
}
FORERUN_INLINE void store_bf16_first(uint16_t* p, Vec x, int n) {
    if (n >= kLanes) return Vec::store_bf16(p, x);
    uint16_t lanes[kLanes];
    Vec::store_bf16(lanes, x);
    for (int i = 0; i < n; ++i)
        p[i] = lanes[i];
}

// Sixteen pairs of bfloat16: the even and the odd members.
FORERUN_INLINE void load_pairs(const uint16_t* p, Vec& even, Vec& odd) {
    Vec::load_pairs(p, even, odd);
}

// ---- one register, where a kernel counts them ----

constexpr int kRegLanes = Reg::kWidth;

template <class T>
FORERUN_INLINE Reg load_reg(const T* p) {
    return Reg::load(p);
}
FORERUN_INLINE void store(float* p, Reg x) {
    Reg::store(p, x);
}
FORERUN_INLINE Reg broadcast_reg(float x) {
    return Reg::broadcast(x);
}

// ---- numbers of packed weights ----

typedef Vec::Words Words;  // sixteen uint32

FORERUN_INLINE Words load_words(const uint8_t* p) {
    return Vec::load_words(p);
}
template <int SHIFT>
FORERUN_INLINE Words shift_right(Words words) {
    return Vec::shift_right<SHIFT>(words);
}
FORERUN_INLINE Words operator&(Words words, int mask) {
    return Vec::both(words, mask);
}
FORERUN_INLINE Words operator|(Words a, Words b) {
    return Vec::either(a, b);
}
// As int32.
FORERUN_INLINE Vec to_float(Words words) {
    return Vec::to_float(words);
}
// float16; NaN loses its payload.
FORERUN_INLINE Vec halves(const uint8_t* p) {
    return Vec::halves(p);
}
FORERUN_INLINE Vec bytes(const uint8_t* p) {
    return Vec::bytes(p);
}
FORERUN_INLINE Vec bytes(const int8_t* p) {
    return Vec::bytes(p);
}

FORERUN_INLINE void prefetch(const void* p) {
    __builtin_prefetch(p);
}
