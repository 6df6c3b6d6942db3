// Linear layers on vectors: the loops, for every way of multiplying (`Dot`, see below).
//
// A panel's 16 columns are the lanes of a vector. A block of ROWS x PANELS sums lives in registers while the inputs
// pass by: each weight is loaded once for all rows, each input is broadcast to all lanes. An output is always one lane
// of one sum that takes its inputs in ascending order, so the shape of the block changes no bit.
//
// Few rows are bound by the weights' way from memory. The first block of rows prefetches them: processors' own
// prefetchers lose the stream where the arithmetic slows it down. Many rows are bound by arithmetic, in blocks as large
// as the registers hold; later blocks find the weights of their task in the level 2 cache.
//
// A Dot has
//   Input                     what inputs are kept as while a tile is multiplied: kPerPair for a pair, kPerTile for all
//   prepare(x, to)            turns a row's bfloat16 inputs of one tile into those
//   add(total, pair, panel_elements, x)
//                             total[p][r] += the pair of inputs at x + r * kPerTile times the pairs of weights of panel
//                             p at pair + p * panel_elements

constexpr int kAccumulators = kVectors / 4 * 3;  // the rest is for weights and inputs
constexpr int kMaxBlockRows = kAccumulators < 12 ? kAccumulators : 12;
constexpr int kPrefetchTiles = 3;  // ahead of the tile in use, per panel

// ROWS rows from `row` on, PANELS panels from `panel` on.
template <class Dot, int ROWS, int PANELS>
static void multiply(const LinearArgs& args, int row, int panel) {
    const size_t panel_elements = static_cast<size_t>(args.k_tiles) * kTileElements;
    const uint16_t* weights = args.panels + static_cast<size_t>(panel) * panel_elements;
    const uint16_t* x = args.x + static_cast<size_t>(row) * args.ldx;
    Vec total[PANELS][ROWS];
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r)
            total[p][r] = zero();
    }
    alignas(64) typename Dot::Input inputs[ROWS * Dot::kPerTile];
    for (int tile = 0; tile < args.k_tiles; ++tile) {
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r)
            Dot::prepare(x + r * args.ldx, inputs + r * Dot::kPerTile);
        x += kTileDepth;
        size_t ahead = 0;
        if (row == 0) {
            ahead = kPrefetchTiles * kTileElements;
            // Behind the end of its panel a stream goes on in the panel after the pair: one panel further.
            if (tile + kPrefetchTiles >= args.k_tiles) ahead += (PANELS - 1) * panel_elements;
        }
        for (int pair = 0; pair < kTileDepth / 2; ++pair) {
            FORERUN_UNROLL
            for (int p = 0; p < PANELS; ++p)
                prefetch(weights + p * panel_elements + ahead);
            Dot::add(total, weights, panel_elements, inputs + pair * Dot::kPerPair);
            weights += 2 * kLanes;
        }
    }
    FORERUN_UNROLL
    for (int p = 0; p < PANELS; ++p) {
        const int column = (panel + p) * kLanes, lanes = args.columns - column;
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const Vec result = args.bias ? total[p][r] + load_first(args.bias + column, lanes) : total[p][r];
            store_first(args.out + static_cast<size_t>(row + r) * args.ldo + column, result, lanes);
        }
    }
}

// `rows` rows, at most ROWS.
template <class Dot, int ROWS>
static void multiply_rows(const LinearArgs& args, int row, int rows, int panel_begin, int panel_end) {
    if constexpr (ROWS > 1) {
        if (rows < ROWS) return multiply_rows<Dot, ROWS - 1>(args, row, rows, panel_begin, panel_end);
    }
    constexpr int kPanels = 2 * ROWS <= kAccumulators ? 2 : 1;
    int panel = panel_begin;
    for (; panel + kPanels <= panel_end; panel += kPanels)
        multiply<Dot, ROWS, kPanels>(args, row, panel);
    if (panel < panel_end) multiply<Dot, ROWS, 1>(args, row, panel);
}

// Rows in blocks of equal size but the last.
template <class Dot>
static void linear_by(const LinearArgs& args, int panel_begin, int panel_end) {
    const int blocks = (args.rows + kMaxBlockRows - 1) / kMaxBlockRows;
    const int rows = (args.rows + blocks - 1) / blocks;
    for (int row = 0; row < args.rows; row += rows) {
        const int left = args.rows - row;
        multiply_rows<Dot, kMaxBlockRows>(args, row, rows < left ? rows : left, panel_begin, panel_end);
    }
}
