// Linear layers over packed weights on AMX tiles. A step of 32 inputs of 16 outputs is unpacked to scaled bfloat16, the
// first operand of TDPBF16PS; the second are the same inputs of up to 16 rows, a column each (round_columns.inl.h).
//
// An output is always one element of one accumulator that takes the steps in ascending order, whether it rests in
// memory between two ranges of steps or not, and columns do not touch each other. So all paths give the same bits.
//
// Up to 64 rows keep their accumulators and pass once over a panel, unpacking three steps ahead of the products, so
// that both overlap with the weights' way from memory. More rows multiply a range of two panels, unpacked once, by one
// pair of blocks after the other.

constexpr size_t kFarBytes = 8192, kNearBytes = 1024;  // ahead of the step in use: into the second and first level
constexpr int kRing = 4;                               // steps between unpacking and multiplying, and one

constexpr int kRangeSteps = 8;                       // of two panels, unpacked for many rows: for the level 1 cache
constexpr size_t kResidentInputs = size_t{1} << 19;  // of inputs that stay in the level 2 cache
constexpr int kTotalTiles = static_cast<int>(kPackedScratchBytes / (kLanes * kLanes * sizeof(float)));

// As the assembler sees them, so that they stay where they are: the compiler would put them side by side.
FORERUN_INLINE void fetch_far(const uint8_t* p) {
    __asm__ volatile("prefetcht1 %0" : : "m"(*p));
}
FORERUN_INLINE void fetch_near(const uint8_t* p) {
    __asm__ volatile("prefetcht0 %0" : : "m"(*p));
}

// Puts an array in memory: gcc's tile loads do not say that they read it.
template <class Array>
FORERUN_INLINE void finish_stores(const Array& array) {
    __asm__ volatile("" : : "m"(array));
}

template <TileFormat F>
FORERUN_INLINE int step_count(const PackedLinearArgs& args) {
    return args.k_tiles / kTilesPerStep<F>;
}

// Accumulators in tiles 0 to 3, weights in 4 and 5, `columns` rows in 6 and 7.
static void configure_packed(int columns) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, kLanes, tile == 4 || tile == 5 ? 64 : 4 * columns);
    config.load();
}

template <TileFormat F>
FORERUN_INLINE const uint8_t* step_tile(const uint8_t* panel, int step) {
    return panel + tile_offset(tile_shape(F), step * kTilesPerStep<F>);
}

// Scales of the step that is unpacked and of the one behind it, so that they are stored well before they are read.
struct PassScales {
    GroupScales group;
    RowScales steps[2];
};

template <TileFormat F>
FORERUN_INLINE void begin_group(const uint8_t* panel, int step, PassScales& scales) {
    store_group<F>(panel + header_offset(tile_shape(F), step * kTilesPerStep<F>), scales.group);
}

// Before the first step of a pass over a panel.
template <TileFormat F>
FORERUN_INLINE void begin_scales(const uint8_t* panel, int step, PassScales& scales) {
    begin_group<F>(panel, step, scales);
    store_scales<F>(scales.group, step_tile<F>(panel, step), scales.steps[step & 1]);
}

// A step of a pass, which takes those before `end`, to [16][32]; where panels stream past, what is needed soon on its
// way from memory.
template <TileFormat F, bool STREAMS>
FORERUN_INLINE void unpack_step(const uint8_t* panel, int step, int end, PassScales& scales, uint16_t* out) {
    constexpr TileShape kShape = tile_shape(F);
    constexpr int kGroupSteps = kShape.group_tiles / kTilesPerStep<F>;
    const uint8_t* const tile = step_tile<F>(panel, step);
    constexpr int kLines = static_cast<int>((kTilesPerStep<F> * kShape.tile_bytes + 63) / 64);
    const auto fetch = [&](int output) __attribute__((always_inline)) {
        const int line = (output * kLines + kLanes - 1) / kLanes;  // the first that is due at this output or later
        if (line * kLanes >= (output + 1) * kLines) return;
        if constexpr (STREAMS) fetch_far(tile + kFarBytes + 64 * line);
        if constexpr (STREAMS) fetch_near(tile + kNearBytes + 64 * line);
    };
    if (step + 1 < end) {
        if (kGroupSteps > 1 && (step + 1) % kGroupSteps == 0) begin_group<F>(panel, step + 1, scales);
        store_scales<F>(scales.group, step_tile<F>(panel, step + 1), scales.steps[(step + 1) & 1]);
    }
    unpack_rows<F>(tile, scales.steps[step & 1], out, fetch);
}

// An accumulator [16 outputs][columns] to the rows of `out`, with the bias.
static void store_outputs(const PackedLinearArgs& args, const float* total, int columns, int block, int panel) {
    const int column = panel * kLanes, lanes = args.columns - column, first = block * kLanes;
    const int rows = args.rows - first < kLanes ? args.rows - first : kLanes;
    const Vec bias = args.bias ? load_first(args.bias + column, lanes) : zero();
    float* const out = args.out + static_cast<size_t>(first) * args.ldo + column;
    // Streams, or every cache line would be read before it is written.
    const bool streams = streams_outputs(args);
    const auto store_row = [&](int row, Vec outputs) __attribute__((always_inline)) {
        float* const to = out + static_cast<size_t>(row) * args.ldo;
        const Vec result = args.bias ? outputs + bias : outputs;
        if (streams && lanes >= kLanes && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
            _mm512_stream_ps(to, result.v);
        } else {
            store_first(to, result, lanes);
        }
    };
    if (columns == 1) return store_row(0, load(total));
    if (columns == kLanes) {
        __m512i lines[kLanes];
        FORERUN_UNROLL
        for (int o = 0; o < kLanes; ++o)
            lines[o] = _mm512_load_si512(total + o * kLanes);
        transpose(lines);
        FORERUN_UNROLL
        for (int row = 0; row < kLanes; ++row)
            if (row < rows) store_row(row, {_mm512_castsi512_ps(lines[row])});
        return;
    }
    const __m512i places = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                              _mm512_set1_epi32(columns));
    for (int row = 0; row < rows; ++row)
        store_row(row, {_mm512_i32gather_ps(places, total + row, 4)});
}

// ---- up to 64 rows ----

// A step's products, with what is unpacked meanwhile between loads and products: a product whose operands are not there
// holds up what comes behind it.
//
// Even and odd steps use other tiles, so that one's loads do not wait for the other's products.
template <int BLOCKS, bool ODD, class Unpack>
FORERUN_INLINE void multiply_step(const uint16_t* weights, const uint16_t* x, size_t next_block, size_t bytes,
                                  const Unpack& unpack) {
    constexpr int kWeights = ODD ? 5 : 4, kFirst = BLOCKS == 1 && ODD ? 7 : 6;
    load_tile<kWeights>(weights, 64);
    load_tile<kFirst>(x, bytes);
    if constexpr (BLOCKS > 1) load_tile<7>(x + next_block, bytes);
    unpack();
    multiply_tiles<0, kWeights, kFirst>();
    if constexpr (BLOCKS > 1) multiply_tiles<1, kWeights, 7>();
    if constexpr (BLOCKS > 2) {
        load_tile<6>(x + 2 * next_block, bytes);
        multiply_tiles<2, kWeights, 6>();
    }
    if constexpr (BLOCKS > 3) {
        load_tile<7>(x + 3 * next_block, bytes);
        multiply_tiles<3, kWeights, 7>();
    }
}

template <TileFormat F, int BLOCKS>
static void multiply_panel(const PackedLinearArgs& args, int columns, int panel) {
    alignas(64) uint16_t ring[kRing][kRowTileWords];
    alignas(64) float total[BLOCKS][kLanes * kLanes];
    PassScales scales;
    const uint8_t* const weights = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    const int steps = step_count<F>(args);
    const size_t bytes = 4 * static_cast<size_t>(columns), next_block = kLanes * args.ldx;
    const size_t next_step = static_cast<size_t>(columns) * kTileDepth;
    const uint16_t* x = args.x;
    const auto unpack = [&](int step) __attribute__((always_inline)) {
        if (step < steps) unpack_step<F, true>(weights, step, steps, scales, ring[step & (kRing - 1)]);
    };
    zero_tile<0>();
    if constexpr (BLOCKS > 1) zero_tile<1>();
    if constexpr (BLOCKS > 2) zero_tile<2>();
    if constexpr (BLOCKS > 3) zero_tile<3>();
    begin_scales<F>(weights, 0, scales);
    for (int step = 0; step < kRing - 1; ++step)
        unpack(step);
    for (int step = 0; step < steps; step += 2, x += 2 * next_step) {
        finish_stores(ring);
        multiply_step<BLOCKS, false>(ring[step & (kRing - 1)], x, next_block, bytes,
                                     [&]() __attribute__((always_inline)) { unpack(step + kRing - 1); });
        if (step + 1 == steps) break;
        finish_stores(ring);
        multiply_step<BLOCKS, true>(ring[(step + 1) & (kRing - 1)], x + next_step, next_block, bytes,
                                    [&]() __attribute__((always_inline)) { unpack(step + kRing); });
    }
    store_tile<0>(total[0], bytes);
    if constexpr (BLOCKS > 1) store_tile<1>(total[1], bytes);
    if constexpr (BLOCKS > 2) store_tile<2>(total[2], bytes);
    if constexpr (BLOCKS > 3) store_tile<3>(total[3], bytes);
    for (int block = 0; block < BLOCKS; ++block)
        store_outputs(args, total[block], columns, block, panel);
}

template <TileFormat F, int BLOCKS>
static void multiply_few_rows(const PackedLinearArgs& args, int panel_begin, int panel_end) {
    const int columns = tile_columns(args.rows);
    configure_packed(columns);
    for (int panel = panel_begin; panel < panel_end; ++panel)
        multiply_panel<F, BLOCKS>(args, columns, panel);
}

// ---- more ----

// Steps [first, first + steps) of one or two panels.
struct UnpackedRange {
    int first, steps;
    alignas(64) uint16_t weights[2][kRangeSteps][kRowTileWords];
};

template <TileFormat F>
static void unpack_range(const PackedLinearArgs& args, int panel, int panels, UnpackedRange& range) {
    PassScales scales;
    for (int p = 0; p < panels; ++p) {
        const uint8_t* const from = args.panels + static_cast<size_t>(panel + p) * args.panel_bytes;
        begin_scales<F>(from, range.first, scales);
        const uint8_t* const end = step_tile<F>(from, range.first + range.steps);
        for (const uint8_t* line = step_tile<F>(from, range.first); line < end; line += 64)
            fetch_near(line);
        for (int i = 0; i < range.steps; ++i)
            unpack_step<F, false>(from, range.first + i, range.first + range.steps, scales, range.weights[p][i]);
    }
    finish_stores(range.weights);
}

// Packed weights of the range that comes next, to the second-level cache: it has a whole pass over the rows to arrive.
template <TileFormat F>
FORERUN_INLINE void fetch_range(const PackedLinearArgs& args, int panel, int panels, int first) {
    for (int p = 0; p < panels; ++p) {
        const uint8_t* const from = args.panels + static_cast<size_t>(panel + p) * args.panel_bytes;
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

// All rows of one or two panels over steps [begin, end). totals [blocks / 2][2][2][16][16]
template <TileFormat F, int PANELS>
static void multiply_panels(const PackedLinearArgs& args, int panel, int begin, int end, float* totals) {
    constexpr size_t kPair = size_t{4} * kLanes * kLanes;
    const int blocks = (args.rows + kLanes - 1) / kLanes, steps = step_count<F>(args);
    const int ranges = (end - begin + kRangeSteps - 1) / kRangeSteps;
    const size_t next_block = kLanes * args.ldx;
    UnpackedRange range;
    for (int i = 0; i < ranges; ++i) {
        range.first = begin + (end - begin) * i / ranges;
        range.steps = begin + (end - begin) * (i + 1) / ranges - range.first;
        unpack_range<F>(args, panel, PANELS, range);
        const int next = range.first + range.steps;
        if (i + 1 < ranges) {
            fetch_range<F>(args, panel, PANELS, next);
        } else {
            fetch_range<F>(args, panel + PANELS, PANELS, begin);
        }
        const uint16_t* x = args.x + static_cast<size_t>(range.first) * kRowTileWords;
        float* total = totals;
        for (int block = 0; block < blocks; block += 2, x += 2 * next_block, total += kPair) {
            const int count = block + 1 < blocks ? 2 : 1;
            if (count == 2) {
                multiply_range<PANELS, 2>(range, x, next_block, total);
            } else {
                multiply_range<PANELS, 1>(range, x, next_block, total);
            }
            if (next < steps) continue;
            for (int b = 0; b < count; ++b) {
                for (int p = 0; p < PANELS; ++p)
                    store_outputs(args, total + (2 * b + p) * kLanes * kLanes, kLanes, block + b, panel + p);
            }
        }
    }
}

// Inputs that do not fit the level 2 cache are taken in parts, each by as many panels as there is room for totals.
template <TileFormat F>
static void multiply_many_rows(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    configure_packed(kLanes);
    float* const totals = reinterpret_cast<float*>(scratch);
    const int pairs = (args.rows + 2 * kLanes - 1) / (2 * kLanes), steps = step_count<F>(args);
    const size_t step_bytes = size_t{4} * kLanes * kTileDepth * static_cast<size_t>(pairs);
    const int fitting = static_cast<int>(kResidentInputs / step_bytes) + 1;
    const int parts = (steps + fitting - 1) / fitting;
    const int group = kTotalTiles / (4 * pairs) * 2;  // panels
    for (int first = panel_begin; first < panel_end; first += group) {
        const int last = first + group < panel_end ? first + group : panel_end;
        for (int part = 0; part < parts; ++part) {
            const int begin = steps * part / parts, end = steps * (part + 1) / parts;
            float* total = totals;
            for (int panel = first; panel < last;
                 panel += 2, total += parts > 1 ? size_t{4} * kLanes * kLanes * static_cast<size_t>(pairs) : 0) {
                if (panel + 1 < last) {
                    multiply_panels<F, 2>(args, panel, begin, end, total);
                } else {
                    multiply_panels<F, 1>(args, panel, begin, end, total);
                }
            }
        }
    }
}

template <TileFormat F>
static void multiply_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    switch ((args.rows + kLanes - 1) / kLanes) {
        case 1:
            return multiply_few_rows<F, 1>(args, panel_begin, panel_end);
        case 2:
            return multiply_few_rows<F, 2>(args, panel_begin, panel_end);
        case 3:
            return multiply_few_rows<F, 3>(args, panel_begin, panel_end);
        case 4:
            return multiply_few_rows<F, 4>(args, panel_begin, panel_end);
    }
    // Totals of two panels must fit; more rows come in several passes.
    constexpr int kMostRows = kTotalTiles / 2 * kLanes;
    for (int row = 0; row < args.rows; row += kMostRows) {
        PackedLinearArgs some = args;
        some.rows = args.rows - row < kMostRows ? args.rows - row : kMostRows;
        some.x += static_cast<size_t>(row) * args.ldx;
        some.out += static_cast<size_t>(row) * args.ldo;
        multiply_many_rows<F>(some, panel_begin, panel_end, scratch);
    }
}

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    with_format(args.format, [&]<TileFormat F> { multiply_packed<F>(args, panel_begin, panel_end, scratch); });
    _tile_release();
    _mm_sfence();  // streamed outputs are there before the task counts as done
}
