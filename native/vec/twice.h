// Twice<T>: a vector of twice as many lanes as T, every operation done to one half and then the other. Machines whose
// registers hold 8 or 4 floats get the 16 lanes of the kernels as Twice<T> or Twice<Twice<T>>.
//
// T has the static members and the operators that Twice has. Included inside the namespace of one translation unit.

template <class T>
struct Twice {
    static constexpr int kWidth = 2 * T::kWidth;
    struct Mask {
        typename T::Mask low, high;
    };
    T low, high;

    FORERUN_INLINE Mask first_lanes(int n) { return {T::first_lanes(n), T::first_lanes(n - T::kWidth)}; }
    FORERUN_INLINE Twice broadcast(float x) {
        const T half = T::broadcast(x);
        return {half, half};
    }
    FORERUN_INLINE Twice load(const float* p) { return {T::load(p), T::load(p + T::kWidth)}; }
    FORERUN_INLINE void store(float* p, Twice x) {
        T::store(p, x.low);
        T::store(p + T::kWidth, x.high);
    }
    // bfloat16
    FORERUN_INLINE Twice load(const uint16_t* p) { return {T::load(p), T::load(p + T::kWidth)}; }
    FORERUN_INLINE void load_pairs(const uint16_t* p, Twice& even, Twice& odd) {
        T::load_pairs(p, even.low, odd.low);
        T::load_pairs(p + 2 * T::kWidth, even.high, odd.high);
    }
    FORERUN_INLINE void store_bf16(uint16_t* p, Twice x) {
        T::store_bf16(p, x.low);
        T::store_bf16(p + T::kWidth, x.high);
    }

    // numbers of packed weights
    struct Words {
        typename T::Words low, high;
    };
    FORERUN_INLINE Words load_words(const uint8_t* p) { return {T::load_words(p), T::load_words(p + 4 * T::kWidth)}; }
    template <int SHIFT>
    FORERUN_INLINE Words shift_right(Words words) {
        return {T::template shift_right<SHIFT>(words.low), T::template shift_right<SHIFT>(words.high)};
    }
    FORERUN_INLINE Words both(Words words, int mask) { return {T::both(words.low, mask), T::both(words.high, mask)}; }
    FORERUN_INLINE Words either(Words a, Words b) { return {T::either(a.low, b.low), T::either(a.high, b.high)}; }
    FORERUN_INLINE Twice to_float(Words words) { return {T::to_float(words.low), T::to_float(words.high)}; }
    FORERUN_INLINE Twice halves(const uint8_t* p) { return {T::halves(p), T::halves(p + 2 * T::kWidth)}; }
    template <class Byte>
    FORERUN_INLINE Twice bytes(const Byte* p) {
        return {T::bytes(p), T::bytes(p + T::kWidth)};
    }
};

template <class T>
FORERUN_INLINE Twice<T> operator+(Twice<T> a, Twice<T> b) {
    return {a.low + b.low, a.high + b.high};
}
template <class T>
FORERUN_INLINE Twice<T> operator-(Twice<T> a, Twice<T> b) {
    return {a.low - b.low, a.high - b.high};
}
template <class T>
FORERUN_INLINE Twice<T> operator*(Twice<T> a, Twice<T> b) {
    return {a.low * b.low, a.high * b.high};
}
template <class T>
FORERUN_INLINE Twice<T> operator/(Twice<T> a, Twice<T> b) {
    return {a.low / b.low, a.high / b.high};
}
template <class T>
FORERUN_INLINE Twice<T> fma(Twice<T> a, Twice<T> b, Twice<T> c) {
    return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}

template <class T>
FORERUN_INLINE typename Twice<T>::Mask operator<(Twice<T> a, Twice<T> b) {
    return {a.low < b.low, a.high < b.high};
}
template <class T>
FORERUN_INLINE Twice<T> select(typename Twice<T>::Mask m, Twice<T> yes, Twice<T> no) {
    return {select(m.low, yes.low, no.low), select(m.high, yes.high, no.high)};
}
template <class T>
FORERUN_INLINE Twice<T> minimum(Twice<T> a, Twice<T> b) {
    return {minimum(a.low, b.low), minimum(a.high, b.high)};
}
template <class T>
FORERUN_INLINE Twice<T> maximum(Twice<T> a, Twice<T> b) {
    return {maximum(a.low, b.low), maximum(a.high, b.high)};
}
template <class T>
FORERUN_INLINE Twice<T> power_of_two(Twice<T> n) {
    return {power_of_two(n.low), power_of_two(n.high)};
}
template <class T>
FORERUN_INLINE float sum(Twice<T> x) {
    return sum(x.low + x.high);
}
template <class T>
FORERUN_INLINE float largest(Twice<T> x) {
    return largest(maximum(x.low, x.high));
}
