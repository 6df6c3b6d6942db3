// Attention over the paged store: one pass over the keys with a running maximum (online softmax), in a fixed order.
//
//   span of 512 logical positions   | chunk 64 | chunk | ...            each span starts from an empty (m, l, o)
//                                    lanes: 16 16 16 16                 m largest score, l sum of e^(s-m), o weighted
//                                    values
//
// A row's result is the ascending merge of its spans; a span takes its chunks in ascending order; a chunk's 64 scores
// are lanes that never mix except in a maximum and one sum of fixed shape; values are added in ascending position.
// So the bits depend on the row's query and on its keys by logical position, and on nothing else: not on how rows are
// grouped (a group only shares loads), nor on where in memory a key lies. A tree row's keys behind the root lie in its
// ancestors' slots; they are copied to where plain decoding would have them, see assemble().
//
// Keys that a row does not see, behind it or before its window, are lanes that a select discards, and value rows that
// no loop reaches: what they hold, NaN included, has no effect.
//
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax; Dao, FlashAttention-2.
// Differs: fixed chunks and spans of logical positions instead of tiles that depend on the shape of the call.

// 64 logical positions of one key/value head, as four groups of 16.
template <class T>
struct ChunkView {
    const T* key[kGroupsPerChunk];       // D rows of 16 positions,
    size_t key_stride[kGroupsPerChunk];  // this far apart
    const T* value[kGroupsPerChunk];     // 16 rows of D
};

// The arrays a thread works in. A query's state is m, l, padding to a cache line, then o.
struct AttentionScratch {
    float* span;           // [kMaxTaskQueries] states
    float* total;          // [kMaxTaskQueries] states
    float* probabilities;  // [4, kChunk]
    float* keys;           // one assembled chunk
    float* values;
};

FORERUN_INLINE AttentionScratch carve(float* memory, int head_dim) {
    const size_t states = kMaxTaskQueries * attention_state_floats(head_dim);
    AttentionScratch scratch;
    scratch.span = memory;
    scratch.total = scratch.span + states;
    scratch.probabilities = scratch.total + states;
    scratch.keys = scratch.probabilities + 4 * kChunk;
    scratch.values = scratch.keys + static_cast<size_t>(kChunk) * padded(head_dim);
    return scratch;
}

FORERUN_INLINE void clear_state(float* state, int head_dim) {
    state[0] = -__builtin_inff();
    state[1] = 0.0f;
    for (int d = 0; d < head_dim; d += 16)
        store(state + kLanes + d, zero());
}

FORERUN_INLINE float exponential(float x) {
    float lanes[16];
    store(lanes, exponential(broadcast(x)));
    return lanes[0];
}

// total = total merged with span. Into an empty total it is a plain copy: e^-inf is 0 and e^0 is 1, exactly.
FORERUN_INLINE void merge_state(float* total, const float* span, int head_dim) {
    const float m = total[0] > span[0] ? total[0] : span[0];
    const float a = exponential(total[0] - m), b = exponential(span[0] - m);
    total[0] = m;
    total[1] = total[1] * a + span[1] * b;
    for (int d = kLanes; d < kLanes + head_dim; d += 16) {
        store(total + d, load(total + d) * broadcast(a) + load(span + d) * broadcast(b));
    }
}

FORERUN_INLINE int query_row(const AttentionArgs& args, const AttentionTask& task, int query) {
    return task.sequence.first_row + query / args.heads_per_group;
}

// For the task's key/value head of that number.
FORERUN_INLINE size_t query_column(const AttentionArgs& args, const AttentionTask& task, int query, int number = 0) {
    const int head = (task.kv_head + number) * args.heads_per_group + query % args.heads_per_group;
    return static_cast<size_t>(head) * args.layer.head_dim;
}

FORERUN_INLINE void write_output(const AttentionArgs& args, const AttentionTask& task, int query, const float* total) {
    float* out = args.out + query_row(args, task, query) * args.ldo + query_column(args, task, query);
    const Vec l = broadcast(total[1]);
    for (int d = 0; d < args.layer.head_dim; d += 16) {
        store_first(out + d, load(total + kLanes + d) / l, args.layer.head_dim - d);
    }
}

// ---- where keys and values are ----

FORERUN_INLINE int slot_of(const AttentionArgs& args, const AttentionTask& task, int position) {
    const int size = args.layer.block_size;
    return task.sequence.block_table[position / size] * size + position % size;
}

template <class T>
FORERUN_INLINE const T* key_at(const KvLayer& layer, int head, int slot) {
    const T* keys = reinterpret_cast<const T*>(layer.base + slot / layer.block_size * layer.block_bytes);
    return keys + static_cast<size_t>(head) * layer.head_dim * layer.block_size + slot % layer.block_size;
}

template <class T>
FORERUN_INLINE const T* value_at(const KvLayer& layer, int head, int slot) {
    const char* half = layer.base + slot / layer.block_size * layer.block_bytes + layer.block_bytes / 2;
    const T* values = reinterpret_cast<const T*>(half);
    return values + (static_cast<size_t>(head) * layer.block_size + slot % layer.block_size) * layer.head_dim;
}

// Points group `group` of the chunk into the store, where the block table says.
template <class T>
FORERUN_INLINE void view_group(const AttentionArgs& args, const AttentionTask& task, int position, int group,
                               ChunkView<T>& view) {
    const int slot = slot_of(args, task, position);  // a multiple of 16, so the group lies inside one block
    view.key[group] = key_at<T>(args.layer, task.kv_head, slot);
    view.key_stride[group] = args.layer.block_size;
    view.value[group] = value_at<T>(args.layer, task.kv_head, slot);
}

// Copies the keys and values of a tree row's group to consecutive positions: context through the block table, then the
// row's ancestors, node i at logical slot root + i.
template <class T>
static void assemble(const AttentionArgs& args, const AttentionTask& task, int row, int start, int limit, int group,
                     const AttentionScratch& scratch, ChunkView<T>& view) {
    const int head_dim = args.layer.head_dim, root = task.sequence.tree_root, context = root + 1;
    T* keys = reinterpret_cast<T*>(scratch.keys) + static_cast<size_t>(group) * kLanes * head_dim;
    T* values = reinterpret_cast<T*>(scratch.values) + static_cast<size_t>(group) * kLanes * head_dim;
    for (int lane = 0; lane < kLanes && start + lane < limit; ++lane) {
        const int position = start + lane;
        int slot;
        if (position < context) {
            slot = slot_of(args, task, position);
        } else {
            uint64_t path = args.ancestors[row] & ~uint64_t{1};  // without the root; bits ascend with depth
            for (int skip = position - context; skip > 0; --skip)
                path &= path - 1;
            slot = slot_of(args, task, root + __builtin_ctzll(path));
        }
        const T* key = key_at<T>(args.layer, task.kv_head, slot);
        const T* value = value_at<T>(args.layer, task.kv_head, slot);
        for (int d = 0; d < head_dim; ++d) {
            keys[d * kLanes + lane] = key[static_cast<size_t>(d) * args.layer.block_size];
            values[lane * head_dim + d] = value[d];
        }
    }
    view.key[group] = keys;
    view.key_stride[group] = kLanes;
    view.value[group] = values;
}

// ---- arithmetic; QUERIES of them share the loads of keys and values ----

template <int QUERIES, int GROUPS, class T>
FORERUN_INLINE void score_groups(const float* const* q, const ChunkView<T>& view, int group, int head_dim,
                                 float* scores) {
    Vec total[QUERIES][GROUPS];
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int g = 0; g < GROUPS; ++g)
            total[i][g] = zero();
    }
    for (int d = 0; d < head_dim; ++d) {
        Vec key[GROUPS];
        FORERUN_UNROLL
        for (int g = 0; g < GROUPS; ++g)
            key[g] = load(view.key[group + g] + d * view.key_stride[group + g]);
        FORERUN_UNROLL
        for (int i = 0; i < QUERIES; ++i) {
            const Vec component = broadcast(q[i][d]);
            FORERUN_UNROLL
            for (int g = 0; g < GROUPS; ++g)
                total[i][g] = fma(component, key[g], total[i][g]);
        }
    }
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int g = 0; g < GROUPS; ++g)
            store(scores + i * kChunk + (group + g) * kLanes, total[i][g]);
    }
}

// What a query sees of a chunk: positions begin .. end-1, counted from the chunk's first.
struct VisibleRange {
    int begin, end;
};

FORERUN_INLINE Vec select_visible(VisibleRange visible, int group, Vec yes, Vec no) {
    const Vec before_end = select(first_lanes(visible.end - group * kLanes), yes, no);
    return select(first_lanes(visible.begin - group * kLanes), no, before_end);
}

// Turns the chunk's raw scores into weights, raises the state's maximum and sum; returns what to multiply o with.
FORERUN_INLINE float update_softmax(float* state, float* scores, VisibleRange visible, float scale) {
    const Vec hidden = broadcast(-__builtin_inff());
    Vec s[kGroupsPerChunk];
    FORERUN_UNROLL
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        s[g] = select_visible(visible, g, load(scores + g * kLanes) * broadcast(scale), hidden);
    }
    const float chunk_m = largest(maximum(maximum(s[0], s[1]), maximum(s[2], s[3])));
    const float m = state[0] > chunk_m ? state[0] : chunk_m;
    const float alpha = exponential(state[0] - m);
    FORERUN_UNROLL
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        s[g] = select_visible(visible, g, exponential(s[g] - broadcast(m)), zero());
        store(scores + g * kLanes, s[g]);
    }
    state[0] = m;
    state[1] = state[1] * alpha + sum((s[0] + s[1]) + (s[2] + s[3]));
    return alpha;
}

// o = o * alpha + sum of weight[j] * value[j], j = begin .. end-1, for VECTORS * 16 components from `first`.
template <int QUERIES, int VECTORS, class T>
FORERUN_INLINE void add_values(float* const* state, const float* alpha, const float* weights, const ChunkView<T>& view,
                               int begin, int end, int first, int head_dim) {
    Vec o[QUERIES][VECTORS];
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
            o[i][v] = load(state[i] + kLanes + first + v * 16) * broadcast(alpha[i]);
        }
    }
    for (int j = begin; j < end; ++j) {
        const T* row = view.value[j / kLanes] + static_cast<size_t>(j % kLanes) * head_dim + first;
        Vec value[VECTORS];
        FORERUN_UNROLL
        for (int v = 0; v < VECTORS; ++v) {
            value[v] = VECTORS == 1 ? load_first(row, head_dim - first) : load(row + v * 16);
        }
        FORERUN_UNROLL
        for (int i = 0; i < QUERIES; ++i) {
            const Vec weight = broadcast(weights[i * kChunk + j]);
            FORERUN_UNROLL
            for (int v = 0; v < VECTORS; ++v)
                o[i][v] = fma(weight, value[v], o[i][v]);
        }
    }
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        FORERUN_UNROLL
        for (int v = 0; v < VECTORS; ++v)
            store(state[i] + kLanes + first + v * 16, o[i][v]);
    }
}

template <int QUERIES, class T>
FORERUN_INLINE void add_all_values(float* const* state, const float* alpha, const float* weights,
                                   const ChunkView<T>& view, int begin, int end, int head_dim) {
    int first = 0;
    for (; first + 64 <= head_dim; first += 64) {
        add_values<QUERIES, 4>(state, alpha, weights, view, begin, end, first, head_dim);
    }
    for (; first < head_dim; first += 16) {
        add_values<QUERIES, 1>(state, alpha, weights, view, begin, end, first, head_dim);
    }
}

// One chunk for QUERIES queries, each of which sees at least one position of it.
template <int QUERIES, class T>
static void attend(const AttentionArgs& args, const ChunkView<T>& view, const float* const* q, float* const* state,
                   const VisibleRange* visible, float* weights) {
    const int head_dim = args.layer.head_dim;
    int most = 0, begin = 0, end = kChunk;  // begin .. end-1: what all see
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        most = visible[i].end > most ? visible[i].end : most;
        begin = visible[i].begin > begin ? visible[i].begin : begin;
        end = visible[i].end < end ? visible[i].end : end;
    }
    end = end > begin ? end : begin;
    if (most > 3 * kLanes) {
        score_groups<QUERIES, 4>(q, view, 0, head_dim, weights);
    } else {
        for (int g = 0; g * kLanes < most; ++g)
            score_groups<QUERIES, 1>(q, view, g, head_dim, weights);
    }
    float alpha[QUERIES];
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i) {
        alpha[i] = update_softmax(state[i], weights + i * kChunk, visible[i], args.scale);
    }
    // What all see together, what is before and behind it each alone; multiplying o by 1 again changes nothing.
    const auto add_alone = [&](int i, int from, int to) {
        if (from >= to) return;
        add_all_values<1>(state + i, alpha + i, weights + i * kChunk, view, from, to, head_dim);
        alpha[i] = 1.0f;
    };
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i)
        add_alone(i, visible[i].begin, visible[i].end < begin ? visible[i].end : begin);
    if (begin < end) {
        add_all_values<QUERIES>(state, alpha, weights, view, begin, end, head_dim);
        FORERUN_UNROLL
        for (int i = 0; i < QUERIES; ++i)
            alpha[i] = 1.0f;
    }
    FORERUN_UNROLL
    for (int i = 0; i < QUERIES; ++i)
        add_alone(i, visible[i].begin > end ? visible[i].begin : end, visible[i].end);
}

// ---- one chunk for all queries of a task ----

template <class T>
static void attend_chunk(const AttentionArgs& args, const AttentionTask& task, int start,
                         const AttentionScratch& scratch) {
    const size_t state_floats = attention_state_floats(args.layer.head_dim);
    const int context = task.sequence.tree_root + 1;
    const auto is_private = [&](int row) { return args.ancestors[row] > 1 && start + kChunk > context; };
    for (int query = task.query_begin; query < task.query_end;) {
        const int row = query_row(args, task, query);
        // A set: up to four neighbours that see something of the chunk at the same place in memory.
        const float* q[4];
        float* state[4];
        VisibleRange visible[4];
        int size = 0, most = 0;
        for (; query < task.query_end && size < 4; ++query) {
            const int next = query_row(args, task, query);
            if (next != row && (is_private(row) || is_private(next))) break;
            const int end = visible_keys(args, task.sequence, next), keys = end - start;
            const int begin = first_visible(args, end) - start;
            if (keys <= 0 || begin >= kChunk) {
                if (size == 0) ++query;  // skip it; the next set starts behind it
                break;
            }
            q[size] = args.q + next * args.ldq + query_column(args, task, query);
            state[size] = scratch.span + (query - task.query_begin) * state_floats;
            visible[size] = {begin > 0 ? begin : 0, keys < kChunk ? keys : kChunk};
            most = visible[size].end > most ? visible[size].end : most;
            ++size;
        }
        ChunkView<T> view;
        for (int g = 0; g * kLanes < most; ++g) {
            const int position = start + g * kLanes;
            if (is_private(row) && position + kLanes > context) {
                assemble(args, task, row, position, start + most, g, scratch, view);
            } else {
                view_group(args, task, position, g, view);
            }
        }
        // None when nobody sees the chunk.
        if (size == 4) attend<4>(args, view, q, state, visible, scratch.probabilities);
        if (size == 3) attend<3>(args, view, q, state, visible, scratch.probabilities);
        if (size == 2) attend<2>(args, view, q, state, visible, scratch.probabilities);
        if (size == 1) attend<1>(args, view, q, state, visible, scratch.probabilities);
    }
}

FORERUN_INLINE bool sees_span(const AttentionArgs& args, const AttentionTask& task, int row, int span) {
    const int end = visible_keys(args, task.sequence, row);
    return span * kSpan < end && first_visible(args, end) < (span + 1) * kSpan;
}

template <class T>
static void attention(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    const int head_dim = args.layer.head_dim, queries = task.query_end - task.query_begin;
    const size_t state_floats = attention_state_floats(head_dim);
    AttentionScratch scratch = carve(memory, head_dim);
    for (int i = 0; i < queries; ++i)
        clear_state(scratch.total + i * state_floats, head_dim);
    for (int span = task.span_begin; span < task.span_end; ++span) {
        if (task.partial) {
            scratch.span = task.partial + static_cast<size_t>(span - task.span_begin) * task.partial_stride;
        }
        for (int i = 0; i < queries; ++i)
            clear_state(scratch.span + i * state_floats, head_dim);
        for (int start = span * kSpan; start < (span + 1) * kSpan; start += kChunk) {
            attend_chunk<T>(args, task, start, scratch);
        }
        if (task.partial) continue;
        for (int i = 0; i < queries; ++i) {
            const int row = query_row(args, task, task.query_begin + i);
            if (!sees_span(args, task, row, span)) continue;
            merge_state(scratch.total + i * state_floats, scratch.span + i * state_floats, head_dim);
        }
    }
    if (task.partial) return;
    for (int i = 0; i < queries; ++i) {
        write_output(args, task, task.query_begin + i, scratch.total + i * state_floats);
    }
}

static void attention_merge(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    const int head_dim = args.layer.head_dim, queries = task.query_end - task.query_begin;
    const size_t state_floats = attention_state_floats(head_dim);
    float* total = carve(memory, head_dim).total;
    for (int i = 0; i < queries; ++i) {
        const int row = query_row(args, task, task.query_begin + i);
        clear_state(total, head_dim);
        for (int span = task.span_begin; span < task.span_end; ++span) {
            if (!sees_span(args, task, row, span)) continue;
            const float* states = task.partial + static_cast<size_t>(span - task.span_begin) * task.partial_stride;
            merge_state(total, states + i * state_floats, head_dim);
        }
        write_output(args, task, task.query_begin + i, total);
    }
}
