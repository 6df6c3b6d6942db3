// Inputs of packed linear layers as whole numbers of 16 bits. 256 inputs of a row share a scale, the power of two that
// brings the largest of them to between 2^14 and 2^15 - 2^8, so that a code can be added without leaving 16 bits; what
// a number becomes depends on its group alone.
//
// Groups with a NaN or an infinity get NaN for a scale, which makes NaN of the outputs. Groups without a number above
// 2^-100 are zero: their scale would leave float32.

constexpr int kQuantisedInputs = 256;
constexpr int kQuantisedBits = 15;
constexpr int kExponentBias = 127;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kRoomForCodes = 1 << 17;  // carries float32 from 2 - 2^-6 on into the next power of two

// Whole numbers that a tile's inputs sum up to; `first` of 16. Products as in vec/avx512_pairs.h.
struct InputSums {
    int32_t minus_all, minus_first, minus_products, minus_first_products;
};

// What a row has for every 32 inputs: they lie together so that one address serves both.
struct alignas(32) TileInputs {
    uint16_t values[kTileDepth];
    float sum;    // of all 32
    float scale;  // of the group
    InputSums sums;
};
static_assert(sizeof(TileInputs) == kInt16TileElements * sizeof(uint16_t));

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
    const uint32_t exponent = (largest + kRoomForCodes) >> 23, shift = kQuantisedBits - 1;
    if (largest >= kInfinityBits) return {float_of(0x7fc00000), 0.0f};
    if (largest >> 23 < kExponentBias - 100) return {0.0f, 0.0f};
    return {float_of((exponent - shift) << 23), float_of((2 * kExponentBias + shift - exponent) << 23)};
}

// The largest of `count` magnitudes, as bits: those of infinities and NaNs are larger than all others.
FORERUN_INLINE uint32_t largest_magnitude(const float* x, int count) {
    Words most = same_words(0);
    for (int i = 0; i < count; i += kLanes)
        most = larger(most, magnitudes(load_first(x + i, count - i)));
    return largest(most);
}

static void quantise_row(const float* x, int width, TileInputs* to) {
    for (int group = 0, i = 0; group < width; group += kQuantisedInputs) {
        const int end = group + kQuantisedInputs < width ? group + kQuantisedInputs : width;
        const InputScale scale = input_scale(largest_magnitude(x + group, end - group));
        const Vec inverse = broadcast(scale.inverse);
        for (; i < end; i += kTileDepth, ++to) {
            const Words first = whole_numbers(load_first(x + i, end - i) * inverse);
            const Words last = whole_numbers(load_first(x + i + kLanes, end - i - kLanes) * inverse);
            to->sums = store_int16<InputSums>(to->values, first, last);
            to->sum = static_cast<float>(-to->sums.minus_all);
            to->scale = scale.scale;
        }
    }
}

// `out` holds TileInputs; there are no sums apart from them.
static void round_rows_and_sum(const float* x, size_t ldx, int row_begin, int row_end, int width, uint16_t* out,
                               size_t ldo, float*, size_t) {
    for (int row = row_begin; row < row_end; ++row) {
        const auto place = static_cast<size_t>(row);
        quantise_row(x + place * ldx, width, reinterpret_cast<TileInputs*>(out + place * ldo));
    }
}
