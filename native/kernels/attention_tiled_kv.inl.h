// Keys and values as kv_store.h lays them out for tiles: writing them, and finding a chunk of them.
//
// Sixteen keys in a row are a left operand where they lie. Values are one where a block holds whole steps of 32
// positions; from blocks of 16 or 48 slots they are copied together. So are the chunks of tree rows behind the root.

FORERUN_INLINE uint16_t* tiled_key(const KvLayer& layer, int head, int slot) {
    char* block = layer.base + slot / layer.block_size * layer.block_bytes;
    return reinterpret_cast<uint16_t*>(block) +
           (static_cast<size_t>(head) * layer.block_size + slot % layer.block_size) * layer.head_dim;
}
FORERUN_INLINE uint16_t* tiled_value(const KvLayer& layer, int head, int slot) {
    char* half = layer.base + slot / layer.block_size * layer.block_bytes + layer.block_bytes / 2;
    return reinterpret_cast<uint16_t*>(half) + static_cast<size_t>(head) * layer.head_dim * layer.block_size +
           slot % layer.block_size;
}

// The values of one head in up to sixteen rows at neighbouring slots: sixteen components of all of them at a time are
// turned round, so that each component's positions are one store.
FORERUN_INLINE void write_values(const float* from, size_t ldv, int rows, int head_dim, uint16_t* to, size_t stride) {
    const __m512i halves = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                            21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    const __mmask16 here = first_lanes(rows).bits;
    for (int d = 0; d < head_dim; d += kLanes) {
        __m512i pairs[8];  // of rows, for each component
        FORERUN_UNROLL
        for (int i = 0; i < 8; ++i) {
            const __m512 even = 2 * i < rows ? load(from + 2 * i * ldv + d).v : zero().v;
            const __m512 odd = 2 * i + 1 < rows ? load(from + (2 * i + 1) * ldv + d).v : zero().v;
            const __m512bh rounded = _mm512_cvtne2ps_pbh(odd, even);
            __builtin_memcpy(&pairs[i], &rounded, sizeof rounded);
            pairs[i] = _mm512_permutexvar_epi16(halves, pairs[i]);
        }
        // fours[4 h + j] holds in its lane L the rows 8 h to 8 h + 7 of component 4 L + j.
        __m512i fours[8];
        FORERUN_UNROLL
        for (int h = 0; h < 2; ++h) {
            const __m512i* p = pairs + 4 * h;
            const __m512i a = _mm512_unpacklo_epi32(p[0], p[1]), b = _mm512_unpacklo_epi32(p[2], p[3]);
            const __m512i c = _mm512_unpackhi_epi32(p[0], p[1]), e = _mm512_unpackhi_epi32(p[2], p[3]);
            fours[4 * h] = _mm512_unpacklo_epi64(a, b);
            fours[4 * h + 1] = _mm512_unpackhi_epi64(a, b);
            fours[4 * h + 2] = _mm512_unpacklo_epi64(c, e);
            fours[4 * h + 3] = _mm512_unpackhi_epi64(c, e);
        }
        FORERUN_UNROLL
        for (int j = 0; j < 4; ++j) {
            uint16_t* const out = to + (d + j) * stride;
            const __m512i first = _mm512_permutex2var_epi64(fours[j], low, fours[4 + j]);
            const __m512i last = _mm512_permutex2var_epi64(fours[j], high, fours[4 + j]);
            _mm256_mask_storeu_epi16(out, here, _mm512_castsi512_si256(first));
            _mm256_mask_storeu_epi16(out + 4 * stride, here, _mm512_extracti64x4_epi64(first, 1));
            _mm256_mask_storeu_epi16(out + 8 * stride, here, _mm512_castsi512_si256(last));
            _mm256_mask_storeu_epi16(out + 12 * stride, here, _mm512_extracti64x4_epi64(last, 1));
        }
    }
}

FORERUN_INLINE void write_value(const float* from, int head_dim, uint16_t* to, size_t stride) {
    for (int d = 0; d < head_dim; d += kLanes) {
        uint16_t rounded[kLanes];
        store_bf16_first(rounded, load(from + d), kLanes);
        FORERUN_UNROLL
        for (int i = 0; i < kLanes; ++i)
            to[(d + i) * stride] = rounded[i];
    }
}

// Up to sixteen rows from `row` on, before `end`, whose slots are neighbours in one block.
FORERUN_INLINE int neighbouring_slots(const WriteKvArgs& args, int row, int end) {
    int rows = 1;
    while (rows < kLanes && row + rows < end && args.slots[row + rows] == args.slots[row] + rows &&
           args.slots[row + rows] % args.layer.block_size != 0)
        ++rows;
    return rows;
}

static void write_kv_bf16(const WriteKvArgs& args, int row_begin, int row_end) {
    const KvLayer& layer = args.layer;
    if (!layer.is_tiled) return write_kv<uint16_t>(args, row_begin, row_end);
    const size_t stride = static_cast<size_t>(layer.block_size);
    for (int row = row_begin, rows; row < row_end; row += rows) {
        rows = neighbouring_slots(args, row, row_end);
        for (int head = 0; head < layer.num_heads; ++head) {
            const size_t column = static_cast<size_t>(head) * layer.head_dim;
            const float* const v = args.v + row * args.ldv + column;
            uint16_t* const key = tiled_key(layer, head, args.slots[row]);
            uint16_t* const value = tiled_value(layer, head, args.slots[row]);
            for (int i = 0; i < rows; ++i) {
                const float* const k = args.k + (row + i) * args.ldk + column;
                for (int d = 0; d < layer.head_dim; d += kLanes)
                    store_bf16_first(key + static_cast<size_t>(i) * layer.head_dim + d, load(k + d), kLanes);
            }
            if (rows == 1) {
                write_value(v, layer.head_dim, value, stride);
            } else {
                write_values(v, args.ldv, rows, layer.head_dim, value, stride);
            }
        }
    }
}

// Sixty-four logical positions of one key/value head, of which the first `groups` * 16 are there.
struct TileView {
    int groups;
    const uint16_t* key[kGroupsPerChunk];   // 16 rows of D components
    const uint16_t* value[kStepsPerChunk];  // D rows of 32 positions,
    size_t value_stride[kStepsPerChunk];    // this many elements apart

    int steps() const { return (groups + 1) / 2; }
};

// Whose keys, and memory for a chunk that must be put together.
struct TileSource {
    const AttentionArgs& args;
    const AttentionTask& task;
    uint16_t *keys, *values;  // [64, D], [2 steps][D, 32]

    uint16_t* half_step(int group) const {
        return values + static_cast<size_t>(group / 2) * kStepPositions * args.layer.head_dim + group % 2 * kLanes;
    }
    bool has_whole_steps() const { return args.layer.block_size % kStepPositions == 0; }
};

// Where the keys and values of a chunk's groups are in the store, for the task's first head. A group lies inside one
// block; the same of the next head lies `head_elements` further.
struct TilePlaces {
    int groups, offset;  // of the first group in its block
    size_t head_elements;
    const uint16_t *key[kGroupsPerChunk], *value[kGroupsPerChunk];
};

// Of the groups of the chunk at `start` that hold its first `positions`, through the block table.
static TilePlaces find_places(const TileSource& source, int start, int positions) {
    const KvLayer& layer = source.args.layer;
    const int32_t* block = source.task.sequence.block_table + start / layer.block_size;
    int offset = start % layer.block_size;
    TilePlaces places;
    places.groups = (positions + kLanes - 1) / kLanes;
    places.offset = offset;
    places.head_elements = static_cast<size_t>(layer.block_size) * layer.head_dim;
    const size_t head = source.task.kv_head * places.head_elements;
    for (int g = 0; g < places.groups; ++g) {
        const char* base = layer.base + *block * layer.block_bytes;
        places.key[g] = reinterpret_cast<const uint16_t*>(base) + head + static_cast<size_t>(offset) * layer.head_dim;
        places.value[g] = reinterpret_cast<const uint16_t*>(base + layer.block_bytes / 2) + head + offset;
        offset += kLanes;
        if (offset == layer.block_size) {
            offset = 0;
            ++block;
        }
    }
    return places;
}

// The first `count` of 16 positions of all components to half a step; the others are zero.
FORERUN_INLINE void copy_values(const uint16_t* from, size_t stride, int count, int head_dim, uint16_t* to) {
    const __mmask16 mask = first_lanes(count).bits;
    for (int d = 0; d < head_dim; ++d) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + d * kStepPositions),
                           _mm256_maskz_loadu_epi16(mask, from + d * stride));
    }
}

FORERUN_INLINE void clear_odd_half(const TileSource& source, int groups) {
    if (groups % 2 != 0) copy_values(source.values, 0, 0, source.args.layer.head_dim, source.half_step(groups));
}

FORERUN_INLINE void view_copied_values(const TileSource& source, TileView& view) {
    for (int step = 0; step < view.steps(); ++step) {
        view.value[step] = source.half_step(2 * step);
        view.value_stride[step] = kStepPositions;
    }
}

// A chunk for the task's head `number`. Values of blocks that hold no whole steps are copied to the source's memory.
static TileView view_places(const TileSource& source, const TilePlaces& places, int number) {
    const KvLayer& layer = source.args.layer;
    const size_t head = number * places.head_elements;
    TileView view;
    view.groups = places.groups;
    for (int g = 0; g < places.groups; ++g) {
        view.key[g] = places.key[g] + head;
        if (!source.has_whole_steps()) {
            copy_values(places.value[g] + head, layer.block_size, kLanes, layer.head_dim, source.half_step(g));
        } else if (g % 2 == 0) {
            view.value[g / 2] = places.value[g] + head;
            view.value_stride[g / 2] = layer.block_size;
        }
    }
    if (!source.has_whole_steps()) {
        clear_odd_half(source, places.groups);
        view_copied_values(source, view);
    }
    return view;
}

// The first `visible` positions of the chunk as plain decoding of a tree row's path would find them: `context` of them
// through the block table, then the row's ancestors, node i at logical slot root + i.
static TileView assemble_tiles(const TileSource& source, int head, int row, int start, int visible, int context) {
    const KvLayer& layer = source.args.layer;
    const int head_dim = layer.head_dim;
    const size_t stride = static_cast<size_t>(layer.block_size), key_bytes = sizeof(uint16_t) * head_dim;
    TileView view;
    view.groups = (visible + kLanes - 1) / kLanes;
    for (int g = 0; g < view.groups; ++g) {
        const int first = start + g * kLanes;
        uint16_t* keys = source.keys + static_cast<size_t>(g) * kLanes * head_dim;
        uint16_t* values = source.half_step(g);
        const int behind = context - first, in_context = behind < 0 ? 0 : behind < kLanes ? behind : kLanes;
        const int slot = in_context > 0 ? slot_of(source.args, source.task, first) : 0;
        __builtin_memcpy(keys, tiled_key(layer, head, slot), in_context * key_bytes);
        copy_values(tiled_value(layer, head, slot), stride, in_context, head_dim, values);
        for (int lane = in_context; lane < kLanes && first + lane < start + visible; ++lane) {
            uint64_t path = source.args.ancestors[row] & ~uint64_t{1};  // without the root; bits ascend with depth
            for (int skip = first + lane - context; skip > 0; --skip)
                path &= path - 1;
            const int node = slot_of(source.args, source.task, source.task.sequence.tree_root + __builtin_ctzll(path));
            __builtin_memcpy(keys + lane * head_dim, tiled_key(layer, head, node), key_bytes);
            const uint16_t* value = tiled_value(layer, head, node);
            for (int d = 0; d < head_dim; ++d)
                values[d * kStepPositions + lane] = value[d * stride];
        }
        view.key[g] = keys;
    }
    clear_odd_half(source, view.groups);
    view_copied_values(source, view);
    return view;
}

// Whether some value of a view is infinite or NaN.
static bool has_wild_values(const TileView& view, int head_dim) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 wild = 0;
    for (int step = 0; step < view.steps(); ++step) {
        for (int d = 0; d < head_dim; ++d) {
            const __m512i bits = _mm512_loadu_si512(view.value[step] + d * view.value_stride[step]);
            wild |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(bits, exponent), exponent);
        }
    }
    return wild != 0;
}

// Fetches the cache lines of the next chunk, of all heads of a task in the order of addresses, a few at a time while
// this chunk is worked on. To the level 2 cache: for 16 rows that took a tenth less than to level 1, and as much less
// than fetching in bursts; docs/adr/0010 has the numbers.
class Prefetcher {
  public:
    // `shares`: calls of fetch_share() that together fetch everything.
    void plan(const TileSource& source, const TilePlaces& places, int shares) {
        count_ = next_ = lines_ = 0;
        const int per_block = source.args.layer.block_size / kLanes;
        for (int g = 0, offset = places.offset / kLanes; g < places.groups; offset = 0) {
            const int left = places.groups - g, in_block = per_block - offset,
                      groups = left < in_block ? left : in_block;
            if (groups == per_block) {
                const int lines = static_cast<int>(source.task.num_heads * places.head_elements * 2 / 64);
                add(places.key[g], 64, lines);
                add(places.value[g], 64, lines);
            } else {
                plan_part(source, places, g, groups);
            }
            g += groups;
        }
        share_ = (lines_ + shares - 1) / shares;
        start_run();
    }
    void fetch_share() {
        for (int i = 0; i < share_; ++i) {
            _mm_prefetch(at_, _MM_HINT_T1);
            at_ += stride_;
            if (--left_ == 0) start_run();
        }
    }

  private:
    struct Run {
        const char* at;
        size_t stride;
        int lines;
    };

    // Part of a block.
    void plan_part(const TileSource& source, const TilePlaces& places, int first, int groups) {
        const KvLayer& layer = source.args.layer;
        for (int number = 0; number < source.task.num_heads; ++number) {
            const size_t head = number * places.head_elements;
            add(places.key[first] + head, 64, groups * layer.head_dim * kLanes * 2 / 64);
            for (int g = first; g < first + groups; g += 2)
                add(places.value[g] + head, layer.block_size * sizeof(uint16_t), layer.head_dim);
        }
    }
    void add(const uint16_t* at, size_t stride, int lines) {
        runs_[count_++] = {reinterpret_cast<const char*>(at), stride, lines};
        lines_ += lines;
    }
    void start_run() {
        if (next_ == count_) {
            share_ = 0;
            left_ = 1;
            return;
        }
        at_ = runs_[next_].at;
        stride_ = runs_[next_].stride;
        left_ = runs_[next_++].lines;
    }

    Run runs_[kMaxTaskHeads * 2 * kGroupsPerChunk];
    int count_ = 0, next_ = 0, lines_ = 0, share_ = 0, left_ = 0;
    const char* at_ = nullptr;
    size_t stride_ = 0;
};
