// Inputs of packed linear layers as whole numbers of 16 bits. 256 inputs of a row share a scale, the power of two that
// brings the largest of them to between 2^14 and 2^15; what a number becomes depends on its group alone.
//
// Groups with a NaN or an infinity get NaN for a scale, which makes NaN of the outputs. Groups without a number above
// 2^-100 are zero: their scale would leave float32.

constexpr int kQuantisedInputs = 256;
constexpr int kQuantisedBits = 15;
constexpr int kExponentBias = 127;

// Beside the numbers, for every 32 of them; see round_rows_and_sum of kernel_table.h.
struct InputFacts {
    float sum;                        // of all 32
    int32_t minus_first, minus_last;  // sums of the first and the last 16, negated
    float scale;                      // of the group
};
static_assert(sizeof(InputFacts) == kFactsPerTile * sizeof(float));

struct InputScale {
    float scale, inverse;
};

FORERUN_INLINE float float_of(uint32_t bits) {
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
}

// For `largest`, the bits of the largest magnitude.
FORERUN_INLINE InputScale input_scale(uint32_t largest) {
    const uint32_t exponent = largest >> 23, shift = kQuantisedBits - 1;
    if (exponent == 0xff) return {float_of(0x7fc00000), 0.0f};
    if (exponent < kExponentBias - 100) return {0.0f, 0.0f};
    return {float_of((exponent - shift) << 23), float_of((2 * kExponentBias + shift - exponent) << 23)};
}

// The largest of `count` magnitudes, as bits: those of infinities and NaNs are larger than all others.
FORERUN_INLINE uint32_t largest_magnitude(const float* x, int count) {
    Words most = same_words(0);
    for (int i = 0; i < count; i += kLanes)
        most = larger(most, magnitudes(load_first(x + i, count - i)));
    return largest(most);
}

// Sixteen inputs to whole numbers; minus their sum.
FORERUN_INLINE int32_t quantise(Vec x, const InputScale& scale, uint16_t* out) {
    const Words whole = whole_numbers(x * broadcast(scale.inverse));
    store_int16(out, whole);
    return -sum(whole);
}

static void quantise_row(const float* x, int width, uint16_t* out, size_t ldo, InputFacts* facts) {
    int i = 0;
    for (int group = 0; group < width; group += kQuantisedInputs) {
        const int end = group + kQuantisedInputs < width ? group + kQuantisedInputs : width;
        const InputScale scale = input_scale(largest_magnitude(x + group, end - group));
        for (; i < end; i += kTileDepth, ++facts) {
            facts->minus_first = quantise(load_first(x + i, end - i), scale, out + i);
            facts->minus_last = quantise(load_first(x + i + kLanes, end - i - kLanes), scale, out + i + kLanes);
            facts->sum = static_cast<float>(-(facts->minus_first + facts->minus_last));
            facts->scale = scale.scale;
        }
    }
    for (; i < static_cast<int>(ldo); i += kLanes)
        store_int16(out + i, same_words(0));
}

static void round_rows_and_sum(const float* x, size_t ldx, int row_begin, int row_end, int width, uint16_t* out,
                               size_t ldo, float* facts, size_t block_floats) {
    for (int row = row_begin; row < row_end; ++row) {
        const auto place = static_cast<size_t>(row);
        quantise_row(x + place * ldx, width, out + place * ldo, ldo,
                     reinterpret_cast<InputFacts*>(facts + place * (block_floats / kLanes)));
    }
}
