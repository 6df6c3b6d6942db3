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
constexpr size_t kRangeBytes = size_t{384} << 10;  // of inputs that stay in the level 2 cache meanwhile
constexpr int kRangeRows = 16;                     // at least; weights pass by once for so many

template <TileFormat F>
constexpr int kGroupTiles = kQuantisedInputs / tile_shape(F).inputs;

template <class Each>
FORERUN_INLINE void clear(Each& values) {
    for (auto& value : values)
        value = zero();
}

// Tile TILE of the tiles that 32 inputs make: one, or two of 16 inputs.
template <TileFormat F, int TILE>
FORERUN_INLINE int32_t of_tile(int32_t all, int32_t first) {
    return tile_shape(F).inputs == kTileDepth ? all : TILE == 0 ? first : all - first;
}

// What the sum of a tile begins with: the zero code, taken off every input.
template <TileFormat F, int TILE>
FORERUN_INLINE int32_t first_sum(const InputSums& sums) {
    return tile_shape(F).zero_code * of_tile<F, TILE>(sums.minus_all, sums.minus_first);
}

// Sums of a tile of PANELS panels and ROWS rows, from codes as they are unpacked: each pair of codes times the same
// pair of inputs.
template <int PANELS, int ROWS>
struct MultiplyPairs {
    static constexpr int kChains = pair_chains(ROWS);
    const uint16_t* x[ROWS];
    Words sum[PANELS][ROWS][kChains];

    template <TileFormat F, int TILE>
    FORERUN_MEMBER void begin(int row, const InputSums& sums) {
        const Words first = same_words(first_sum<F, TILE>(sums));
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            FORERUN_UNROLL
            for (int c = 0; c < kChains; ++c)
                sum[p][row][c] = c == 0 ? first : same_words(0);
        }
    }
    template <int PAIR>
    FORERUN_MEMBER void operator()(const Words (&codes)[PANELS]) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Words inputs = same_pairs(x[r] + 2 * PAIR);
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p) {
                Words& to = sum[p][r][PAIR % kChains];
                to = add_products(to, codes[p], inputs);
            }
        }
    }
    FORERUN_MEMBER Words result(int p, int row) const {
        Words all = sum[p][row][0];
        FORERUN_UNROLL
        for (int c = 1; c < kChains; ++c)
            all = all + sum[p][row][c];
        return all;
    }
};

// The same with fewer products and more additions, which other ports of the processor do (Winograd 1968). For pairs of
// inputs a, b and their codes v, w, in whole numbers that may wrap around:
//
//   a v + b w = (a + w) (b + v) - a b - v w
//
// a b is the same for all outputs and comes with the inputs, v w for all rows. Every other two pairs are multiplied so,
// the rest as above: then products and additions take about the same time.
template <int PANELS, int ROWS>
struct MultiplySums {
    const uint16_t* x[ROWS];
    Words sum[PANELS][ROWS], of_codes[PANELS], even[PANELS];

    template <TileFormat F, int TILE>
    FORERUN_MEMBER void begin(int row, const InputSums& sums) {
        const uint32_t minus_products = of_tile<F, TILE>(sums.minus_products, sums.minus_first_products);
        const uint32_t whole = first_sum<F, TILE>(sums) + minus_products;  // unsigned: it may wrap around
        const Words first = same_words(static_cast<int32_t>(whole));
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            sum[p][row] = first;
            of_codes[p] = same_words(0);
        }
    }
    template <int PAIR>
    FORERUN_MEMBER void operator()(const Words (&codes)[PANELS]) {
        if constexpr (PAIR % 4 < 2) {
            add_pair<PAIR>(codes);
        } else {
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p) {
                if (PAIR % 2 == 0) {
                    even[p] = codes[p];
                } else {
                    of_codes[p] = add_products(of_codes[p], even[p], codes[p]);
                }
            }
            if constexpr (PAIR % 2 == 1) add_two_pairs<PAIR>(codes);
        }
    }
    FORERUN_MEMBER Words result(int p, int row) const { return sum[p][row] - of_codes[p]; }

  private:
    template <int PAIR>
    FORERUN_MEMBER void add_pair(const Words (&codes)[PANELS]) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Words inputs = same_pairs(x[r] + 2 * PAIR);
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                sum[p][r] = add_products(sum[p][r], codes[p], inputs);
        }
    }
    template <int PAIR>
    FORERUN_MEMBER void add_two_pairs(const Words (&codes)[PANELS]) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Words a = same_pairs(x[r] + 2 * (PAIR - 1)), b = same_pairs(x[r] + 2 * PAIR);
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                sum[p][r] = add_products(sum[p][r], add_members(a, codes[p]), add_members(b, even[p]));
        }
    }
};

template <int PANELS, int ROWS, bool SUMS>
struct Multiply : MultiplyPairs<PANELS, ROWS> {};
template <int PANELS, int ROWS>
struct Multiply<PANELS, ROWS, true> : MultiplySums<PANELS, ROWS> {};

// Adds a tile of PANELS panels to part [PANELS][ROWS]. inputs  of the first row, `ldx` elements before the next
template <TileFormat F, int TILE, int ROWS, int PANELS>
FORERUN_INLINE void add_tile(const TileInputs* inputs, size_t ldx, const LaneScales (&group)[PANELS],
                             const uint8_t* tile, size_t panel_bytes, Vec (&part)[PANELS][ROWS]) {
    const TileInputs* at[ROWS];
    Multiply<PANELS, ROWS, (ROWS >= kSumRows && code_bits(F) == 4)> multiply;
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        at[r] = reinterpret_cast<const TileInputs*>(inputs->values + static_cast<size_t>(r) * ldx);
        // Or the compiler keeps an address for every pair of every row, most of them in memory.
        __asm__("" : "+r"(at[r]));
        multiply.x[r] = at[r]->values + TILE * tile_shape(F).inputs;
        multiply.template begin<F, TILE>(r, at[r]->sums);
    }
    take_codes<code_bits(F), PANELS>(tile + tile_shape(F).scale_bytes, panel_bytes, multiply);
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        const LaneScales scales = lane_scales<F, 0>(group[p], tile + p * panel_bytes);
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            part[p][r] = fma(to_float(multiply.result(p, r)), scales.scale, part[p][r]);
            if constexpr (has_minimum(F)) part[p][r] = fma(broadcast(at[r]->sum), scales.minimum, part[p][r]);
        }
    }
}

// Streams, or the cache line would be read before it is written.
FORERUN_INLINE void store_output(float* to, Vec result, int lanes, bool streams) {
    if (streams && lanes >= kLanes && reinterpret_cast<uintptr_t>(to) % 64 == 0) {
        stream(to, result);
    } else {
        store_first(to, result, lanes);
    }
}

// Rows [row, row + ROWS) and PANELS panels from `panel` on. fetches  the weights behind them
template <TileFormat F, int ROWS, int PANELS>
static void multiply_packed(const PackedLinearArgs& args, int row, int panel, bool fetches) {
    static constexpr TileShape kShape = tile_shape(F);
    constexpr int kTiles = kTileDepth / kShape.inputs;                                  // that share a TileInputs
    constexpr size_t kTileShare = PANELS * (group_bytes(kShape) / kShape.group_tiles);  // with its part of a header
    const uint8_t* const panels = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    const uint8_t* next = panels + (kPairPanels == 1 ? kPanelAhead : PANELS * args.panel_bytes);
    const size_t first = static_cast<size_t>(row);
    const TileInputs* inputs = reinterpret_cast<const TileInputs*>(args.x + first * args.ldx);
    Vec total[PANELS][ROWS];
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p)
        clear(total[p]);
    for (int group = 0; group < args.k_tiles; group += kGroupTiles<F>) {
        const int end = group + kGroupTiles<F> < args.k_tiles ? group + kGroupTiles<F> : args.k_tiles;
        Vec part[PANELS][ROWS];
        LaneScales scales[PANELS];
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            clear(part[p]);
            scales[p] = group_scales<F>(panels + p * args.panel_bytes + header_offset(kShape, group));
        }
        for (int tile = group; tile < end; tile += kTiles, ++inputs) {
            if (fetches) {
                FORERUN_UNROLL
                for (size_t line = 0; line < kTiles * kTileShare; line += kLineBytes)
                    prefetch(next + line);
                next += kTiles * kTileShare;
            }
            const uint8_t* const at = panels + tile_offset(kShape, tile);
            add_tile<F, 0>(inputs, args.ldx, scales, at, args.panel_bytes, part);
            if constexpr (kTiles == 2)
                add_tile<F, 1>(inputs, args.ldx, scales, at + kShape.tile_bytes, args.panel_bytes, part);
        }
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Vec scale = broadcast(
                reinterpret_cast<const TileInputs*>((inputs - 1)->values + static_cast<size_t>(r) * args.ldx)->scale);
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
static void multiply_block(const PackedLinearArgs& args, int row, int rows, int panel, int panels, bool fetches) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return multiply_block<F, ROWS - 1>(args, row, rows, panel, panels, fetches);
    }
    if (panels == kPairPanels) {
        multiply_packed<F, ROWS, kPairPanels>(args, row, panel, fetches);
    } else {
        multiply_packed<F, ROWS, 1>(args, row, panel, fetches);
    }
}

// Rows [begin, end).
template <TileFormat F>
static void multiply_range(const PackedLinearArgs& args, int begin, int end, int panel_begin, int panel_end) {
    for (int panel = panel_begin; panel < panel_end; panel += kPairPanels) {
        const int panels = panel_end - panel < kPairPanels ? panel_end - panel : kPairPanels;
        for (int row = begin; row < end; row += kPairRows) {
            const int rows = end - row < kPairRows ? end - row : kPairRows;
            multiply_block<F, kPairRows>(args, row, rows, panel, panels, row == begin);
        }
    }
}

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char*) {
    const int cached = static_cast<int>(kRangeBytes / (args.ldx * sizeof *args.x)) / kRangeRows * kRangeRows;
    const int range = cached < kRangeRows ? kRangeRows : cached;
    with_format(args.format, [&]<TileFormat F> {
        for (int row = 0; row < args.rows; row += range) {
            const int end = args.rows - row < range ? args.rows : row + range;
            multiply_range<F>(args, row, end, panel_begin, panel_end);
        }
    });
    if (streams_outputs(args)) finish_streams();  // before other threads are told
}
