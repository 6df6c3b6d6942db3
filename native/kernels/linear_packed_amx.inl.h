// Linear layers over packed weights on AMX tiles. A step of 32 inputs of 16 outputs is unpacked to scaled bfloat16, the
// first operand of TDPBF16PS; the second are the same inputs of up to 16 rows, a column each (round_columns.inl.h).
//
// An output is always one element of one accumulator that takes the steps in ascending order, whether it rests in
// memory between two ranges of steps or not, and columns do not touch each other. So all paths give the same bits.
//
// Few rows stream past the weights (linear_packed_amx_few.inl.h). More multiply a range of two panels, unpacked once,
// by one pair of blocks after the other.

constexpr int kRangeSteps = 8;                       // of two panels, unpacked for many rows: for the level 1 cache
constexpr size_t kResidentInputs = size_t{1} << 19;  // of inputs that stay in the level 2 cache
constexpr int kTotalTiles = static_cast<int>(kPackedScratchBytes / (kLanes * kLanes * sizeof(float)));

// Steps [first, first + steps) of one or two panels.
struct UnpackedRange {
    int first, steps;
    alignas(64) uint16_t weights[2][kRangeSteps][kRowTileWords];
};

// One or two panels, `distance` apart.
struct PanelPair {
    int first, distance;

    FORERUN_MEMBER const uint8_t* at(const PackedLinearArgs& args, int p) const {
        return args.panels + static_cast<size_t>(first + p * distance) * args.panel_bytes;
    }
};

template <TileFormat F>
static void unpack_range(const PackedLinearArgs& args, PanelPair pair, int panels, UnpackedRange& range) {
    PassScales scales;
    for (int p = 0; p < panels; ++p) {
        const uint8_t* const from = pair.at(args, p);
        begin_scales<F>(from, range.first, scales);
        const uint8_t* const end = step_tile<F>(from, range.first + range.steps);
        for (const uint8_t* line = step_tile<F>(from, range.first); line < end; line += 64)
            fetch_near(line);
        for (int i = 0; i < range.steps; ++i)
            unpack_step<F>(from, range.first + i, range.first + range.steps, scales, range.weights[p][i], [](int) {});
    }
    finish_stores(range.weights);
}

// Packed weights of the range that comes next, to the second-level cache: it has a whole pass over the rows to arrive.
template <TileFormat F>
FORERUN_INLINE void fetch_range(const PackedLinearArgs& args, PanelPair pair, int panels, int first) {
    for (int p = 0; p < panels; ++p) {
        const uint8_t* const from = pair.at(args, p);
        const uint8_t* const end = step_tile<F>(from, first + kRangeSteps);
        for (const uint8_t* line = step_tile<F>(from, first); line < end; line += 64)
            fetch_far(line);
    }
}

// One or two panels x one or two blocks of rows, totals [2 blocks][2 panels][16][16] which start with the first range.
template <int PANELS, int BLOCKS>
FORERUN_INLINE void multiply_range(const UnpackedRange& range, const uint16_t* x, size_t next_block, float* totals) {
    constexpr int kTotal = kLanes * kLanes;
    if (range.first == 0) {
        zero_tile<0>();
        if constexpr (PANELS == 2) zero_tile<1>();
        if constexpr (BLOCKS == 2) zero_tile<2>();
        if constexpr (PANELS == 2 && BLOCKS == 2) zero_tile<3>();
    } else {
        load_tile<0>(totals, 64);
        if constexpr (PANELS == 2) load_tile<1>(totals + kTotal, 64);
        if constexpr (BLOCKS == 2) load_tile<2>(totals + 2 * kTotal, 64);
        if constexpr (PANELS == 2 && BLOCKS == 2) load_tile<3>(totals + 3 * kTotal, 64);
    }
    for (int i = 0; i < range.steps; ++i, x += kRowTileWords) {
        load_tile<6>(x, 64);
        load_tile<4>(range.weights[0][i], 64);
        multiply_tiles<0, 4, 6>();
        if constexpr (PANELS == 2) {
            load_tile<5>(range.weights[1][i], 64);
            multiply_tiles<1, 5, 6>();
        }
        if constexpr (BLOCKS == 2) {
            load_tile<7>(x + next_block, 64);
            multiply_tiles<2, 4, 7>();
            if constexpr (PANELS == 2) multiply_tiles<3, 5, 7>();
        }
    }
    store_tile<0>(totals, 64);
    if constexpr (PANELS == 2) store_tile<1>(totals + kTotal, 64);
    if constexpr (BLOCKS == 2) store_tile<2>(totals + 2 * kTotal, 64);
    if constexpr (PANELS == 2 && BLOCKS == 2) store_tile<3>(totals + 3 * kTotal, 64);
}

constexpr size_t kPairFloats = size_t{4} * kLanes * kLanes;  // totals of two panels and two blocks

// All rows of one or two panels over steps [begin, end); `next` comes behind them. totals [blocks / 2][2][2][16][16]
// store(block, totals of the block [panels][16][16]) is called where the last step was among them.
template <TileFormat F, int PANELS, class Store>
FORERUN_INLINE void multiply_panels(const PackedLinearArgs& args, PanelPair pair, PanelPair next_pair, int begin,
                                    int end, float* totals, const Store& store) {
    const int blocks = (args.rows + kLanes - 1) / kLanes, steps = step_count<F>(args);
    const int ranges = (end - begin + kRangeSteps - 1) / kRangeSteps;
    const size_t next_block = kLanes * args.ldx;
    UnpackedRange range;
    for (int i = 0; i < ranges; ++i) {
        range.first = begin + (end - begin) * i / ranges;
        range.steps = begin + (end - begin) * (i + 1) / ranges - range.first;
        unpack_range<F>(args, pair, PANELS, range);
        const int next = range.first + range.steps;
        if (i + 1 < ranges) {
            fetch_range<F>(args, pair, PANELS, next);
        } else {
            fetch_range<F>(args, next_pair, PANELS, begin);
        }
        const uint16_t* x = args.x + static_cast<size_t>(range.first) * kRowTileWords;
        float* total = totals;
        for (int block = 0; block < blocks; block += 2, x += 2 * next_block, total += kPairFloats) {
            const int count = block + 1 < blocks ? 2 : 1;
            if (count == 2) {
                multiply_range<PANELS, 2>(range, x, next_block, total);
            } else {
                multiply_range<PANELS, 1>(range, x, next_block, total);
            }
            if (next < steps) continue;
            for (int b = 0; b < count; ++b)
                store(block + b, total + 2 * b * kLanes * kLanes);
        }
    }
}

// How many rows are taken: inputs that do not fit the level 2 cache in parts, each by a group of pairs of panels as
// large as there is room for totals.
struct ManyRows {
    int steps, parts, group;
    size_t pair_floats;  // totals of a pair

    ManyRows(const PackedLinearArgs& args, int all_steps) : steps(all_steps) {
        const int pairs = (args.rows + 2 * kLanes - 1) / (2 * kLanes);  // of blocks
        const size_t step_bytes = size_t{4} * kLanes * kTileDepth * static_cast<size_t>(pairs);
        const int fitting = static_cast<int>(kResidentInputs / step_bytes) + 1;
        parts = (steps + fitting - 1) / fitting;
        group = kTotalTiles / (4 * pairs);
        pair_floats = kPairFloats * static_cast<size_t>(pairs);
    }
    FORERUN_MEMBER int part_begin(int part) const { return steps * part / parts; }
};

template <TileFormat F>
static void multiply_many_rows(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    const ManyRows plan(args, step_count<F>(args));
    for (int first = panel_begin; first < panel_end; first += 2 * plan.group) {
        const int last = first + 2 * plan.group < panel_end ? first + 2 * plan.group : panel_end;
        for (int part = 0; part < plan.parts; ++part) {
            float* totals = reinterpret_cast<float*>(scratch);
            for (int panel = first; panel < last; panel += 2, totals += plan.parts > 1 ? plan.pair_floats : 0) {
                const auto store = [&](int block, const float* total) {
                    for (int p = 0; p < 2 && panel + p < last; ++p)
                        store_outputs(args, total + p * kLanes * kLanes, kLanes, block, panel + p);
                };
                const PanelPair pair{panel, 1}, next{panel + 2, 1};
                const int begin = plan.part_begin(part), end = plan.part_begin(part + 1);
                if (panel + 1 < last) {
                    multiply_panels<F, 2>(args, pair, next, begin, end, totals, store);
                } else {
                    multiply_panels<F, 1>(args, pair, next, begin, end, totals, store);
                }
            }
        }
    }
}

// Panels of gates [panel_begin, panel_end), both even, each with what it gates. Of two neighbours the first leaves its
// totals to the second, which has the other half of a step of the next layer's inputs.
template <TileFormat F>
static void multiply_many_gated(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    const ManyRows plan(args, step_count<F>(args));
    const int half = args.columns / kLanes / 2, group = plan.group / 2 * 2;
    for (int first = panel_begin; first < panel_end; first += group) {
        const int last = first + group < panel_end ? first + group : panel_end;
        for (int part = 0; part < plan.parts; ++part) {
            for (int panel = first; panel < last; ++panel) {
                const int place = plan.parts > 1 ? panel - first : panel % 2;
                float* const totals = reinterpret_cast<float*>(scratch) + plan.pair_floats * static_cast<size_t>(place);
                const auto store = [&](int block, const float* total) {
                    if (panel % 2 == 0) return;
                    const float* const before = total - plan.pair_floats;
                    constexpr int kUp = kLanes * kLanes;
                    store_gated(args, {before, total, before + kUp, total + kUp}, kLanes, block, panel / 2);
                };
                multiply_panels<F, 2>(args, {panel, half}, {panel + 1, half}, plan.part_begin(part),
                                      plan.part_begin(part + 1), totals, store);
            }
        }
    }
}

template <TileFormat F, int BLOCKS>
static void multiply_few(const PackedLinearArgs& args, int panel_begin, int panel_end) {
    if (args.gated) return multiply_few_gated<F, BLOCKS>(args, panel_begin, panel_end);
    multiply_few_rows<F, BLOCKS>(args, panel_begin, panel_end);
}

template <TileFormat F>
static void multiply_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    switch ((args.rows + kLanes - 1) / kLanes) {
        case 1:
            return multiply_few<F, 1>(args, panel_begin, panel_end);
        case 2:
            return multiply_few<F, 2>(args, panel_begin, panel_end);
        case 3:
            return multiply_few<F, 3>(args, panel_begin, panel_end);
        case 4:
            return multiply_few<F, 4>(args, panel_begin, panel_end);
    }
    configure_packed(kLanes);
    // Totals of the panels that are stored together must fit; more rows come in several passes.
    const int most_rows = kTotalTiles / (args.gated ? 4 : 2) * kLanes;
    for (int row = 0; row < args.rows; row += most_rows) {
        PackedLinearArgs some = args;
        some.rows = args.rows - row < most_rows ? args.rows - row : most_rows;
        some.x += static_cast<size_t>(row) * args.ldx;
        if (args.gated) {
            some.gated += static_cast<size_t>(row) * args.gated_ld;
            multiply_many_gated<F>(some, panel_begin, panel_end, scratch);
        } else {
            some.out += static_cast<size_t>(row) * args.ldo;
            multiply_many_rows<F>(some, panel_begin, panel_end, scratch);
        }
    }
}

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    with_format(args.format, [&]<TileFormat F> { multiply_packed<F>(args, panel_begin, panel_end, scratch); });
    _tile_release();
    _mm_sfence();  // streamed outputs are there before the task counts as done
}
