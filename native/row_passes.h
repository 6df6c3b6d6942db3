// Passes over one row of logits, and the noise of its tokens: the loops of draw.cpp that run over a whole vocabulary.
// They are written with a fixed number of lanes, so that the compiler vectorises them and every instruction set rounds
// alike. Included by draw.cpp only.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

// Let GCC compile a function for several instruction sets and pick one when the module is loaded. Sanitizers and C
// libraries other than glibc cannot run code that early.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FORERUN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FORERUN_CLONES
#endif

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLn2 = 0.6931471805599453;
constexpr int kLanes = 16;
constexpr int kBlock = 64;        // values tested together before any is looked at alone
constexpr int kNoiseBlock = 256;  // tokens whose noise is computed together

// ---- noise: Philox4x32-10, counter (position, token >> 1, 0, 0) ----

struct Key {
    uint32_t k0, k1;
};

inline void philox(std::array<uint32_t, 4>& x, Key key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t p0 = uint64_t{x[0]} * 0xD2511F53u;
        const uint64_t p1 = uint64_t{x[2]} * 0xCD9E8D57u;
        x = {uint32_t(p1 >> 32) ^ x[1] ^ key.k0, uint32_t(p1), uint32_t(p0 >> 32) ^ x[3] ^ key.k1, uint32_t(p0)};
        key = {key.k0 + 0x9E3779B9u, key.k1 + 0xBB67AE85u};
    }
}

// Upper 32 of the 52 noise bits of kNoiseBlock tokens from an even `first` on.
FORERUN_CLONES
void upper_noise(Key key, uint32_t position, uint32_t first, uint32_t* upper) {
    for (uint32_t pair = 0; pair < kNoiseBlock / 2; ++pair) {
        std::array<uint32_t, 4> x{position, first / 2 + pair, 0, 0};
        philox(x, key);
        upper[2 * pair] = x[0];
        upper[2 * pair + 1] = x[2];
    }
}

// The noise of one token.
class Noise {
  public:
    Noise(Key key, uint32_t position, uint32_t token) {
        std::array<uint32_t, 4> x{position, token >> 1, 0, 0};
        philox(x, key);
        high_ = x[token & 1 ? 2 : 0];
        low_ = x[token & 1 ? 3 : 1];
    }
    uint32_t upper() const { return high_; }
    double gumbel() const {
        const uint64_t bits = (uint64_t{high_} << 20) | (low_ >> 12);
        return -std::log(-std::log1p(-(double(bits) + 0.5) * 0x1p-52));
    }

  private:
    uint32_t high_, low_;
};

// At least the Gumbel noise of every token whose upper word is `upper`: with u >= (upper >> 1) * 2^-31,
// -log(-log1p(-u)) <= -log(u), and the bits of a float read as a fixed-point number are at most its log2 + 127.
inline float gumbel_bound(uint32_t upper) {
    const float u = float(int32_t(upper >> 1));
    const float log2_u = float(std::bit_cast<int32_t>(u)) * 0x1p-23f - 127.0f;
    return (31.0f - log2_u) * float(kLn2);  // 109 for upper < 2, more than any noise
}

// ---- passes over a row ----

// The maximum, or NaN when the row holds NaN, +inf, or nothing above -inf. Vectors of 16 bytes, which every machine
// has, are written out: compilers keep the lanes of a plain loop in memory.
template <class T>
inline T max_of(const T* z, int n) {
    constexpr T inf = std::numeric_limits<T>::infinity();
    constexpr int kWidth = 16 / sizeof(T), kChains = 4;  // chains: a comparison need not wait for the one before
    typedef T Values __attribute__((vector_size(16)));
    using Bits = decltype(Values{} < Values{});
    Values best[kChains];
    Bits good[kChains];
    for (int chain = 0; chain < kChains; ++chain) {
        best[chain] = Values{} - inf;
        good[chain] = ~Bits{};
    }
    int i = 0;
    for (; i + kChains * kWidth <= n; i += kChains * kWidth) {
        for (int chain = 0; chain < kChains; ++chain) {
            Values values;
            std::memcpy(&values, z + i + chain * kWidth, sizeof values);
            best[chain] = values > best[chain] ? values : best[chain];
            good[chain] &= values < inf;
        }
    }
    T largest = -inf;
    bool is_good = true;
    for (; i < n; ++i) {
        largest = z[i] > largest ? z[i] : largest;
        is_good &= z[i] < inf;
    }
    for (int chain = 0; chain < kChains; ++chain) {
        for (int j = 0; j < kWidth; ++j) {
            largest = std::max(largest, best[chain][j]);
            is_good &= good[chain][j] != 0;
        }
    }
    return is_good && largest > -inf ? largest : std::numeric_limits<T>::quiet_NaN();
}

template <class T>
inline bool any_at_least(const T* z, T bound) {
    int any = 0;
    for (int j = 0; j < kBlock; ++j)
        any |= z[j] >= bound;
    return any != 0;
}

// First index from `i` on whose value is at least `bound`, or n.
template <class T>
inline int next_at_least(const T* z, int i, int n, T bound) {
    for (; i < n && i % kBlock; ++i)
        if (z[i] >= bound) return i;
    while (i + kBlock <= n && !any_at_least(z + i, bound))
        i += kBlock;
    for (; i < n; ++i)
        if (z[i] >= bound) return i;
    return n;
}

FORERUN_CLONES int find(const float* z, int i, int n, float bound) {
    return next_at_least(z, i, n, bound);
}
FORERUN_CLONES int find(const double* z, int i, int n, double bound) {
    return next_at_least(z, i, n, bound);
}

FORERUN_CLONES void widen(const float* row, int n, double* z) {
    for (int i = 0; i < n; ++i)
        z[i] = row[i];
}

// exp for x <= 0, within an ulp or two; exact at 0; 0 below -708. Written so that loops over it vectorise.
inline double exp_nonpositive(double x) {
    constexpr double kRound = 0x1.8p52;  // adding it leaves the nearest integer in the low bits
    const double clamped = x > -708.0 ? x : -708.0;
    const double shifted = clamped * 1.4426950408889634 + kRound;
    const double k = shifted - kRound;
    const double r = (clamped - k * 0x1.62e42fefa3800p-1) - k * 0x1.ef35793c76730p-45;
    double p = 1.0 / 6227020800.0;
    p = p * r + 1.0 / 479001600.0;
    p = p * r + 1.0 / 39916800.0;
    p = p * r + 1.0 / 3628800.0;
    p = p * r + 1.0 / 362880.0;
    p = p * r + 1.0 / 40320.0;
    p = p * r + 1.0 / 5040.0;
    p = p * r + 1.0 / 720.0;
    p = p * r + 1.0 / 120.0;
    p = p * r + 1.0 / 24.0;
    p = p * r + 1.0 / 6.0;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    const double scale = std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
    return x > -708.0 ? p * scale : 0.0;
}

// weights[i] = exp((z[i] - max) / temperature); returns their sum.
FORERUN_CLONES double exponentiate(const double* z, int n, double max, double temperature, double* weights) {
    for (int i = 0; i < n; ++i)
        weights[i] = exp_nonpositive((z[i] - max) / temperature);
    double sum[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int j = 0; j < kLanes; ++j)
            sum[j] += weights[i + j];
    for (; i < n; ++i)
        sum[0] += weights[i];
    for (int j = 1; j < kLanes; ++j)
        sum[0] += sum[j];
    return sum[0];
}

// Sum of the weights of tokens with z >= bound. Vectors are written out because GCC 12.2 miscompiles the plain loop, a
// conditional sum in lanes, for AVX2 and AVX-512.
FORERUN_CLONES double mass_above(const double* z, const double* weights, int n, double bound) {
    constexpr int kWidth = 8;
    using Values = double __attribute__((vector_size(8 * kWidth)));
    using Bits = int64_t __attribute__((vector_size(8 * kWidth)));
    Values sums{}, values;
    Bits kept;
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) {
        std::memcpy(&values, z + i, sizeof values);
        std::memcpy(&kept, weights + i, sizeof kept);
        kept &= values >= bound;
        sums += reinterpret_cast<Values>(kept);
    }
    double sum = 0.0;
    for (; i < n; ++i)
        sum += z[i] >= bound ? weights[i] : 0.0;
    for (int j = 0; j < kWidth; ++j)
        sum += sums[j];
    return sum;
}

// Bounds of the scores of n <= kNoiseBlock tokens; returns the largest.
FORERUN_CLONES float bound_scores(const double* z, int n, double max, float inverse, const uint32_t* upper,
                                  float* out) {
    float best[kLanes];
    std::fill(best, best + kLanes, -std::numeric_limits<float>::infinity());
    for (int i = 0; i < n; ++i)
        out[i] = float(z[i] - max) * inverse + gumbel_bound(upper[i]);
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (int j = 0; j < kLanes; ++j)
            best[j] = out[i + j] > best[j] ? out[i + j] : best[j];
    for (; i < n; ++i)
        best[0] = std::max(best[0], out[i]);
    return *std::max_element(best, best + kLanes);
}

}  // namespace
