// Arithmetic of attention on vectors: up to kMaxSet queries against one chunk of 64 positions of a key/value head.
//
//   score[j]  = q . K[j]                      components in ascending order; q is scaled by log2(e) / sqrt(D) or such
//   weight[j] = 2^(score[j] - m)              m: the largest score of the query so far
//   o         = o * 2^(m before - m) + sum of weight[j] * V[j]          positions in ascending order
//
// Positions are the lanes of scores and weights, components those of o. A set of queries shares every load of keys and
// values, and holds as many sums in registers as fit; neither changes a bit, since every sum is one chain of fused
// multiply-adds in a fixed order. Lanes mix only in a maximum and in one sum of fixed shape.
//
// Positions that a query does not see are lanes that a select discards, and value rows that no loop reaches: what they
// hold, NaN included, has no effect.

// Registers for sums, beside what is multiplied, and queries of a set.
constexpr int kRegsPerVec = kLanes / kRegLanes;
constexpr int kSumRegs = kVectors * kRegsPerVec * 3 / 4;
constexpr int kMaxSet = kSumRegs < 6 * kRegsPerVec ? 3 : 6;

// Of a set's sums, how many vectors of each query are computed together.
constexpr int vectors_per_query(int queries) {
    return queries * 4 * kRegsPerVec <= kSumRegs ? 4 : queries * 2 * kRegsPerVec <= kSumRegs ? 2 : 1;
}

// 64 logical positions of one key/value head, as four groups of 16.
template <class T>
struct ChunkView {
    const T* key[kGroupsPerChunk];    // D rows of 16 positions,
    size_t key_stride;                // this far apart
    const T* value[kGroupsPerChunk];  // 16 rows of D
};

// What a query sees of a chunk: positions begin .. end-1, counted from the chunk's first.
struct VisibleRange {
    int begin, end;
    bool is_whole() const { return begin == 0 && end == kChunk; }
};

// Neighbouring queries that see something of the same chunk at the same place in memory.
struct QuerySet {
    int size;
    const float* q;  // component d of query i at d * q_stride + i
    size_t q_stride;
    float* state;  // of query i at i * state_floats: m, l, padding to a cache line, then o [D]
    size_t state_floats;
    VisibleRange visible[kMaxSet];
};

// 2^x for x <= 0; exactly 1 at 0, exactly 0 below -126, NaN for NaN. Error below a unit in the last place.
FORERUN_INLINE Vec power(Vec x) {
    const Vec low = broadcast(-126.0f);
    const Vec clamped = maximum(low, x);
    const Vec magic = broadcast(12582912.0f);  // adding and taking away 1.5 * 2^23 rounds to a whole number
    const Vec n = (clamped + magic) - magic, r = clamped - n;
    Vec p = broadcast(1.5353362e-4f);
    p = fma(p, r, broadcast(1.3398875e-3f));
    p = fma(p, r, broadcast(9.618437e-3f));
    p = fma(p, r, broadcast(5.5503324e-2f));
    p = fma(p, r, broadcast(2.4022648e-1f));
    p = fma(p, r, broadcast(6.931472e-1f));
    p = fma(p, r, broadcast(1.0f));
    return select(x < low, zero(), p * power_of_two(n));
}
FORERUN_INLINE float power(float x) {
    float lanes[kLanes];
    store(lanes, power(broadcast(x)));
    return lanes[0];
}

// ---- fetching the next chunk while this one is worked on ----

// The lines that hold components d and d + 1, d even: one line of each group where it has 16 positions of two
// components, or 32 positions of one, which are two groups.
FORERUN_INLINE void fetch_keys(const ChunkView<uint16_t>& next, int d) {
    const size_t odd = next.key_stride > kLanes ? next.key_stride : 0;
    FORERUN_UNROLL
    for (int g = 0; g < kGroupsPerChunk; ++g)
        prefetch(next.key[g] + d * next.key_stride + g % 2 * odd);
}
template <int VECTORS>
FORERUN_INLINE void fetch_values(const uint16_t* row, int first) {
    if (VECTORS == 1 && first % (2 * kLanes) != 0) return;
    FORERUN_UNROLL
    for (int v = 0; v < VECTORS; v += 2)
        prefetch(row + first + v * kLanes);
}
// float32 is for tests and for copies, which are in the caches.
FORERUN_INLINE void fetch_keys(const ChunkView<float>&, int) {}
template <int VECTORS>
FORERUN_INLINE void fetch_values(const float*, int) {}

// ---- products ----

// sums[i][r] += left[i * STRIDE] * right(r). The smaller side stays in registers, so that the sums find room too.
template <int QUERIES, int REGS, int STRIDE, class Right>
FORERUN_INLINE void add_products(Reg (&sums)[QUERIES][REGS], const float* left, const Right& right) {
    if constexpr (QUERIES < REGS) {
        Reg factor[QUERIES];
        FORERUN_UNROLL
        for (int i = 0; i < QUERIES; ++i)
            factor[i] = broadcast_reg(left[i * STRIDE]);
        FORERUN_UNROLL
        for (int r = 0; r < REGS; ++r) {
            const Reg value = right(r);
            FORERUN_UNROLL
            for (int i = 0; i < QUERIES; ++i)
                sums[i][r] = fma(factor[i], value, sums[i][r]);
        }
    } else {
        Reg value[REGS];
        FORERUN_UNROLL
        for (int r = 0; r < REGS; ++r)
            value[r] = right(r);
        FORERUN_UNROLL
        for (int i = 0; i < QUERIES; ++i) {
            const Reg factor = broadcast_reg(left[i * STRIDE]);
            FORERUN_UNROLL
            for (int r = 0; r < REGS; ++r)
                sums[i][r] = fma(factor, value[r], sums[i][r]);
        }
    }
}

// The scores of GROUPS groups from `group` on.
template <int QUERIES, int GROUPS, class T>
FORERUN_INLINE void score_groups(const QuerySet& set, const ChunkView<T>& view, const ChunkView<T>& next, int group,
                                 int head_dim, float* scores) {
    constexpr int kRegs = GROUPS * kRegsPerVec;
    Reg sums[QUERIES][kRegs];
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int r = 0; r < kRegs; ++r)
            sums[i][r] = broadcast_reg(0.0f);
    }
    const T* key[GROUPS];
    FORERUN_UNROLL
    for (int g = 0; g < GROUPS; ++g)
        key[g] = view.key[group + g];
    const float* q = set.q;
    for (int d = 0; d < head_dim; ++d, q += set.q_stride) {
        if (group == 0 && d % 2 == 0) fetch_keys(next, d);
        add_products<QUERIES, kRegs, 1>(
            sums, q, [&](int r) { return load_reg(key[r / kRegsPerVec] + r % kRegsPerVec * kRegLanes); });
        FORERUN_UNROLL
        for (int g = 0; g < GROUPS; ++g)
            key[g] += view.key_stride;
    }
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int r = 0; r < kRegs; ++r)
            store(scores + i * kChunk + group * kLanes + r * kRegLanes, sums[i][r]);
    }
}

// ---- softmax ----

FORERUN_INLINE Vec select_visible(VisibleRange visible, int group, Vec yes, Vec no) {
    const Vec before_end = select(first_lanes(visible.end - group * kLanes), yes, no);
    return select(first_lanes(visible.begin - group * kLanes), no, before_end);
}

// Raises the state's maximum to the chunk's; returns by how much, as a number below or at 0.
template <bool WHOLE>
static __attribute__((noinline)) float raise_maximum(float* state, const float* scores, VisibleRange visible) {
    Vec s[kGroupsPerChunk];
    FORERUN_UNROLL
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        s[g] = load(scores + g * kLanes);
        if (!WHOLE) s[g] = select_visible(visible, g, s[g], broadcast(-__builtin_inff()));
    }
    const float before = state[0], chunk_m = largest(maximum(maximum(s[0], s[1]), maximum(s[2], s[3])));
    state[0] = before > chunk_m ? before : chunk_m;
    return before - state[0];
}

// Turns the chunk's scores into weights and adds them up.
template <bool WHOLE>
static __attribute__((noinline)) void weigh(float* state, float* scores, VisibleRange visible, float alpha) {
    const Vec m = broadcast(state[0]);
    Vec s[kGroupsPerChunk];
    FORERUN_UNROLL
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        s[g] = power(load(scores + g * kLanes) - m);
        if (!WHOLE) s[g] = select_visible(visible, g, s[g], zero());
        store(scores + g * kLanes, s[g]);
    }
    state[1] = state[1] * alpha + sum((s[0] + s[1]) + (s[2] + s[3]));
}

// For all queries of a set; alpha [16]: what to multiply their o with.
FORERUN_INLINE void weigh_set(const QuerySet& set, int queries, float* scores, float* alpha) {
    store(alpha, zero());
    for (int i = 0; i < queries; ++i) {
        float *const state = set.state + i * set.state_floats, *const mine = scores + i * kChunk;
        const VisibleRange visible = set.visible[i];
        alpha[i] =
            visible.is_whole() ? raise_maximum<true>(state, mine, visible) : raise_maximum<false>(state, mine, visible);
    }
    store(alpha, power(load(alpha)));
    for (int i = 0; i < queries; ++i) {
        float *const state = set.state + i * set.state_floats, *const mine = scores + i * kChunk;
        const VisibleRange visible = set.visible[i];
        visible.is_whole() ? weigh<true>(state, mine, visible, alpha[i]) : weigh<false>(state, mine, visible, alpha[i]);
    }
}

// ---- values ----

// Calls f(group, first, end) for the parts of positions begin .. end-1 in every group, counted from the group's first.
template <class F>
FORERUN_INLINE void for_each_part(int begin, int end, const F& f) {
    for (int g = begin / kLanes; g * kLanes < end; ++g) {
        const int from = begin - g * kLanes, to = end - g * kLanes;
        f(g, from > 0 ? from : 0, to < kLanes ? to : kLanes);
    }
}

// o = o * alpha + sum of weight[j] * value[j], j = begin .. end-1, for VECTORS * 16 components from `first`.
template <int QUERIES, int VECTORS, class T>
FORERUN_INLINE void add_values(const QuerySet& set, const float* alpha, const float* weights, const ChunkView<T>& view,
                               const ChunkView<T>& next, int begin, int end, int first, int head_dim) {
    constexpr int kRegs = VECTORS * kRegsPerVec;
    Reg sums[QUERIES][kRegs];
    float* const o = set.state + kLanes + first;
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int r = 0; r < kRegs; ++r)
            sums[i][r] = load_reg(o + i * set.state_floats + r * kRegLanes) * broadcast_reg(alpha[i]);
    }
    for_each_part(begin, end, [&](int g, int from, int to) {
        const size_t row = static_cast<size_t>(head_dim);
        const T *value = view.value[g] + from * row + first, *fetched = next.value[g] + from * row;
        const float *weight = weights + g * kLanes + from, *const last = weights + g * kLanes + to;
        for (; weight < last; ++weight, value += row, fetched += row) {
            fetch_values<VECTORS>(fetched, first);
            add_products<QUERIES, kRegs, kChunk>(sums, weight, [&](int r) { return load_reg(value + r * kRegLanes); });
        }
    });
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int r = 0; r < kRegs; ++r)
            store(o + i * set.state_floats + r * kRegLanes, sums[i][r]);
    }
}

// The same for the components behind the last whole vector.
template <class T>
static __attribute__((noinline)) void add_last_values(const QuerySet& set, int queries, const float* alpha,
                                                      const float* weights, const ChunkView<T>& view, int begin,
                                                      int end, int first, int head_dim) {
    for (int i = 0; i < queries; ++i) {
        float* const o = set.state + i * set.state_floats + kLanes + first;
        Vec sum = load(o) * broadcast(alpha[i]);
        for_each_part(begin, end, [&](int g, int from, int to) {
            for (int j = from; j < to; ++j) {
                const T* const row = view.value[g] + static_cast<size_t>(j) * head_dim + first;
                sum = fma(broadcast(weights[i * kChunk + g * kLanes + j]), load_first(row, head_dim - first), sum);
            }
        });
        store(o, sum);
    }
}

template <int QUERIES, class T>
FORERUN_INLINE void add_all_values(const QuerySet& set, const float* alpha, const float* weights,
                                   const ChunkView<T>& view, const ChunkView<T>& next, int begin, int end,
                                   int head_dim) {
    constexpr int kTogether = vectors_per_query(QUERIES);
    int d = 0;
    for (; d + kTogether * kLanes <= head_dim; d += kTogether * kLanes)
        add_values<QUERIES, kTogether>(set, alpha, weights, view, next, begin, end, d, head_dim);
    if constexpr (kTogether > 1) {
        for (; d + kLanes <= head_dim; d += kLanes)
            add_values<QUERIES, 1>(set, alpha, weights, view, next, begin, end, d, head_dim);
    }
    if (d < head_dim) add_last_values(set, QUERIES, alpha, weights, view, begin, end, d, head_dim);
}

// For one query of the set; its `alpha` becomes 1, since o is multiplied once.
template <class T>
static __attribute__((noinline)) void add_alone(const QuerySet& set, int query, float& alpha, const float* weights,
                                                const ChunkView<T>& view, int begin, int end, int head_dim) {
    QuerySet alone;
    alone.state = set.state + query * set.state_floats;
    alone.state_floats = set.state_floats;
    add_all_values<1>(alone, &alpha, weights + query * kChunk, view, view, begin, end, head_dim);
    alpha = 1.0f;
}

// ---- a chunk for a set ----

// QUERIES: the set's size. `next` is what will be worked on after `view`. weights [QUERIES, 64] is scratch.
template <int QUERIES, class T>
static void attend_set(const QuerySet& set, const ChunkView<T>& view, const ChunkView<T>& next, int head_dim,
                       float* weights) {
    int most = 0, begin = 0, end = kChunk;  // begin .. end-1: what all see
    for (int i = 0; i < QUERIES; ++i) {
        const VisibleRange visible = set.visible[i];
        most = visible.end > most ? visible.end : most;
        begin = visible.begin > begin ? visible.begin : begin;
        end = visible.end < end ? visible.end : end;
    }
    end = end > begin ? end : begin;
    constexpr int kTogether = vectors_per_query(QUERIES);
    int group = 0;
    for (; (group + kTogether - 1) * kLanes < most; group += kTogether)
        score_groups<QUERIES, kTogether>(set, view, next, group, head_dim, weights);
    if constexpr (kTogether > 1) {
        for (; group * kLanes < most; ++group)
            score_groups<QUERIES, 1>(set, view, next, group, head_dim, weights);
    }
    float alpha[kLanes];
    weigh_set(set, QUERIES, weights, alpha);
    // What all see together, what is before and behind it each alone; multiplying o by 1 again changes nothing.
    for (int i = 0; i < QUERIES; ++i) {
        const int from = set.visible[i].begin, to = set.visible[i].end < begin ? set.visible[i].end : begin;
        if (from < to) add_alone(set, i, alpha[i], weights, view, from, to, head_dim);
    }
    if (begin < end) {
        add_all_values<QUERIES>(set, alpha, weights, view, next, begin, end, head_dim);
        for (int i = 0; i < QUERIES; ++i)
            alpha[i] = 1.0f;
    }
    for (int i = 0; i < QUERIES; ++i) {
        const int from = set.visible[i].begin > end ? set.visible[i].begin : end, to = set.visible[i].end;
        if (from < to) add_alone(set, i, alpha[i], weights, view, from, to, head_dim);
    }
}

template <int QUERIES, class T>
FORERUN_INLINE void attend_sized(const QuerySet& set, const ChunkView<T>& view, const ChunkView<T>& next, int head_dim,
                                 float* weights) {
    if (set.size == QUERIES) return attend_set<QUERIES>(set, view, next, head_dim, weights);
    if constexpr (QUERIES > 1) attend_sized<QUERIES - 1>(set, view, next, head_dim, weights);
}
