// Linear layers on vectors: the loops, for every way of multiplying (`Dot`, see below).
//
// A panel's 16 columns are the lanes of a vector. A block of ROWS x PANELS sums lives in registers while it takes a
// range of inputs: each weight is loaded once for all rows, each input is broadcast to all lanes.
//
// An output is always one lane of one sum that takes its inputs in ascending order, so the shape of the block changes
// no bit, nor does a sum's rest in `out` between two ranges. Few rows are bound by the weights' way from memory: the
// first block of rows prefetches them, in up to four panels side by side, so that there are enough independent sums to
// hide the latency of an addition. Many rows are bound by arithmetic, in blocks as large as the registers hold.
//
// A Dot has
//   Input                                what an input is kept as, kPerPair of them for a pair of inputs
//   prepare(x, count, to)                turns bfloat16 inputs, whole tiles of them, into those
//   add<ROWS, PANELS, STRIDE>(total, pair, panel_elements, x)
//                                        total[p][r] += the inputs of row r at x + r * STRIDE times the pair of weights
//                                        of panel p at pair + p * panel_elements

constexpr int kAccumulators = kVectors / 4 * 3;  // the rest is for weights and inputs
constexpr int kMaxBlockRows = kAccumulators < 12 ? kAccumulators : 12;
constexpr int kBlockInputs = 16384;  // of all rows of a block, prepared; they stay in the level 2 cache
constexpr int kPrefetchTiles = 6;    // ahead of the tile in use, per panel

constexpr int max_block_inputs(int rows) {
    return kBlockInputs / rows / kTileDepth * kTileDepth;
}

constexpr int max_block_panels(int rows) {
    return 4 * rows <= kAccumulators ? 4 : 2 * rows <= kAccumulators ? 2 : 1;
}

// One block of rows over one range of inputs and some panels.
struct LinearBlock {
    const LinearArgs& args;
    int row, rows;
    int first_tile, tiles;
    int panel_begin, panel_end;
};

template <class Dot, int ROWS, int STRIDE, int PANELS>
static void multiply(const LinearBlock& block, int panel, const typename Dot::Input* x) {
    const LinearArgs& args = block.args;
    const size_t panel_elements = static_cast<size_t>(args.k_tiles) * kTileElements;
    const uint16_t* weights =
        args.panels + panel * panel_elements + static_cast<size_t>(block.first_tile) * kTileElements;
    const int column = panel * kLanes, lanes = args.columns - column;
    float* const out = args.out + static_cast<size_t>(block.row) * args.ldo + column;
    Vec total[PANELS][ROWS];
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            total[p][r] =
                block.first_tile == 0 ? zero() : load_first(out + r * args.ldo + p * kLanes, lanes - p * kLanes);
        }
    }
    for (int tile = 0; tile < block.tiles; ++tile) {
        // Later rows find the weights in a cache. Behind the range the stream goes on in the next panels.
        size_t ahead = block.row == 0 ? kPrefetchTiles * kTileElements : 0;
        if (tile + kPrefetchTiles >= block.tiles) ahead += PANELS * panel_elements - block.tiles * kTileElements;
#pragma GCC unroll 1
        for (int pair = 0; pair < kTileDepth / 2; ++pair) {
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                prefetch(weights + p * panel_elements + ahead);
            Dot::template add<ROWS, PANELS, STRIDE>(total, weights, panel_elements, x);
            weights += 2 * kLanes;
            x += Dot::kPerPair;
        }
    }
    const bool is_last = block.first_tile + block.tiles == args.k_tiles;
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        const int left = lanes - p * kLanes;
        const bool biased = is_last && args.bias;
        const Vec bias = biased ? load_first(args.bias + column + p * kLanes, left) : zero();
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            store_first(out + r * args.ldo + p * kLanes, biased ? total[p][r] + bias : total[p][r], left);
        }
    }
}

template <class Dot, int ROWS>
static void multiply_rows(const LinearBlock& block) {
    // An odd number of cache lines apart, so that the rows' inputs fall into different cache sets.
    constexpr int kStride = (max_block_inputs(ROWS) / 2 * Dot::kPerPair / kLanes | 1) * kLanes;
    alignas(64) typename Dot::Input inputs[ROWS * kStride];
    const LinearArgs& args = block.args;
    for (int r = 0; r < ROWS; ++r) {
        Dot::prepare(args.x + (block.row + r) * args.ldx + block.first_tile * kTileDepth, block.tiles * kTileDepth,
                     inputs + r * kStride);
    }
    constexpr int kPanels = max_block_panels(ROWS);
    int panel = block.panel_begin;
    for (; panel + kPanels <= block.panel_end; panel += kPanels)
        multiply<Dot, ROWS, kStride, kPanels>(block, panel, inputs);
    if constexpr (kPanels == 4) {
        for (; panel + 2 <= block.panel_end; panel += 2)
            multiply<Dot, ROWS, kStride, 2>(block, panel, inputs);
    }
    if constexpr (kPanels > 1) {
        for (; panel < block.panel_end; ++panel)
            multiply<Dot, ROWS, kStride, 1>(block, panel, inputs);
    }
}

// multiply_rows<Dot, block.rows>.
template <class Dot, int ROWS>
static void multiply_some_rows(const LinearBlock& block) {
    if (block.rows == ROWS) {
        multiply_rows<Dot, ROWS>(block);
    } else if constexpr (ROWS > 1) {
        multiply_some_rows<Dot, ROWS - 1>(block);
    }
}

FORERUN_INLINE int ceil_div(int value, int unit) {
    return (value + unit - 1) / unit;
}

// Rows in blocks of equal size but the last, inputs in ranges of equal size but the last.
template <class Dot>
static void linear_by(const LinearArgs& args, int panel_begin, int panel_end) {
    const int rows = ceil_div(args.rows, ceil_div(args.rows, kMaxBlockRows));
    const int tiles = ceil_div(args.k_tiles, ceil_div(args.k_tiles * kTileDepth, max_block_inputs(rows)));
    for (int tile = 0; tile < args.k_tiles; tile += tiles) {
        const int tiles_left = args.k_tiles - tile;
        for (int row = 0; row < args.rows; row += rows) {
            const int rows_left = args.rows - row;
            multiply_some_rows<Dot, kMaxBlockRows>(LinearBlock{args, row, rows < rows_left ? rows : rows_left, tile,
                                                               tiles < tiles_left ? tiles : tiles_left, panel_begin,
                                                               panel_end});
        }
    }
}
