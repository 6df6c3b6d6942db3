// Passes over one row of logits, see row_passes.h. Written with a fixed number of lanes, so that the compiler
// vectorises them and every instruction set rounds alike. Vectors of the compiler stand where it would keep plain lanes
// in memory.

constexpr double kInfinity = __builtin_inf();
constexpr int kBlock = 64;  // values tested together before any is looked at alone

template <class T>
static T row_max(const T* z, int n) {
    constexpr T inf = static_cast<T>(kInfinity);
    constexpr int kWidth = 64 / sizeof(T), kChains = 4;  // chains: a comparison need not wait for the one before
    typedef T Values __attribute__((vector_size(64)));
    using Bits = decltype(Values{} < Values{});
    Values best[kChains];
    Bits good[kChains];
    FORERUN_UNROLL
    for (int chain = 0; chain < kChains; ++chain) {
        best[chain] = Values{} - inf;
        good[chain] = ~Bits{};
    }
    int i = 0;
    for (; i + kChains * kWidth <= n; i += kChains * kWidth) {
        FORERUN_UNROLL
        for (int chain = 0; chain < kChains; ++chain) {
            Values values;
            __builtin_memcpy(&values, z + i + chain * kWidth, sizeof values);
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
            largest = best[chain][j] > largest ? best[chain][j] : largest;
            is_good &= good[chain][j] != 0;
        }
    }
    return is_good && largest > -inf ? largest : static_cast<T>(__builtin_nan(""));
}

template <class T>
FORERUN_INLINE bool any_at_least(const T* z, T bound) {
    int any = 0;
    for (int j = 0; j < kBlock; ++j)
        any |= z[j] >= bound;
    return any != 0;
}

template <class T>
static int row_find(const T* z, int i, int n, T bound) {
    for (; i < n && i % kBlock; ++i)
        if (z[i] >= bound) return i;
    while (i + kBlock <= n && !any_at_least(z + i, bound))
        i += kBlock;
    for (; i < n; ++i)
        if (z[i] >= bound) return i;
    return n;
}

static void row_widen(const float* row, int n, double* z) {
    for (int i = 0; i < n; ++i)
        z[i] = row[i];
}

// exp for x <= 0, within an ulp or two; exact at 0; 0 below -708. Written so that loops over it vectorise.
FORERUN_INLINE double exp_nonpositive(double x) {
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
    uint64_t bits;
    __builtin_memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023) << 52;
    double scale;
    __builtin_memcpy(&scale, &bits, sizeof scale);
    return x > -708.0 ? p * scale : 0.0;
}

template <class T>
static double row_exponentiate(const T* z, int n, double max, double temperature, double* weights) {
    constexpr int kSums = 16;
    const double inverse = temperature > 1e-300 ? 1.0 / temperature : 1e300;  // finite, so that the heaviest is 0 * it
    for (int i = 0; i < n; ++i)
        weights[i] = exp_nonpositive((static_cast<double>(z[i]) - max) * inverse);
    double sum[kSums] = {};
    int i = 0;
    for (; i + kSums <= n; i += kSums)
        for (int j = 0; j < kSums; ++j)
            sum[j] += weights[i + j];
    for (; i < n; ++i)
        sum[0] += weights[i];
    for (int j = 1; j < kSums; ++j)
        sum[0] += sum[j];
    return sum[0];
}

// A plain loop, a conditional sum in lanes, would be miscompiled by GCC 12.2 for AVX2 and AVX-512.
template <class T>
static void row_masses(const T* z, const double* weights, int n, const double* bounds, double* sums, int64_t* counts) {
    constexpr int kWidth = 8;
    typedef T Stored __attribute__((vector_size(sizeof(T) * kWidth)));
    typedef double Values __attribute__((vector_size(8 * kWidth)));
    typedef int64_t Bits __attribute__((vector_size(8 * kWidth)));
    Values sum[kCuts];
    Bits count[kCuts];
    FORERUN_UNROLL
    for (int cut = 0; cut < kCuts; ++cut) {
        sum[cut] = Values{};
        count[cut] = Bits{};
    }
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) {
        Stored stored;
        Bits weight;
        __builtin_memcpy(&stored, z + i, sizeof stored);
        __builtin_memcpy(&weight, weights + i, sizeof weight);
        const Values values = __builtin_convertvector(stored, Values);
        FORERUN_UNROLL
        for (int cut = 0; cut < kCuts; ++cut) {
            const Bits is_in = values >= bounds[cut];  // all bits, or none
            sum[cut] += reinterpret_cast<Values>(weight & is_in);
            count[cut] -= is_in;
        }
    }
    double sum_lanes[kCuts][kWidth];
    int64_t count_lanes[kCuts][kWidth];
    FORERUN_UNROLL
    for (int cut = 0; cut < kCuts; ++cut) {
        __builtin_memcpy(sum_lanes[cut], &sum[cut], sizeof sum[cut]);
        __builtin_memcpy(count_lanes[cut], &count[cut], sizeof count[cut]);
    }
    for (int cut = 0; cut < kCuts; ++cut) {
        sums[cut] = 0.0;
        counts[cut] = 0;
        for (int j = i; j < n; ++j) {
            const bool is_in = static_cast<double>(z[j]) >= bounds[cut];
            sums[cut] += is_in ? weights[j] : 0.0;
            counts[cut] += is_in;
        }
        for (int lane = 0; lane < kWidth; ++lane) {
            sums[cut] += sum_lanes[cut][lane];
            counts[cut] += count_lanes[cut][lane];
        }
    }
}

template <class T>
static float row_bound_scores(const T* z, int n, double max, float inverse, const uint32_t* upper, float* out) {
    constexpr int kWidth = 16;
    typedef T Stored __attribute__((vector_size(sizeof(T) * kWidth)));
    typedef float Values __attribute__((vector_size(4 * kWidth)));
    typedef int32_t Bits __attribute__((vector_size(4 * kWidth)));
    const T largest = static_cast<T>(max);
    Values best = Values{} - static_cast<float>(kInfinity);
    int i = 0;
    for (; i + kWidth <= n; i += kWidth) {
        Stored stored;
        Bits noise;
        __builtin_memcpy(&stored, z + i, sizeof stored);
        __builtin_memcpy(&noise, upper + i, sizeof noise);
        // gumbel_bound in every lane
        const Values u = __builtin_convertvector((noise >> 1) & 0x7fffffff, Values);
        const Values log2_u = __builtin_convertvector(reinterpret_cast<Bits>(u), Values) * 0x1p-23f - 127.0f;
        const Values score =
            __builtin_convertvector(stored - largest, Values) * inverse + (31.0f - log2_u) * 0.69314718f;
        best = score > best ? score : best;
        __builtin_memcpy(out + i, &score, sizeof score);
    }
    float highest = -static_cast<float>(kInfinity);
    for (; i < n; ++i) {
        out[i] = static_cast<float>(z[i] - largest) * inverse + gumbel_bound(upper[i]);
        highest = out[i] > highest ? out[i] : highest;
    }
    for (int lane = 0; lane < kWidth; ++lane)
        highest = best[lane] > highest ? best[lane] : highest;
    return highest;
}

// ---- noise ----

// NoiseWords of Philox in lanes of 64 bits; what lies above a word is junk that no product reads.
#if defined(__AVX512F__)
typedef uint64_t NoiseWords __attribute__((vector_size(64)));
FORERUN_INLINE NoiseWords word_product(NoiseWords a, NoiseWords b) {
    return reinterpret_cast<NoiseWords>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
}
#elif defined(__AVX2__)
typedef uint64_t NoiseWords __attribute__((vector_size(32)));
FORERUN_INLINE NoiseWords word_product(NoiseWords a, NoiseWords b) {
    return reinterpret_cast<NoiseWords>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
}
#else
typedef uint64_t NoiseWords __attribute__((vector_size(16)));
FORERUN_INLINE NoiseWords word_product(NoiseWords a, NoiseWords b) {
    return (a & 0xffffffffu) * (b & 0xffffffffu);
}
#endif

static void row_upper_noise(NoiseKey key, uint32_t position, uint32_t first, uint32_t* upper) {
    constexpr int kPairs = sizeof(NoiseWords) / sizeof(uint64_t);
    NoiseWords counter;
    for (int lane = 0; lane < kPairs; ++lane)
        counter[lane] = first / 2 + static_cast<uint32_t>(lane);
    for (int pair = 0; pair < kNoiseBlock / 2; pair += kPairs) {
        NoiseWords x0 = NoiseWords{} + position, x1 = counter, x2{}, x3{};
        NoiseKey round_key = key;
        FORERUN_UNROLL
        for (int round = 0; round < kPhiloxRounds; ++round) {
            const NoiseWords p0 = word_product(x0, NoiseWords{} + kPhilox0),
                             p1 = word_product(x2, NoiseWords{} + kPhilox1);
            x0 = (p1 >> 32) ^ x1 ^ round_key.k0;
            x1 = p1;
            x2 = (p0 >> 32) ^ x3 ^ round_key.k1;
            x3 = p0;
            round_key = {round_key.k0 + kPhiloxStep.k0, round_key.k1 + kPhiloxStep.k1};
        }
        const NoiseWords both = (x0 & 0xffffffffu) | x2 << 32;  // of a little-endian machine
        __builtin_memcpy(upper + 2 * pair, &both, sizeof both);
        counter += static_cast<uint64_t>(kPairs);
    }
}

template <class T>
static constexpr RowPasses<T> make_row_passes() {
    return {row_max<T>, row_find<T>, row_exponentiate<T>, row_masses<T>, row_bound_scores<T>};
}

static constexpr SamplingKernels make_sampling_kernels() {
    return {make_row_passes<float>(), make_row_passes<double>(), row_widen, row_upper_noise};
}
