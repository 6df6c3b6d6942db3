// Linear layers over packed weights on vectors. A tile's 16 outputs are the lanes; its codes are multiplied as they
// are, and each product of a tile is scaled in float32 while it is added up:
//
//   product = 0;  for each input k in ascending order:  product = fma(code[k], x[k], product)
//   total = 0;  for each tile in ascending order:  total = fma(product, d, total), then fma(sum of inputs, m, total)
//
// where the second term is there if the format has a minimum or a zero code. An output is one lane of one total, and
// the order is the same on all paths, hence the bits.
//
// Codes are unpacked in registers, for as many rows as those hold. More rows take it again, block after block: codes in
// memory would be unpacked once, but what that saves their loads cost (lab log, 2026-11-29).
//
// Inputs are laid out as float32 for a range of tiles that fits the level 1 cache; totals wait in memory while the
// panels of a task pass that range.

// A row's inputs of a tile and four floats more: rows at distances of whole lines would meet in one bank of the cache.
template <TileFormat F>
constexpr int kInputStride = tile_shape(F).inputs + 4;

constexpr size_t kPackedAhead = 2048;              // bytes between the tile in use and the one prefetched
constexpr int kRangeInputs = 6144;                 // of all rows that a range of tiles holds
constexpr int kRangeSums = kRangeInputs / kLanes;  // of tiles of 16 inputs
constexpr int kWaitingTotals = 512;                // vectors

struct PackedScratch {
    alignas(64) float inputs[kRangeInputs];  // [tile][row][input]
    float sums[kRangeSums];                  // [tile][row]
    float totals[kWaitingTotals][kLanes];    // [panel][row][output]
};
static_assert(sizeof(PackedScratch) <= kPackedScratchBytes);

// Tiles [first, first + tiles) of all panels.
struct TileRange {
    int first, tiles;
    bool begins, ends;  // a total
};

// The i-th of `count` ranges of nearly equal size.
FORERUN_INLINE TileRange tile_range(const PackedLinearArgs& args, int i, int count) {
    const int first = args.k_tiles * i / count;
    return {first, args.k_tiles * (i + 1) / count - first, i == 0, i + 1 == count};
}

template <TileFormat F>
constexpr int kZeroCode = tile_shape(F).zero_code;
template <TileFormat F>
constexpr bool kAddsSums = has_minimum(F) || kZeroCode<F> != 0;

// Rows [row, row + rows) of the arguments, at most ROWS of a kernel; rows that are missing are zero.
struct RowBlock {
    int row, rows;
};

// Inputs of a block to x [tile][ROWS][inputs of a tile] and sums [tile][ROWS].
template <TileFormat F, int ROWS>
static void lay_out_inputs(const PackedLinearArgs& args, const TileRange& range, const RowBlock& block,
                           PackedScratch& to) {
    constexpr int kInputs = tile_shape(F).inputs;
    const float* const scales = kInputScales<code_bits(F)>.values;
    for (int r = 0; r < ROWS; ++r) {
        const bool is_there = r < block.rows;
        const int row = is_there ? block.row + r : 0;
        const uint16_t* from =
            args.x + static_cast<size_t>(row) * args.ldx + static_cast<size_t>(range.first) * kInputs;
        float* x = to.inputs + r * kInputStride<F>;
        for (int tile = 0; tile < range.tiles; ++tile, from += kInputs, x += ROWS * kInputStride<F>) {
            FORERUN_UNROLL
            for (int k = 0; k < kInputs; k += kLanes)
                store(x + k, is_there ? load(from + k) * load(scales + k) : zero());
        }
        if constexpr (kAddsSums<F>) {
            const float* const sums = args.sums + static_cast<size_t>(row / kLanes) * args.sum_floats + row % kLanes;
            for (int tile = 0; tile < range.tiles; ++tile)
                to.sums[tile * ROWS + r] = is_there ? *tile_sums<F>(sums, range.first + tile) : 0.0f;
        }
    }
}

template <int PANELS, int ROWS>
FORERUN_INLINE void clear(Vec (&values)[PANELS][ROWS]) {
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r)
            values[p][r] = zero();
    }
}

template <int ROWS>
FORERUN_INLINE void load_totals(Vec (&total)[ROWS], const float (*from)[kLanes]) {
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        total[r] = load(from[r]);
}
template <int ROWS>
FORERUN_INLINE void store_totals(const Vec (&total)[ROWS], float (*to)[kLanes]) {
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        store(to[r], total[r]);
}

// Totals of a block's rows to `out`, with the bias.
template <int ROWS>
FORERUN_INLINE void write_totals(const PackedLinearArgs& args, const Vec (&total)[ROWS], const RowBlock& block,
                                 int panel) {
    const int column = panel * kLanes, lanes = args.columns - column;
    const Vec bias = args.bias ? load_first(args.bias + column, lanes) : zero();
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        if (r < block.rows)
            store_first(args.out + static_cast<size_t>(block.row + r) * args.ldo + column,
                        args.bias ? total[r] + bias : total[r], lanes);
    }
}

template <int PANELS, int ROWS, int STRIDE>
struct MultiplyCodes {
    Vec (&product)[PANELS][ROWS];
    const float* x;
    FORERUN_MEMBER void operator()(int p, int k, Vec code) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r)
            product[p][r] = fma(code, broadcast(x[r * STRIDE + k]), product[p][r]);
    }
};

template <bool ADDS_SUMS, int ROWS>
FORERUN_INLINE void add_products(Vec (&total)[ROWS], const Vec (&product)[ROWS], LaneScales scales, const float* sums) {
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        total[r] = fma(product[r], scales.scale, total[r]);
        if constexpr (ADDS_SUMS) total[r] = fma(broadcast(sums[r]), scales.minimum, total[r]);
    }
}

// PANELS panels from `panel` on; totals [PANELS][ROWS].
template <TileFormat F, int ROWS, int PANELS>
static void multiply_packed(const PackedLinearArgs& args, const TileRange& range, const RowBlock& block, int panel,
                            const PackedScratch& inputs, float (*totals)[kLanes]) {
    static constexpr TileShape kShape = tile_shape(F);
    constexpr int kAheadTiles = static_cast<int>(kPackedAhead / kShape.tile_bytes);
    const uint8_t* const panels = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    const int end = range.first + range.tiles;
    // From the end of the range to its beginning in the panels that come next.
    const size_t jump = PANELS * args.panel_bytes - (tile_offset(kShape, end) - tile_offset(kShape, range.first));
    const float* x = inputs.inputs;
    const float* sums = inputs.sums;
    Vec total[PANELS][ROWS];
    clear(total);
    if (!range.begins) {
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            load_totals(total[p], totals + p * ROWS);
    }
    for (int tile = range.first; tile < end; ++tile, x += ROWS * kInputStride<F>, sums += ROWS) {
        const uint8_t* const at = panels + tile_offset(kShape, tile);
        const uint8_t* const ahead = at + kPackedAhead + (tile + kAheadTiles < end ? 0 : jump);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            FORERUN_UNROLL
            for (size_t line = 0; line < kShape.tile_bytes; line += 64)
                prefetch(ahead + p * args.panel_bytes + line);
        }
        Vec product[PANELS][ROWS];
        clear(product);
        MultiplyCodes<PANELS, ROWS, kInputStride<F>> multiply{product, x};
        take_codes<code_bits(F), PANELS>(at + kShape.scale_bytes, args.panel_bytes, multiply);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p)
            add_products<kAddsSums<F>>(
                total[p], product[p],
                lane_scales<F, kZeroCode<F>>(panels + p * args.panel_bytes + header_offset(kShape, tile),
                                             at + p * args.panel_bytes),
                sums);
    }
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        if (range.ends) {
            write_totals(args, total[p], block, panel + p);
        } else {
            store_totals(total[p], totals + p * ROWS);
        }
    }
}

// The next smaller block of rows that has a kernel; blocks in between take one with rows that are zero.
constexpr int smaller_block(int rows) {
    return rows > 8 ? 8 : rows > 6 ? 6 : rows > 4 ? 4 : rows - 1;
}

template <TileFormat F, int ROWS>
static void multiply_block(const PackedLinearArgs& args, const RowBlock& block, int panel_begin, int panel_end,
                           PackedScratch& scratch) {
    if constexpr (ROWS > 1) {
        if (block.rows <= smaller_block(ROWS))
            return multiply_block<F, smaller_block(ROWS)>(args, block, panel_begin, panel_end, scratch);
    }
    constexpr int kPanels = 4 * ROWS <= kMaxBlockRows ? 2 : 1;  // the chains of few rows leave time for others
    constexpr int kMostTiles = kRangeInputs / ROWS / kInputStride<F>;
    const int ranges = (args.k_tiles + kMostTiles - 1) / kMostTiles;
    const int most_panels = ranges == 1 ? panel_end - panel_begin : kWaitingTotals / ROWS;
    for (int first = panel_begin; first < panel_end; first += most_panels) {
        const int end = first + most_panels < panel_end ? first + most_panels : panel_end;
        for (int i = 0; i < ranges; ++i) {
            const TileRange range = tile_range(args, i, ranges);
            lay_out_inputs<F, ROWS>(args, range, block, scratch);
            int panel = first;
            float (*totals)[kLanes] = scratch.totals;
            for (; panel + kPanels <= end; panel += kPanels, totals += kPanels * ROWS)
                multiply_packed<F, ROWS, kPanels>(args, range, block, panel, scratch, totals);
            if (panel < end) multiply_packed<F, ROWS, 1>(args, range, block, panel, scratch, totals);
        }
    }
}

// Blocks as large as can be, and what is left: a row costs least in a full one.
static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* memory) {
    PackedScratch& scratch = *reinterpret_cast<PackedScratch*>(memory);
    with_format(args.format, [&]<TileFormat F> {
        for (int row = 0; row < args.rows; row += kMaxBlockRows) {
            const RowBlock block = {row, kMaxBlockRows < args.rows - row ? kMaxBlockRows : args.rows - row};
            multiply_block<F, kMaxBlockRows>(args, block, panel_begin, panel_end, scratch);
        }
    });
}
