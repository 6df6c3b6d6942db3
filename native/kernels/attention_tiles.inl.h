// Arithmetic of attention on AMX tiles: sixteen queries, the lanes of a vector, against one chunk of 64 positions.
//
//   scores[p, q]  = K[p, :] . Q[:, q]                  tiles of 16 positions x 16 queries, components ascending by 32
//   weights[p, q] = 2^(scores[p, q] - m[q]) in bf16    m: a score that no seen one exceeds by more than kSlack
//   o[d, q]       = o[d, q] * alpha[q] + V[d, :] . weights[:, q]     tiles of 16 components, positions ascending by 32
//
// Queries are columns, so softmax needs nothing across lanes, and no column depends on another: who shares the tile,
// and in which column a query sits, changes no bit. Keys lie as rows of components and values as rows of positions, as
// KvStore keeps them for these tiles. A query is scaled by log2(e) too, so that scores are octaves.
//
// m follows the largest score only when that has grown by more than kSlack octaves, since floating point is as precise
// at 2^8 as at 1: o is hardly ever multiplied.
//
// A step of 32 positions that a query does not see may be left out or not: its weights are zero, and behind the first
// step the o of a query holds no denormal that a further step would flush.

// What each of sixteen queries sees of a chunk: positions begin .. end-1, counted from the chunk's first.
struct TileRange {
    alignas(64) int32_t begin[kLanes], end[kLanes];
};

struct TileBuffers {
    float* scores;      // [64, 16]
    uint16_t* weights;  // [32 pairs of positions][16 queries][2]
};

// The arithmetic calls `between` now and then, so that a caller can spread something else over it.
FORERUN_INLINE void do_nothing() {}

// Calls for sixteen queries and a whole chunk, at least.
constexpr int betweens_per_chunk(int head_dim) {
    return kChunk / 4 + head_dim / kTileDepth + kStepsPerChunk * (head_dim / (4 * kLanes));
}

// ---- tiles ----

// With the whole of memory as an operand: the compiler's intrinsics let stores sink below a tile load.
template <int TILE>
FORERUN_INLINE void tile_load(const void* from, size_t row_bytes) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(TILE) : "memory");
}
template <int TILE>
FORERUN_INLINE void tile_store(void* to, size_t row_bytes) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(TILE) : "memory");
}
template <int TILE>
FORERUN_INLINE void tile_zero() {
    __asm__ volatile("tilezero %%tmm%c0" : : "i"(TILE));
}
template <int SUM, int LEFT, int RIGHT>
FORERUN_INLINE void tile_multiply() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(LEFT), "i"(RIGHT));
}

template <int I>
struct Number {
    static constexpr int value = I;
};
// f(Number<0>), f(Number<1>), ...: tile registers are named by constants.
template <int COUNT, int I = 0, class F>
FORERUN_INLINE void for_each_tile(const F& f) {
    if constexpr (I < COUNT) {
        f(Number<I>{});
        for_each_tile<COUNT, I + 1>(f);
    }
}

// Tiles 0-3 accumulate. Head sizes that are no multiple of 32 end in a step of 16 components.
constexpr int kLeft = 4, kRight = 5, kLeftTail = 6, kRightTail = 7;
constexpr size_t kTileRow = 64;

FORERUN_INLINE void configure_attention_tiles() {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, tile == kRightTail ? kLanes / 2 : kLanes, tile == kLeftTail ? kTileRow / 2 : kTileRow);
    config.load();
}

// Sixteen vectors of sixteen 32-bit lanes: rows become columns.
FORERUN_INLINE void transpose(__m512i (&v)[kLanes]) {
    __m512i t[kLanes];
    FORERUN_UNROLL
    for (int i = 0; i < kLanes; i += 2) {
        t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    FORERUN_UNROLL
    for (int i = 0; i < kLanes; i += 4) {
        v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    // v[4a + b] holds in quarter k: column 4k + b of rows 4a .. 4a+3.
    FORERUN_UNROLL
    for (int b = 0; b < 4; ++b) {
        t[b] = _mm512_shuffle_i32x4(v[b], v[4 + b], 0x44);
        t[4 + b] = _mm512_shuffle_i32x4(v[b], v[4 + b], 0xee);
        t[8 + b] = _mm512_shuffle_i32x4(v[8 + b], v[12 + b], 0x44);
        t[12 + b] = _mm512_shuffle_i32x4(v[8 + b], v[12 + b], 0xee);
    }
    FORERUN_UNROLL
    for (int b = 0; b < 4; ++b) {
        v[b] = _mm512_shuffle_i32x4(t[b], t[8 + b], 0x88);
        v[4 + b] = _mm512_shuffle_i32x4(t[b], t[8 + b], 0xdd);
        v[8 + b] = _mm512_shuffle_i32x4(t[4 + b], t[12 + b], 0x88);
        v[12 + b] = _mm512_shuffle_i32x4(t[4 + b], t[12 + b], 0xdd);
    }
}

// ---- scores ----

// q: [D / 32 rounded up][16 pairs of components][16 queries][2]
template <int GROUPS, class Between>
FORERUN_INLINE void score_tiles(const uint16_t* q, const TileView& view, int head_dim, float* scores,
                                const Between& between) {
    const size_t row = static_cast<size_t>(head_dim) * sizeof(uint16_t);
    for_each_tile<GROUPS>([](auto g) { tile_zero<decltype(g)::value>(); });
    int d = 0;
    for (; d + kTileDepth <= head_dim; d += kTileDepth, q += kTileElements) {
        between();
        tile_load<kRight>(q, kTileRow);
        for_each_tile<GROUPS>([&](auto g) {
            constexpr int kGroup = decltype(g)::value;
            tile_load<kLeft>(view.key[kGroup] + d, row);
            tile_multiply<kGroup, kLeft, kRight>();
        });
    }
    if (d < head_dim) {
        tile_load<kRightTail>(q, kTileRow);
        for_each_tile<GROUPS>([&](auto g) {
            constexpr int kGroup = decltype(g)::value;
            tile_load<kLeftTail>(view.key[kGroup] + d, row);
            tile_multiply<kGroup, kLeftTail, kRightTail>();
        });
    }
    for_each_tile<GROUPS>([&](auto g) {
        constexpr int kGroup = decltype(g)::value;
        tile_store<kGroup>(scores + kGroup * kLanes * kLanes, kTileRow);
    });
}

// ---- softmax ----

// 2^x for x <= 0 with a relative error of 1e-4, a fortieth of what rounding to bfloat16 may lose; exactly 1 at 0,
// exactly 0 at -inf, NaN for NaN.
FORERUN_INLINE Vec coarse_power_of_two(Vec x) {
    const Vec f = {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF)};  // x - floor(x)
    Vec p = fma(f, broadcast(7.7067137e-2f), broadcast(2.2764489e-1f));
    p = fma(f, p, broadcast(6.9511682e-1f));
    p = fma(f, p, broadcast(1.0f));
    return {_mm512_scalef_ps(p.v, x.v)};  // p * 2^floor(x)
}

constexpr float kSlack = 8.0f;

// 2^(before - after); exactly 1 where m stays, also at -inf where nothing was seen yet.
FORERUN_INLINE Vec rescaling(Vec before, Vec after) {
    const __mmask16 stays = _mm512_cmp_ps_mask(before.v, after.v, _CMP_EQ_OQ);
    const Vec factor = exponential((before - after) * broadcast(0.693147180559945309f));
    return {_mm512_mask_blend_ps(stays, factor.v, _mm512_set1_ps(1.0f))};
}

// Two positions' weights as sixteen pairs of bfloat16.
FORERUN_INLINE void store_weights(uint16_t* to, Vec even, Vec odd) {
    alignas(64) static constexpr uint16_t kPairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512bh rounded = _mm512_cvtne2ps_pbh(odd.v, even.v);
    __m512i bits;
    __builtin_memcpy(&bits, &rounded, sizeof bits);
    _mm512_store_si512(to, _mm512_permutexvar_epi16(_mm512_load_si512(kPairs), bits));
}

// Turns the scores of the first `groups` * 16 positions into weights (zero where a query sees nothing, and up to a
// whole step), raises m and l of the state; returns what to multiply o with. `between` is called every four positions.
template <bool MASKED, class Between>
FORERUN_INLINE Vec weigh(const TileBuffers& buffers, float* state, int groups, const TileRange* range,
                         const Between& between) {
    const __m512i begin = MASKED ? _mm512_load_si512(range->begin) : __m512i{};
    const __m512i end = MASKED ? _mm512_load_si512(range->end) : __m512i{};
    const auto seen = [&](int position) -> __mmask16 {
        const __m512i at = _mm512_set1_epi32(position);
        return _mm512_cmpge_epi32_mask(at, begin) & _mm512_cmplt_epi32_mask(at, end);
    };
    const int positions = groups * kLanes;
    const Vec before = load(state), hidden = broadcast(-__builtin_inff());
    Vec largest_of[4] = {hidden, hidden, hidden, hidden};
    for (int p = 0; p < positions; p += 4) {
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            Vec score = load(buffers.scores + (p + i) * kLanes);
            if (MASKED) score = select(Mask{seen(p + i)}, score, hidden);
            largest_of[i] = maximum(largest_of[i], score);
        }
    }
    const Vec largest_score = maximum(maximum(largest_of[0], largest_of[1]), maximum(largest_of[2], largest_of[3]));
    const Vec m = select(before + broadcast(kSlack) < largest_score, largest_score, before);
    Vec sums[4] = {zero(), zero(), zero(), zero()};
    for (int p = 0; p < positions; p += 4) {
        Vec weight[4];
        FORERUN_UNROLL
        for (int i = 0; i < 4; ++i) {
            weight[i] = coarse_power_of_two(load(buffers.scores + (p + i) * kLanes) - m);
            if (MASKED) weight[i] = select(Mask{seen(p + i)}, weight[i], zero());
            sums[i] = sums[i] + weight[i];
        }
        store_weights(buffers.weights + p * kLanes, weight[0], weight[1]);
        store_weights(buffers.weights + (p + 2) * kLanes, weight[2], weight[3]);
        between();
    }
    for (int p = positions; p % kStepPositions; p += 2)
        _mm512_store_si512(buffers.weights + p * kLanes, _mm512_setzero_si512());
    const Vec sum_of_chunk = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    Vec alpha = broadcast(1.0f);
    if (_mm512_cmp_ps_mask(m.v, before.v, _CMP_NEQ_UQ) != 0) {
        // Where nothing was seen before, there is nothing to multiply.
        alpha = select(hidden < before, rescaling(before, m), alpha);
        store(state, m);
    }
    store(state + kLanes, load(state + kLanes) * alpha + sum_of_chunk);
    return alpha;
}

// ---- values ----

FORERUN_INLINE void scale_output(float* o, Vec alpha, int head_dim) {
    if (_mm512_cmp_ps_mask(alpha.v, _mm512_set1_ps(1.0f), _CMP_NEQ_UQ) == 0) return;  // times 1 changes nothing
    for (int d = 0; d < head_dim; ++d)
        store(o + d * kLanes, load(o + d * kLanes) * alpha);
}

// o += V . weights over the first `steps` steps, for TILES * 16 components.
template <int TILES, class Between>
FORERUN_INLINE void add_value_tiles(const TileView& view, const uint16_t* weights, int steps, int first, float* o,
                                    const Between& between) {
    for_each_tile<TILES>([&](auto t) {
        constexpr int kTile = decltype(t)::value;
        tile_load<kTile>(o + kTile * kLanes * kLanes, kTileRow);
    });
    for (int step = 0; step < steps; ++step) {
        const size_t stride = view.value_stride[step], row = stride * sizeof(uint16_t);
        const uint16_t* value = view.value[step] + first * stride;
        between();
        tile_load<kRight>(weights + step * kTileElements, kTileRow);
        for_each_tile<TILES>([&](auto t) {
            constexpr int kTile = decltype(t)::value;
            tile_load<kLeft>(value + kTile * kLanes * stride, row);
            tile_multiply<kTile, kLeft, kRight>();
        });
    }
    for_each_tile<TILES>([&](auto t) {
        constexpr int kTile = decltype(t)::value;
        tile_store<kTile>(o + kTile * kLanes * kLanes, kTileRow);
    });
}

template <class Between>
FORERUN_INLINE void add_values_of_chunk(const TileView& view, const uint16_t* weights, int head_dim, float* o,
                                        const Between& between) {
    int d = 0;
    for (; d + 4 * kLanes <= head_dim; d += 4 * kLanes)
        add_value_tiles<4>(view, weights, view.steps(), d, o + d * kLanes, between);
    for (; d < head_dim; d += kLanes)
        add_value_tiles<1>(view, weights, view.steps(), d, o + d * kLanes, between);
}
