// Attention over the paged store: one pass over the keys with a running maximum (online softmax), in a fixed order.
//
//   span of 512 logical positions   | chunk 64 | chunk | ...            each span starts from an empty (m, l, o)
//                                    lanes: 16 16 16 16                 m largest score, l sum of 2^(s-m), o weighted
//                                    values
//
// A row's result is the ascending merge of its spans; a span takes its chunks in ascending order; attention_chunk.inl.h
// has the arithmetic of a chunk. So the bits depend on the row's query and on its keys by logical position, and on
// nothing else: not on how rows are grouped (a group only shares loads), nor on where in memory a key lies.
//
// A task of few queries takes a chunk of several key/value heads, one after the other, before the next chunk: they lie
// beside each other, and meanwhile the lines of the next chunk are fetched. A tree row's keys behind the root lie in
// its ancestors' slots; they are copied to where plain decoding would have them, see assemble().
//
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax; Dao, FlashAttention-2.
// Differs: fixed chunks and spans of logical positions instead of tiles that depend on the shape of the call.

// One task and the memory that its thread works in. A pair is a query of one of the task's key/value heads; its state
// is m, l, padding to a cache line, then o.
struct PlainTask {
    PlainTask(const AttentionArgs& for_args, const AttentionTask& for_task) : args(for_args), task(for_task) {}

    const AttentionArgs& args;
    const AttentionTask& task;
    int queries;           // of each head
    int first, last;       // positions that some query sees
    int context;           // positions that a tree row finds through the block table
    float* q;              // of each head [D, queries], scaled
    float *span, *total;   // [pairs] states
    float* weights;        // [kMaxSet, kChunk]
    float *keys, *values;  // a chunk in float32: [D, kChunk], [kChunk, D]
    VisibleRange visible[kMaxTaskQueries];

    int head_dim() const { return args.layer.head_dim; }
    int pairs() const { return task.num_heads * queries; }
    size_t pair(int head, int query) const { return static_cast<size_t>(head) * queries + query; }
    float* q_of(int head, int query) const { return q + static_cast<size_t>(head) * queries * head_dim() + query; }
    float* span_of(size_t pair) const { return span + pair * attention_state_floats(head_dim()); }
    float* total_of(size_t pair) const { return total + pair * attention_state_floats(head_dim()); }
};

FORERUN_INLINE void clear_state(float* state, int head_dim) {
    state[0] = -__builtin_inff();
    state[1] = 0.0f;
    for (int d = 0; d < head_dim; d += kLanes)
        store(state + kLanes + d, zero());
}

// total = total merged with span. Into an empty total it is a plain copy: 2^-inf is 0 and 2^0 is 1, exactly.
FORERUN_INLINE void merge_state(float* total, const float* span, int head_dim) {
    const float m = total[0] > span[0] ? total[0] : span[0];
    const float a = power(total[0] - m), b = power(span[0] - m);
    total[0] = m;
    total[1] = total[1] * a + span[1] * b;
    for (int d = kLanes; d < kLanes + head_dim; d += kLanes)
        store(total + d, load(total + d) * broadcast(a) + load(span + d) * broadcast(b));
}

FORERUN_INLINE int query_row(const AttentionArgs& args, const AttentionTask& task, int query) {
    return task.sequence.first_row + query / args.heads_per_group;
}

// For the task's key/value head of that number.
FORERUN_INLINE size_t query_column(const AttentionArgs& args, const AttentionTask& task, int query, int number = 0) {
    const int head = (task.kv_head + number) * args.heads_per_group + query % args.heads_per_group;
    return static_cast<size_t>(head) * args.layer.head_dim;
}

FORERUN_INLINE void write_output(const AttentionArgs& args, const AttentionTask& task, int query, int number,
                                 const float* total) {
    float* out = args.out + query_row(args, task, query) * args.ldo + query_column(args, task, query, number);
    const Vec l = broadcast(total[1]);
    for (int d = 0; d < args.layer.head_dim; d += kLanes)
        store_first(out + d, load(total + kLanes + d) / l, args.layer.head_dim - d);
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

// The chunk at `start` in the store, as the block table says, for the task's first head. Groups that nobody sees repeat
// the last one.
template <class T>
static ChunkView<T> find_chunk(const PlainTask& t, int start) {
    ChunkView<T> view;
    view.key_stride = static_cast<size_t>(t.args.layer.block_size);
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        const int position = start + g * kLanes;
        if (position >= t.last && g > 0) {
            view.key[g] = view.key[g - 1];
            view.value[g] = view.value[g - 1];
            continue;
        }
        const int slot = slot_of(t.args, t.task, position);  // a multiple of 16, so the group lies inside one block
        view.key[g] = key_at<T>(t.args.layer, t.task.kv_head, slot);
        view.value[g] = value_at<T>(t.args.layer, t.task.kv_head, slot);
    }
    return view;
}

// The same chunk of the task's head of that number.
template <class T>
FORERUN_INLINE ChunkView<T> view_head(const PlainTask& t, ChunkView<T> view, int number) {
    const size_t elements = static_cast<size_t>(t.head_dim()) * t.args.layer.block_size * number;
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        view.key[g] += elements;
        view.value[g] += elements;
    }
    return view;
}

// The task's own chunk in float32.
FORERUN_INLINE ChunkView<float> copied_chunk(const PlainTask& t) {
    ChunkView<float> view;
    view.key_stride = kChunk;
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        view.key[g] = t.keys + g * kLanes;
        view.value[g] = t.values + static_cast<size_t>(g) * kLanes * t.head_dim();
    }
    return view;
}

// Copies a chunk into float32, for tree rows, and fetches `next`.
template <class T>
static void copy_chunk(const PlainTask& t, const ChunkView<T>& view, const ChunkView<T>& next) {
    const int head_dim = t.head_dim();
    float* to = t.keys;
    for (int d = 0; d < head_dim; ++d, to += kChunk) {
        if (d % 2 == 0) fetch_keys(next, d);
        FORERUN_UNROLL
        for (int g = 0; g < kGroupsPerChunk; ++g)
            store(to + g * kLanes, load(view.key[g] + d * view.key_stride));
    }
    to = t.values;
    for (int g = 0; g < kGroupsPerChunk; ++g) {
        const T *from = view.value[g], *fetched = next.value[g];
        for (int j = 0; j < kLanes; ++j, from += head_dim, fetched += head_dim, to += head_dim) {
            int d = 0;
            for (; d + 2 * kLanes <= head_dim; d += 2 * kLanes) {
                fetch_values<2>(fetched, d);
                store(to + d, load(from + d));
                store(to + d + kLanes, load(from + d + kLanes));
            }
            for (; d < head_dim; d += kLanes)
                store_first(to + d, load_first(from + d, head_dim - d), head_dim - d);
        }
    }
}

FORERUN_INLINE float to_float32(float value) {
    return value;
}
FORERUN_INLINE float to_float32(uint16_t value) {
    return float_from_bf16(value);
}

// Puts a tree row's positions from group `group` on, before `end`, into the task's chunk: context through the block
// table, then the row's ancestors, node i at logical slot root + i.
template <class T>
static void assemble(const PlainTask& t, int head, int row, int start, int group, int end) {
    const KvLayer& layer = t.args.layer;
    for (int i = group * kLanes; i < kChunk && start + i < end; ++i) {
        const int position = start + i;
        int logical = position;
        if (position >= t.context) {
            uint64_t path = t.args.ancestors[row] & ~uint64_t{1};  // without the root; bits ascend with depth
            for (int skip = position - t.context; skip > 0; --skip)
                path &= path - 1;
            logical = t.context - 1 + __builtin_ctzll(path);
        }
        const int slot = slot_of(t.args, t.task, logical);
        const T* key = key_at<T>(layer, t.task.kv_head + head, slot);
        const T* value = value_at<T>(layer, t.task.kv_head + head, slot);
        for (int d = 0; d < layer.head_dim; ++d) {
            t.keys[d * kChunk + i] = to_float32(key[static_cast<size_t>(d) * layer.block_size]);
            t.values[static_cast<size_t>(i) * layer.head_dim + d] = to_float32(value[d]);
        }
    }
}

// ---- one chunk for all queries of a head ----

// The next queries from `query` on, up to `most`, that see something of the chunk; only those of one row where its keys
// are its own. Moves `query` behind them, or by one when that one sees nothing.
template <class F>
FORERUN_INLINE QuerySet take_set(const PlainTask& t, int head, int start, int most, const F& is_private, int& query) {
    QuerySet set;
    set.size = 0;
    set.q = t.q_of(head, query);
    set.q_stride = static_cast<size_t>(t.queries);
    set.state = t.span_of(t.pair(head, query));
    set.state_floats = attention_state_floats(t.head_dim());
    const int row = query_row(t.args, t.task, t.task.query_begin + query);
    for (; query < t.queries && set.size < most; ++query) {
        const int next = query_row(t.args, t.task, t.task.query_begin + query);
        if (next != row && (is_private(row) || is_private(next))) break;
        const int begin = t.visible[query].begin - start, end = t.visible[query].end - start;
        if (end <= 0 || begin >= kChunk) {
            if (set.size == 0) ++query;
            break;
        }
        set.visible[set.size++] = {begin > 0 ? begin : 0, end < kChunk ? end : kChunk};
    }
    return set;
}

// `view` is the chunk of that head in the store, `next` what will be worked on after it.
template <class T>
static void attend_chunk(const PlainTask& t, int head, int start, const ChunkView<T>& view, const ChunkView<T>& next) {
    const int head_dim = t.head_dim();
    const auto is_private = [&](int row) { return t.args.ancestors[row] > 1 && start + kChunk > t.context; };
    const int num_sets = (t.queries + kMaxSet - 1) / kMaxSet, most = (t.queries + num_sets - 1) / num_sets;
    const ChunkView<float> copy = copied_chunk(t);
    int copied = 0;  // groups of the task's own chunk that are as in the store
    const auto need_copied = [&](int groups) {
        if (copied >= groups) return;
        copy_chunk(t, view, next);
        copied = kGroupsPerChunk;
    };
    for (int query = 0; query < t.queries;) {
        const int row = query_row(t.args, t.task, t.task.query_begin + query), end = t.visible[query].end;
        const QuerySet set = take_set(t, head, start, most, is_private, query);
        if (set.size == 0) continue;
        if (is_private(row)) {
            const int shared = t.context > start ? (t.context - start) / kLanes : 0;
            need_copied(shared);
            assemble<T>(t, head, row, start, shared, end);
            copied = shared;
            attend_sized<kMaxSet>(set, copy, copy, head_dim, t.weights);
        } else {
            attend_sized<kMaxSet>(set, view, next, head_dim, t.weights);
        }
    }
}

// ---- a task ----

static void describe_task(PlainTask& t, float* memory) {
    const AttentionArgs& args = t.args;
    const int head_dim = args.layer.head_dim;
    const auto take = [&memory](size_t floats) {
        float* const start = memory;
        memory += floats;
        return start;
    };
    const size_t width = static_cast<size_t>(padded(head_dim)),
                 states = kMaxTaskQueries * attention_state_floats(head_dim);
    t.q = take(kMaxTaskQueries * width);
    t.span = take(states);
    t.total = take(states);
    t.weights = take(kMaxSet * kChunk);
    t.keys = take(kChunk * width);
    t.values = take(kChunk * width);
    t.queries = t.task.query_end - t.task.query_begin;
    t.context = t.task.sequence.tree_root + 1;
    t.first = 1 << 30;
    t.last = 0;
    for (int i = 0; i < t.queries; ++i) {
        const int end = visible_keys(args, t.task.sequence, query_row(args, t.task, t.task.query_begin + i));
        const int begin = first_visible(args, end);
        t.visible[i] = {begin, end};
        t.first = begin < t.first ? begin : t.first;
        t.last = end > t.last ? end : t.last;
    }
}

// Scaled so that scores are exponents of two.
static void scale_queries(const PlainTask& t) {
    const float scale = t.args.scale * 1.44269504088896341f;
    const int head_dim = t.head_dim();
    for (int head = 0; head < t.task.num_heads; ++head) {
        for (int i = 0; i < t.queries; ++i) {
            const int query = t.task.query_begin + i;
            const float* from =
                t.args.q + query_row(t.args, t.task, query) * t.args.ldq + query_column(t.args, t.task, query, head);
            float* to = t.q_of(head, i);
            for (int d = 0; d < head_dim; ++d)
                to[static_cast<size_t>(d) * t.queries] = from[d] * scale;
        }
    }
}

FORERUN_INLINE bool sees_span(VisibleRange visible, int span) {
    return span * kSpan < visible.end && visible.begin < (span + 1) * kSpan;
}

template <class T>
static void attention(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    PlainTask t(args, task);
    describe_task(t, memory);
    scale_queries(t);
    const int head_dim = t.head_dim(), pairs = t.pairs();
    for (int i = 0; i < pairs; ++i)
        clear_state(t.total_of(i), head_dim);
    const int last = t.last < task.span_end * kSpan ? t.last : task.span_end * kSpan;
    int start = task.span_begin * kSpan;
    start = t.first > start ? t.first / kChunk * kChunk : start;
    ChunkView<T> chunk;
    if (start < last) chunk = find_chunk<T>(t, start);
    for (int span = task.span_begin; span < task.span_end; ++span) {
        if (task.partial) t.span = task.partial + static_cast<size_t>(span - task.span_begin) * task.partial_stride;
        for (int i = 0; i < pairs; ++i)
            clear_state(t.span_of(i), head_dim);
        for (; start < (span + 1) * kSpan && start < last; start += kChunk) {
            const ChunkView<T> next = start + kChunk < last ? find_chunk<T>(t, start + kChunk) : chunk;
            for (int head = 0; head < task.num_heads; ++head)
                attend_chunk<T>(t, head, start, view_head(t, chunk, head), view_head(t, next, head));
            chunk = next;
        }
        if (task.partial) continue;
        for (int i = 0; i < pairs; ++i) {
            if (sees_span(t.visible[i % t.queries], span)) merge_state(t.total_of(i), t.span_of(i), head_dim);
        }
    }
    if (task.partial) return;
    for (int head = 0; head < task.num_heads; ++head) {
        for (int i = 0; i < t.queries; ++i)
            write_output(args, task, task.query_begin + i, head, t.total_of(t.pair(head, i)));
    }
}

static void attention_merge(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    const int head_dim = args.layer.head_dim;
    const size_t state_floats = attention_state_floats(head_dim);
    for (int query = task.query_begin; query < task.query_end; ++query) {
        const int end = visible_keys(args, task.sequence, query_row(args, task, query));
        const float* states = task.partial + static_cast<size_t>(query - task.query_begin) * state_floats;
        clear_state(memory, head_dim);
        for (int span = task.span_begin; span < task.span_end; ++span, states += task.partial_stride) {
            if (sees_span({first_visible(args, end), end}, span)) merge_state(memory, states, head_dim);
        }
        write_output(args, task, query, 0, memory);
    }
}
