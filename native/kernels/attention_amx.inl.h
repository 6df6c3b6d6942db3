// Attention over tiled KV on AMX: all queries of a task take a chunk of keys and values in one pass.
//
// The frame is that of attention.inl.h: chunks of 64 logical positions in spans of 512 that start empty and are merged
// in ascending order; attention_tiles.inl.h has the arithmetic of a chunk for sixteen queries. One query computes the
// same tile products as sixteen, so a row's bits are the same in decoding, verification and prefill.
//
// Invisible values. A weight of zero does not silence a value that is NaN or infinite, and a tile multiplies all its
// queries with all its values. So a chunk that somebody sees only in part is searched for such values. If there are
// any, queries that see the same get a copy in which everything else is zero: the same bits, slowly. At most the sign
// of a zero differs, and write_tiles removes it.

// Up to sixteen queries of a head. Positions are logical and count from 0; behind the last query lanes see nothing.
struct TileGroup {
    int begin[kLanes], end[kLanes];  // what a query sees
    bool is_node[kLanes];            // a tree row behind its root: sees private positions behind the context
    int row[kLanes];
    int first, last;              // what some query sees
    int whole_first, whole_last;  // what all queries see
    bool has_nodes;
};

struct TileTask {
    TileTask(const AttentionArgs& args, const AttentionTask& task) : source{args, task, nullptr, nullptr} {}

    TileSource source;
    int queries, groups;
    int context;                   // positions that a tree row finds through the block table
    int first, last, shared_last;  // what some query sees; shared: through the block table
    bool has_nodes;
    TileBuffers buffers;
    uint16_t* clean_values;                     // [2 steps][D, 32]
    float* clean_o;                             // [D, 16]
    TileGroup group[kMaxTileQueries / kLanes];  // the same for every head
    uint16_t* q;                                // [heads][groups][D / 32 rounded up][tile]
    float *span, *total;                        // [heads][groups] states

    int head_dim() const { return source.args.layer.head_dim; }
    int heads() const { return source.task.num_heads; }
    size_t place(int head, int group) const { return static_cast<size_t>(head) * groups + group; }
    uint16_t* q_of(int head, int group) const { return q + place(head, group) * 2 * tile_query_floats(head_dim()); }
    float* span_of(int head, int group) const { return span + place(head, group) * tile_state_floats(head_dim()); }
    float* total_of(int head, int group) const { return total + place(head, group) * tile_state_floats(head_dim()); }
};

static void describe_group(const TileTask& t, int number, TileGroup& group) {
    const AttentionArgs& args = t.source.args;
    const AttentionTask& task = t.source.task;
    group.first = group.whole_last = 1 << 30;
    group.last = group.whole_first = 0;
    group.has_nodes = false;
    for (int i = 0; i < kLanes; ++i) {
        const int query = number * kLanes + i;
        group.begin[i] = group.end[i] = group.row[i] = 0;
        group.is_node[i] = false;
        if (query >= t.queries) continue;
        const int row = group.row[i] = query_row(args, task, task.query_begin + query);
        const int end = group.end[i] = visible_keys(args, task.sequence, row);
        const int begin = group.begin[i] = first_visible(args, end);
        group.is_node[i] = args.ancestors[row] > 1;
        group.has_nodes |= group.is_node[i];
        group.first = begin < group.first ? begin : group.first;
        group.last = end > group.last ? end : group.last;
        group.whole_first = begin > group.whole_first ? begin : group.whole_first;
        group.whole_last = end < group.whole_last ? end : group.whole_last;
    }
}

static void describe_task(TileTask& t, float* memory) {
    const int head_dim = t.head_dim();
    const auto take = [&memory](size_t floats) {
        float* start = memory;
        memory += floats;
        return start;
    };
    const size_t chunk = static_cast<size_t>(kChunk) * head_dim / 2;  // floats of 64 x D bfloat16
    t.queries = t.source.task.query_end - t.source.task.query_begin;
    t.groups = (t.queries + kLanes - 1) / kLanes;
    t.context = t.source.task.sequence.tree_root + 1;
    t.buffers.scores = take(kChunk * kLanes);
    t.buffers.weights = reinterpret_cast<uint16_t*>(take(kChunk * kLanes / 2));
    t.source.keys = reinterpret_cast<uint16_t*>(take(chunk));
    t.source.values = reinterpret_cast<uint16_t*>(take(chunk));
    t.clean_values = reinterpret_cast<uint16_t*>(take(chunk));
    t.clean_o = take(static_cast<size_t>(head_dim) * kLanes);
    t.q = reinterpret_cast<uint16_t*>(take(t.place(t.heads(), 0) * tile_query_floats(head_dim)));
    t.span = take(t.place(t.heads(), 0) * tile_state_floats(head_dim));
    t.total = take(t.place(t.heads(), 0) * tile_state_floats(head_dim));
    t.first = 1 << 30;
    t.last = t.shared_last = 0;
    t.has_nodes = false;
    for (int g = 0; g < t.groups; ++g) {
        TileGroup& group = t.group[g];
        describe_group(t, g, group);
        t.first = group.first < t.first ? group.first : t.first;
        t.last = group.last > t.last ? group.last : t.last;
        t.has_nodes |= group.has_nodes;
        for (int i = 0; i < kLanes; ++i) {
            const int end = group.is_node[i] && t.context < group.end[i] ? t.context : group.end[i];
            t.shared_last = end > t.shared_last ? end : t.shared_last;
        }
    }
}

// A group's queries times scale * log2(e), rounded, as right operands: pairs of components by sixteen queries.
static void pack_queries(const TileTask& t, int head, int number) {
    const AttentionArgs& args = t.source.args;
    const TileGroup& group = t.group[number];
    const int head_dim = t.head_dim(), first = number * kLanes;
    const Vec scale = broadcast(args.scale * 1.44269504088896341f);
    uint16_t* to = t.q_of(head, number);
    for (int d = 0; d < head_dim; d += kTileDepth, to += kTileElements) {
        __m512i pairs[kLanes];
        for (int i = 0; i < kLanes; ++i) {
            pairs[i] = _mm512_setzero_si512();
            if (first + i >= t.queries) continue;
            const int query = t.source.task.query_begin + first + i;
            const float* q = args.q + group.row[i] * args.ldq + query_column(args, t.source.task, query, head) + d;
            const Vec high = d + kLanes < head_dim ? load(q + kLanes) * scale : zero();
            const __m512bh rounded = _mm512_cvtne2ps_pbh(high.v, (load(q) * scale).v);
            __builtin_memcpy(&pairs[i], &rounded, sizeof rounded);
        }
        transpose(pairs);
        for (int i = 0; i < kLanes; ++i)
            _mm512_store_si512(to + i * 2 * kLanes, pairs[i]);
    }
}

FORERUN_INLINE void clear_tile_state(float* state, int head_dim) {
    store(state, broadcast(-__builtin_inff()));
    for (int i = 1; i < 2 + head_dim; ++i)
        store(state + i * kLanes, zero());
}

// total = total merged with span. An empty span changes nothing; into an empty total it is a plain copy.
FORERUN_INLINE void merge_tile_state(float* total, const float* span, int head_dim) {
    const Vec m = maximum(load(total), load(span));
    const Vec a = rescaling(load(total), m), b = rescaling(load(span), m);
    store(total, m);
    for (int i = 1; i < 2 + head_dim; ++i)
        store(total + i * kLanes, load(total + i * kLanes) * a + load(span + i * kLanes) * b);
}

static void write_tiles(const AttentionArgs& args, const AttentionTask& task, int head, int group, const float* total) {
    const int queries = task.query_end - task.query_begin;
    const Vec l = load(total + kLanes);
    for (int d = 0; d < args.layer.head_dim; d += kLanes) {
        __m512i rows[kLanes];
        for (int i = 0; i < kLanes; ++i) {
            const Vec o = load(total + (2 + d + i) * kLanes) / l + zero();  // adding 0 makes -0 a +0
            rows[i] = _mm512_castps_si512(o.v);
        }
        transpose(rows);
        for (int i = 0; i < kLanes && group * kLanes + i < queries; ++i) {
            const int query = task.query_begin + group * kLanes + i;
            float* out = args.out + query_row(args, task, query) * args.ldo + query_column(args, task, query, head);
            _mm512_storeu_si512(out + d, rows[i]);
        }
    }
}

// ---- one chunk for one group ----

FORERUN_INLINE void score_groups_of(int groups, const uint16_t* q, const TileView& view, int head_dim, float* scores) {
    switch (groups) {
        case 4:
            return score_tiles<4>(q, view, head_dim, scores, do_nothing);
        case 3:
            return score_tiles<3>(q, view, head_dim, scores, do_nothing);
        case 2:
            return score_tiles<2>(q, view, head_dim, scores, do_nothing);
        default:
            return score_tiles<1>(q, view, head_dim, scores, do_nothing);
    }
}

// add_values_of_chunk from copies in which what queries do not see is zero, for those together that see the same.
static void add_clean_values(const TileTask& t, const TileView& view, const TileRange& range, float* o) {
    const int head_dim = t.head_dim();
    TileView clean = view;
    for (int step = 0; step < view.steps(); ++step) {
        clean.value[step] = t.clean_values + static_cast<size_t>(step) * kStepPositions * head_dim;
        clean.value_stride[step] = kStepPositions;
    }
    for (uint32_t left = 0xffff; left != 0;) {
        const int lane = __builtin_ctz(left), begin = range.begin[lane], end = range.end[lane];
        uint32_t lanes = 0;
        for (int i = lane; i < kLanes; ++i)
            lanes |= range.begin[i] == begin && range.end[i] == end ? 1u << i : 0;
        left &= ~lanes;
        if (begin >= end) continue;
        const uint64_t seen = ~uint64_t{0} >> (kChunk - (end - begin)) << begin;
        for (int step = 0; step < view.steps(); ++step) {
            const __mmask32 mask = static_cast<__mmask32>(seen >> (step * kStepPositions));
            uint16_t* to = t.clean_values + static_cast<size_t>(step) * kStepPositions * head_dim;
            for (int d = 0; d < head_dim; ++d) {
                const uint16_t* from = view.value[step] + d * view.value_stride[step];
                _mm512_store_si512(to + d * kStepPositions, _mm512_maskz_loadu_epi16(mask, from));
            }
        }
        __builtin_memcpy(t.clean_o, o, sizeof(float) * kLanes * head_dim);
        add_values_of_chunk(clean, t.buffers.weights, head_dim, t.clean_o, do_nothing);
        for (int d = 0; d < head_dim; ++d)
            _mm512_mask_store_ps(o + d * kLanes, static_cast<__mmask16>(lanes), load(t.clean_o + d * kLanes).v);
    }
}

// A chunk of which every query sees everything.
static void attend_whole(const TileTask& t, const TileView& view, const uint16_t* q, float* state,
                         Prefetcher& prefetcher) {
    const int head_dim = t.head_dim();
    float* o = state + 2 * kLanes;
    const auto fetch = [&prefetcher] { prefetcher.fetch_share(); };
    score_tiles<kGroupsPerChunk>(q, view, head_dim, t.buffers.scores, fetch);
    const Vec alpha = weigh<false>(t.buffers, state, kGroupsPerChunk, nullptr, fetch);
    scale_output(o, alpha, head_dim);
    add_values_of_chunk(view, t.buffers.weights, head_dim, o, fetch);
}

// A chunk of which queries see parts, or nothing: those are left as they are. `wild`: -1 while it is not known whether
// the view has wild values.
static void attend_part(const TileTask& t, const TileView& view, const uint16_t* q, float* state,
                        const TileRange& range, int& wild) {
    const int head_dim = t.head_dim();
    float* o = state + 2 * kLanes;
    score_groups_of(view.groups, q, view, head_dim, t.buffers.scores);
    const Vec alpha = weigh<true>(t.buffers, state, view.groups, &range, do_nothing);
    scale_output(o, alpha, head_dim);
    if (wild < 0) wild = has_wild_values(view, head_dim);
    if (wild) {
        add_clean_values(t, view, range, o);
    } else {
        add_values_of_chunk(view, t.buffers.weights, head_dim, o, do_nothing);
    }
}

FORERUN_INLINE int clamp_to_chunk(int position) {
    return position < 0 ? 0 : position < kChunk ? position : kChunk;
}

// What the queries for which `takes_part` see of the chunk at `start`; false when it is nothing.
template <class F>
FORERUN_INLINE bool find_range(const TileGroup& group, int start, const F& takes_part, TileRange& range) {
    bool any = false;
    for (int i = 0; i < kLanes; ++i) {
        const bool is_in = takes_part(i);
        range.begin[i] = is_in ? clamp_to_chunk(group.begin[i] - start) : 0;
        range.end[i] = is_in ? clamp_to_chunk(group.end[i] - start) : 0;
        any |= range.begin[i] < range.end[i];
    }
    return any;
}

// ---- one chunk for all queries of a task ----

// Nodes, each with keys and values of its own.
static void attend_nodes(const TileTask& t, int head, int start) {
    const int first = t.group[0].row[0], last = query_row(t.source.args, t.source.task, t.source.task.query_end - 1);
    for (int row = first; row <= last; ++row) {
        if (t.source.args.ancestors[row] <= 1) continue;
        const int visible = clamp_to_chunk(visible_keys(t.source.args, t.source.task.sequence, row) - start);
        if (visible == 0) continue;
        const int kv_head = t.source.task.kv_head + head;
        const TileView view = assemble_tiles(t.source, kv_head, row, start, visible, t.context);
        int wild = -1;
        for (int g = 0; g < t.groups; ++g) {
            const TileGroup& group = t.group[g];
            const auto is_mine = [&](int i) { return group.is_node[i] && group.row[i] == row; };
            TileRange range;
            if (!find_range(group, start, is_mine, range)) continue;
            attend_part(t, view, t.q_of(head, g), t.span_of(head, g), range, wild);
        }
    }
}

// `is_private`: nodes have keys of their own in the chunk.
static void attend_shared(const TileTask& t, int head, int start, bool is_private, const TilePlaces& places,
                          Prefetcher& prefetcher) {
    const int end = start + kChunk;
    const TileView view = view_places(t.source, places, head);
    int wild = -1;
    for (int g = 0; g < t.groups; ++g) {
        const TileGroup& group = t.group[g];
        if (end <= group.first || start >= group.last) continue;
        if (group.whole_first <= start && end <= group.whole_last && !(is_private && group.has_nodes)) {
            attend_whole(t, view, t.q_of(head, g), t.span_of(head, g), prefetcher);
            continue;
        }
        TileRange range;
        const auto takes_part = [&](int i) { return !(is_private && group.is_node[i]); };
        if (!find_range(group, start, takes_part, range)) continue;
        attend_part(t, view, t.q_of(head, g), t.span_of(head, g), range, wild);
    }
}

// ---- a task ----

template <class F>
FORERUN_INLINE void for_each_group(const TileTask& t, const F& f) {
    for (int head = 0; head < t.heads(); ++head) {
        for (int g = 0; g < t.groups; ++g)
            f(head, g);
    }
}

static void attention_tiled(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    TileTask t(args, task);
    describe_task(t, memory);
    configure_attention_tiles();
    for_each_group(t, [&t](int head, int g) {
        pack_queries(t, head, g);
        clear_tile_state(t.total_of(head, g), t.head_dim());
    });
    Prefetcher prefetcher;
    const auto places_at = [&t](int start) {
        return find_places(t.source, start, clamp_to_chunk(t.shared_last - start));
    };
    int start = task.span_begin * kSpan;
    start = t.first > start ? t.first / kChunk * kChunk : start;
    TilePlaces places = places_at(start);
    for (int span = task.span_begin; span < task.span_end; ++span) {
        if (task.partial) t.span = task.partial + static_cast<size_t>(span - task.span_begin) * task.partial_stride;
        for_each_group(t, [&t](int head, int g) { clear_tile_state(t.span_of(head, g), t.head_dim()); });
        for (; start < (span + 1) * kSpan && start < t.last; start += kChunk) {
            const TilePlaces next = places_at(start + kChunk);
            prefetcher.plan(t.source, next, static_cast<int>(t.place(t.heads(), 0)) * betweens_per_chunk(t.head_dim()));
            const bool is_private = t.has_nodes && start + kChunk > t.context;
            for (int head = 0; head < t.heads(); ++head) {
                if (places.groups > 0) attend_shared(t, head, start, is_private, places, prefetcher);
                if (is_private) attend_nodes(t, head, start);
            }
            places = next;
        }
        if (task.partial) continue;
        for_each_group(
            t, [&t](int head, int g) { merge_tile_state(t.total_of(head, g), t.span_of(head, g), t.head_dim()); });
    }
    _tile_release();
    if (task.partial) return;
    for_each_group(t, [&](int head, int g) { write_tiles(args, task, head, g, t.total_of(head, g)); });
}

static void attention_merge_bf16(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    if (!args.layer.is_tiled) return attention_merge(args, task, memory);
    const int head_dim = args.layer.head_dim, groups = (task.query_end - task.query_begin + kLanes - 1) / kLanes;
    for (int g = 0; g < groups; ++g) {
        clear_tile_state(memory, head_dim);
        for (int span = task.span_begin; span < task.span_end; ++span) {
            const float* states = task.partial + static_cast<size_t>(span - task.span_begin) * task.partial_stride;
            merge_tile_state(memory, states + g * tile_state_floats(head_dim), head_dim);
        }
        write_tiles(args, task, 0, g, memory);
    }
}

static void attention_bf16(const AttentionArgs& args, const AttentionTask& task, float* memory) {
    if (args.layer.is_tiled) return attention_tiled(args, task, memory);
    attention<uint16_t>(args, task, memory);
}
