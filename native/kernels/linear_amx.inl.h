// Linear layers on AMX tiles: TDPBF16PS multiplies 16 rows x 32 inputs with 32 inputs x 16 columns into 16 x 16 floats.
//
// An output is always one element of one accumulator tile that takes the input tiles in ascending order. How many tiles
// run side by side, and whether an accumulator rests in memory between two input ranges, changes no bit. Rows of a tile
// do not touch each other, so a block of fewer rows just configures shorter tiles.
//
// Tile state lives inside one call: configured on entry, released on return.

// Input bytes of all rows that stay in the level 2 cache (2 MiB on these processors) while panels stream past.
constexpr size_t kResidentBytes = size_t{1} << 20;
constexpr int kMaxResidentRows = 512;
constexpr int kPrefetchTiles = 6;  // ahead of the tile in use, per panel
constexpr size_t kTileBytes = kTileElements * sizeof(uint16_t);

// Accumulators 0-3 as [row block][panel], inputs 4-5 by row block, weights 6-7 by panel.
FORERUN_INLINE void configure_tiles(int rows0, int rows1) {
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile)
        config.set(tile, tile >= 6 ? kLanes : tile == 0 || tile == 1 || tile == 4 ? rows0 : rows1, 64);
    config.load();
}

struct TileBlock {
    const uint16_t* x;       // first row, first input of the range
    size_t x_bytes;          // between rows
    const uint16_t* panels;  // first panel, first tile of the range
    size_t panel_bytes;
    int tiles, tiles_to_end;  // in the range; from its start to the panel's end
    float* out;
    size_t out_bytes;
    bool resume;  // go on from what `out` holds
};

// ROW_BLOCKS x PANELS accumulators over one range of inputs.
template <int ROW_BLOCKS, int PANELS, bool PREFETCH>
FORERUN_INLINE void multiply_tiles(const TileBlock& block) {
    const size_t next_rows = kLanes * block.x_bytes / sizeof(uint16_t), next_out = kLanes * block.out_bytes / 4;
    float* const out0 = block.out;
    float* const out1 = block.out + next_out;
    if (block.resume) {
        _tile_loadd(0, out0, block.out_bytes);
        if constexpr (PANELS == 2) _tile_loadd(1, out0 + kLanes, block.out_bytes);
        if constexpr (ROW_BLOCKS == 2) _tile_loadd(2, out1, block.out_bytes);
        if constexpr (ROW_BLOCKS == 2 && PANELS == 2) _tile_loadd(3, out1 + kLanes, block.out_bytes);
    } else {
        _tile_zero(0);
        if constexpr (PANELS == 2) _tile_zero(1);
        if constexpr (ROW_BLOCKS == 2) _tile_zero(2);
        if constexpr (ROW_BLOCKS == 2 && PANELS == 2) _tile_zero(3);
    }
    const char* weights0 = reinterpret_cast<const char*>(block.panels);
    const char* weights1 = weights0 + block.panel_bytes;
    const uint16_t* x = block.x;
    for (int tile = 0; tile < block.tiles; ++tile) {
        if constexpr (PREFETCH) {
            // Behind the end of its panel a stream goes on in the panel after the pair: one panel further.
            const size_t ahead = (tile + kPrefetchTiles) * kTileBytes +
                                 (tile + kPrefetchTiles < block.tiles_to_end ? 0 : (PANELS - 1) * block.panel_bytes);
            for (size_t line = 0; line < kTileBytes; line += 64) {
                prefetch(reinterpret_cast<const char*>(block.panels) + ahead + line);
                if constexpr (PANELS == 2) {
                    prefetch(reinterpret_cast<const char*>(block.panels) + block.panel_bytes + ahead + line);
                }
            }
        }
        _tile_loadd(4, x, block.x_bytes);
        _tile_loadd(6, weights0, 64);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (PANELS == 2) {
            _tile_loadd(7, weights1, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (ROW_BLOCKS == 2) {
            _tile_loadd(5, x + next_rows, block.x_bytes);
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (PANELS == 2) _tile_dpbf16ps(3, 5, 7);
        }
        x += kTileDepth;
        weights0 += kTileBytes;
        weights1 += kTileBytes;
    }
    _tile_stored(0, out0, block.out_bytes);
    if constexpr (PANELS == 2) _tile_stored(1, out0 + kLanes, block.out_bytes);
    if constexpr (ROW_BLOCKS == 2) _tile_stored(2, out1, block.out_bytes);
    if constexpr (ROW_BLOCKS == 2 && PANELS == 2) _tile_stored(3, out1 + kLanes, block.out_bytes);
}

// At most 32 rows (tiles are configured for them) of one or two panels.
template <bool PREFETCH>
FORERUN_INLINE void multiply_block(const TileBlock& block, int rows, int panels) {
    if (rows > kLanes) {
        if (panels == 2) {
            multiply_tiles<2, 2, PREFETCH>(block);
        } else {
            multiply_tiles<2, 1, PREFETCH>(block);
        }
    } else if (panels == 2) {
        multiply_tiles<1, 2, PREFETCH>(block);
    } else {
        multiply_tiles<1, 1, PREFETCH>(block);
    }
}

// Whole panels: rows in blocks of 32, inputs in ranges short enough that the rows' inputs stay in cache.
static void linear_full_panels(const LinearArgs& args, int row_begin, int rows, int panel_begin, int panel_end) {
    const size_t panel_bytes = static_cast<size_t>(args.k_tiles) * kTileBytes;
    const int fitting = static_cast<int>(kResidentBytes / (static_cast<size_t>(rows) * 64));
    const int range = fitting < args.k_tiles ? fitting : args.k_tiles;
    const int tail = rows % (2 * kLanes);
    for (int first = 0; first < args.k_tiles; first += range) {
        const int tiles = args.k_tiles - first < range ? args.k_tiles - first : range;
        // Blocks of 32 rows, then the shorter last one, so that tiles are configured twice at most.
        for (int pass = 0; pass < 2; ++pass) {
            const int begin = pass == 0 ? 0 : rows - tail, end = pass == 0 ? rows - tail : rows;
            if (begin == end) continue;
            const int step = pass == 0 ? 2 * kLanes : tail;
            configure_tiles(step < kLanes ? step : kLanes, step > kLanes ? step - kLanes : kLanes);
            for (int panel = panel_begin; panel < panel_end; panel += 2) {
                for (int row = begin; row < end; row += step) {
                    const size_t absolute = static_cast<size_t>(row_begin + row);
                    TileBlock block;
                    block.x = args.x + absolute * args.ldx + static_cast<size_t>(first) * kTileDepth;
                    block.x_bytes = args.ldx * sizeof(uint16_t);
                    block.panels = args.panels + (static_cast<size_t>(panel) * args.k_tiles + first) * kTileElements;
                    block.panel_bytes = panel_bytes;
                    block.tiles = tiles;
                    block.tiles_to_end = args.k_tiles - first;
                    block.out = args.out + absolute * args.ldo + static_cast<size_t>(panel) * kLanes;
                    block.out_bytes = args.ldo * sizeof(float);
                    block.resume = first > 0;
                    const int panels = panel + 1 < panel_end ? 2 : 1;
                    if (row == 0) {
                        multiply_block<true>(block, step, panels);  // first visit: the weights come from memory
                    } else {
                        multiply_block<false>(block, step, panels);
                    }
                }
            }
        }
    }
}

// The last panel when N is no multiple of 16: through a buffer, so that nothing is written behind a row's end.
static void linear_ragged_panel(const LinearArgs& args, int panel) {
    alignas(64) float buffer[kLanes * kLanes];
    const int column = panel * kLanes;
    for (int row = 0; row < args.rows; row += kLanes) {
        const int rows = args.rows - row < kLanes ? args.rows - row : kLanes;
        configure_tiles(rows, rows);
        TileBlock block;
        block.x = args.x + static_cast<size_t>(row) * args.ldx;
        block.x_bytes = args.ldx * sizeof(uint16_t);
        block.panels = args.panels + static_cast<size_t>(panel) * args.k_tiles * kTileElements;
        block.panel_bytes = 0;
        block.tiles = block.tiles_to_end = args.k_tiles;
        block.out = buffer;
        block.out_bytes = sizeof(float) * kLanes;
        block.resume = false;
        multiply_tiles<1, 1, false>(block);
        for (int r = 0; r < rows; ++r) {
            store_first(args.out + (row + r) * args.ldo + column, load(buffer + r * kLanes), args.columns - column);
        }
    }
}

static void linear(const LinearArgs& args, int panel_begin, int panel_end) {
    const int full_end = panel_end * kLanes <= args.columns ? panel_end : panel_end - 1;
    for (int row = 0; row < args.rows && panel_begin < full_end; row += kMaxResidentRows) {
        const int rows = args.rows - row < kMaxResidentRows ? args.rows - row : kMaxResidentRows;
        linear_full_panels(args, row, rows, panel_begin, full_end);
    }
    if (full_end < panel_end) linear_ragged_panel(args, full_end);
    _tile_release();
    if (!args.bias) return;
    const int end = panel_end * kLanes < args.columns ? panel_end * kLanes : args.columns;
    for (int row = 0; row < args.rows; ++row) {
        float* out = args.out + row * args.ldo;
        for (int column = panel_begin * kLanes; column < end; column += kLanes) {
            const int lanes = end - column;
            store_first(out + column, load_first(out + column, lanes) + load_first(args.bias + column, lanes), lanes);
        }
    }
}
