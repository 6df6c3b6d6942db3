// Linear layers over packed weights: codes times inputs of 16 bits, whole numbers that add up exactly in any order.
// Each sum of a tile is scaled in float32 while it is added up:
//
//   total = 0
//   for each group of 256 inputs in ascending order
//     part = 0
//     for each tile in ascending order
//       part = fma(sum of (code - zero code) * input, d, part), then fma(sum of inputs, m, part) if there is a minimum
//     total = fma(part, scale of the row's inputs in the group, total)
//
// An output is one lane of one total, and the order is the same on all paths, hence the bits.
//
// Codes are unpacked in registers for a block of rows and panels, as many as the registers hold, and again for the next
// block. The first block prefetches, and always one stream, which memory delivers faster than several: where a block
// has two panels, the next pair in the order in which it lies in memory, else what lies 2 KB ahead.

constexpr size_t kPanelAhead = 2048;  // bytes between the tile in use and the one prefetched, of a single panel
constexpr size_t kStreamedOutputs = size_t{1} << 21;  // that no cache would keep, such as logits of many rows

template <TileFormat F>
constexpr int kGroupTiles = kQuantisedInputs / tile_shape(F).inputs;

template <class Each>
FORERUN_INLINE void clear(Each& values) {
    for (auto& value : values)
        value = zero();
}

// Rows of a block, from `x` on.
struct InputRows {
    const uint16_t* x;
    size_t ldx;
    const InputFacts* facts;
    size_t ldf;

    FORERUN_MEMBER const InputFacts& facts_of(int row, int inputs) const {
        return facts[static_cast<size_t>(row) * ldf + static_cast<size_t>(inputs) / kTileDepth];
    }
};

// What the sum of a tile begins with: the zero code, taken off every input.
template <TileFormat F>
FORERUN_INLINE Words first_sum(const InputRows& rows, int row, int tile) {
    constexpr int kInputs = tile_shape(F).inputs, kZeroCode = tile_shape(F).zero_code;
    if constexpr (kZeroCode == 0) return same_words(0);
    const InputFacts& facts = rows.facts_of(row, tile * kInputs);
    const int32_t minus_sum = kInputs == kTileDepth ? facts.minus_first + facts.minus_last
                              : tile % 2 == 0       ? facts.minus_first
                                                    : facts.minus_last;
    return same_words(kZeroCode * minus_sum);
}

template <int PANELS, int ROWS>
struct MultiplyPairs {
    static constexpr int kChains = pair_chains(ROWS);
    Words (&sum)[PANELS][ROWS][kChains];
    const uint16_t* x[ROWS];

    template <int CHAIN>
    FORERUN_MEMBER void operator()(int p, int pair, Words codes) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            int32_t inputs;
            __builtin_memcpy(&inputs, x[r] + 2 * pair, sizeof inputs);
            Words& to = sum[p][r][CHAIN % kChains];
            to = add_products(to, codes, inputs);
        }
    }
};

// Adds a tile of PANELS panels to part [PANELS][ROWS].
template <TileFormat F, int ROWS, int PANELS>
FORERUN_INLINE void add_tile(const InputRows& rows, const uint8_t* panels, size_t panel_bytes, int tile,
                             Vec (&part)[PANELS][ROWS]) {
    static constexpr TileShape kShape = tile_shape(F);
    constexpr int kChains = pair_chains(ROWS);
    const uint8_t* const at = panels + tile_offset(kShape, tile);
    Words sum[PANELS][ROWS][kChains];
    MultiplyPairs<PANELS, ROWS> multiply{sum, {}};
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            FORERUN_UNROLL
            for (int c = 0; c < kChains; ++c)
                sum[p][r][c] = c == 0 ? first_sum<F>(rows, r, tile) : same_words(0);
        }
        multiply.x[r] = rows.x + static_cast<size_t>(r) * rows.ldx + static_cast<size_t>(tile) * kShape.inputs;
        // Or the compiler keeps an address for every pair of every row, most of them in memory.
        __asm__("" : "+r"(multiply.x[r]));
    }
    take_codes<code_bits(F), PANELS>(at + kShape.scale_bytes, panel_bytes, multiply);
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        const uint8_t* const header = panels + p * panel_bytes + header_offset(kShape, tile);
        const LaneScales scales = lane_scales<F, 0>(header, at + p * panel_bytes);
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            FORERUN_UNROLL
            for (int c = 1; c < kChains; ++c)
                sum[p][r][0] = sum[p][r][0] + sum[p][r][c];
            part[p][r] = fma(to_float(sum[p][r][0]), scales.scale, part[p][r]);
            if constexpr (has_minimum(F)) {
                const Vec inputs = broadcast(rows.facts_of(r, tile * kShape.inputs).sum);
                part[p][r] = fma(inputs, scales.minimum, part[p][r]);
            }
        }
    }
}

FORERUN_INLINE bool streams_outputs(const PackedLinearArgs& args) {
    return static_cast<size_t>(args.rows) * static_cast<size_t>(args.columns) >= kStreamedOutputs;
}

// Streams, or the cache line would be read before it is written.
FORERUN_INLINE void store_output(float* to, Vec result, int lanes, bool streams) {
    if (streams && lanes >= kLanes && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
        stream(to, result);
    } else {
        store_first(to, result, lanes);
    }
}

// Rows [row, row + ROWS) and PANELS panels from `panel` on.
template <TileFormat F, int ROWS, int PANELS>
static void multiply_packed(const PackedLinearArgs& args, int row, int panel) {
    static constexpr TileShape kShape = tile_shape(F);
    constexpr size_t kTileShare = PANELS * (group_bytes(kShape) / kShape.group_tiles);  // with its part of a header
    const uint8_t* const panels = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    const uint8_t* next = panels + (kPairPanels == 1 ? kPanelAhead : PANELS * args.panel_bytes);
    const size_t first = static_cast<size_t>(row), ldf = args.sum_floats / (kLanes * kFactsPerTile);
    const InputRows rows = {args.x + first * args.ldx, args.ldx,
                            reinterpret_cast<const InputFacts*>(args.sums) + first * ldf, ldf};
    Vec total[PANELS][ROWS];
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p)
        clear(total[p]);
    for (int group = 0; group < args.k_tiles; group += kGroupTiles<F>) {
        const int end = group + kGroupTiles<F> < args.k_tiles ? group + kGroupTiles<F> : args.k_tiles;
        Vec part[PANELS][ROWS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            clear(part[p]);
        for (int tile = group; tile < end; ++tile, next += kTileShare) {
            if (row == 0) {
                FORERUN_UNROLL
                for (size_t line = 0; line < kTileShare; line += kLineBytes)
                    prefetch(next + line);
            }
            add_tile<F>(rows, panels, args.panel_bytes, tile, part);
        }
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Vec scale = broadcast(rows.facts_of(r, group * kShape.inputs).scale);
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                total[p][r] = fma(part[p][r], scale, total[p][r]);
        }
    }
    const bool streams = streams_outputs(args);
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        const int column = (panel + p) * kLanes, lanes = args.columns - column;
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Vec result = args.bias ? total[p][r] + load_first(args.bias + column, lanes) : total[p][r];
            store_output(args.out + (first + static_cast<size_t>(r)) * args.ldo + column, result, lanes, streams);
        }
    }
}

// `rows` rows, at most ROWS, of two panels or one.
template <TileFormat F, int ROWS>
static void multiply_block(const PackedLinearArgs& args, int row, int rows, int panel, int panels) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return multiply_block<F, ROWS - 1>(args, row, rows, panel, panels);
    }
    if (panels == kPairPanels) {
        multiply_packed<F, ROWS, kPairPanels>(args, row, panel);
    } else {
        multiply_packed<F, ROWS, 1>(args, row, panel);
    }
}

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char*) {
    with_format(args.format, [&]<TileFormat F> {
        for (int panel = panel_begin; panel < panel_end; panel += kPairPanels) {
            const int panels = panel_end - panel < kPairPanels ? panel_end - panel : kPairPanels;
            for (int row = 0; row < args.rows; row += kPairRows) {
                const int left = args.rows - row;
                multiply_block<F, kPairRows>(args, row, left < kPairRows ? left : kPairRows, panel, panels);
            }
        }
    });
    if (streams_outputs(args)) finish_streams();  // before other threads are told
}
