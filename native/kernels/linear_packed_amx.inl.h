// Linear layers over packed weights on AMX tiles. Codes are unpacked to bfloat16, TDPBF16PS multiplies 16 rows x 32
// inputs (16 in Q6_K) with them, and the product of each tile is scaled in float32 while it is added up:
//
//   total = 0;  for each tile in ascending order:  total = fma(product, d, total), then fma(sum of inputs, m, total)
//
// where the second term is there if the format has a minimum, or if unpacking added something to the codes. A total
// depends on nothing but its row and its output, and the order is the same on both paths below, hence the bits.
//
// Up to 16 rows keep their totals in registers and pass once over a panel, unpacking, multiplying and adding three
// tiles apart from each other so that all of it overlaps with the weights' way from memory. More rows take a few tiles
// of two panels at a time: unpacked once, multiplied by one block of 16 rows after the other.

constexpr size_t kFarBytes = 16384, kNearBytes = 1024;  // ahead of the tile in use: into the second and first level
constexpr size_t kResidentInputs = size_t{512} << 10;   // bytes of inputs that stay in the level 2 cache
constexpr int kRing = 4;                                // tiles between unpacking and adding up
constexpr int kRangeTiles = 4;  // of two panels, unpacked for many rows: all stays in the level 1 cache

template <TileFormat F>
constexpr bool kAddsSums = has_minimum(F) || code_excess(F) != 0;

FORERUN_INLINE void prefetch_far(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
}

// Puts an array in memory: gcc's tile loads do not say that they read it.
template <class Array>
FORERUN_INLINE void finish_stores(const Array& array) {
    __asm__ volatile("" : : "m"(array));
}

template <TileFormat F>
FORERUN_INLINE LaneScales code_scales(const uint8_t* header, const uint8_t* tile) {
    return lane_scales<F, code_excess(F)>(header, tile);
}

constexpr int kInputTile = 4, kCodeTile = 6;  // and products in tiles 0 to 3

// For `rows` rows.
template <TileFormat F>
FORERUN_INLINE void configure_packed(int rows) {
    TileConfig config;
    for (int product = 0; product < 4; ++product)
        config.set(product, rows, 64);
    config.set(kInputTile, rows, 2 * tile_shape(F).inputs);
    config.set(kCodeTile, tile_shape(F).inputs / 2, 64);
    config.load();
}

template <TileFormat F>
FORERUN_INLINE __m512 add_product(__m512 total, const float* product, LaneScales scales, const float* sum) {
    total = _mm512_fmadd_ps(_mm512_load_ps(product), scales.scale.v, total);
    if constexpr (kAddsSums<F>) total = _mm512_fmadd_ps(_mm512_set1_ps(*sum), scales.minimum.v, total);
    return total;
}

// Totals [16][16] of a block of rows to `out`, with the bias.
static void store_totals(const PackedLinearArgs& args, const float* totals, int block, int panel) {
    const int column = panel * kLanes, lanes = args.columns - column, first = block * kLanes;
    const int rows = args.rows - first < kLanes ? args.rows - first : kLanes;
    const Vec bias = args.bias ? load_first(args.bias + column, lanes) : zero();
    for (int r = 0; r < rows; ++r) {
        const Vec total = load(totals + r * kLanes);
        store_first(args.out + static_cast<size_t>(first + r) * args.ldo + column, args.bias ? total + bias : total,
                    lanes);
    }
}

// Product PLACE to memory. Tiles go by names that the assembler sees, hence the cases.
template <int PLACE>
FORERUN_INLINE void store_product(float* to) {
    if constexpr (PLACE == 0) _tile_stored(0, to, 64);
    if constexpr (PLACE == 1) _tile_stored(1, to, 64);
    if constexpr (PLACE == 2) _tile_stored(2, to, 64);
    if constexpr (PLACE == 3) _tile_stored(3, to, 64);
}

FORERUN_INLINE void load_inputs(const uint16_t* x, size_t ldx) {
    _tile_loadd(4, x, ldx * sizeof(uint16_t));
}

template <int PLACE>
FORERUN_INLINE void multiply_inputs(const uint16_t* codes) {
    _tile_loadd(6, codes, 64);
    if constexpr (PLACE == 0) {
        _tile_zero(0);
        _tile_dpbf16ps(0, 4, 6);
    } else if constexpr (PLACE == 1) {
        _tile_zero(1);
        _tile_dpbf16ps(1, 4, 6);
    } else if constexpr (PLACE == 2) {
        _tile_zero(2);
        _tile_dpbf16ps(2, 4, 6);
    } else {
        _tile_zero(3);
        _tile_dpbf16ps(3, 4, 6);
    }
}

// ---- up to 16 rows ----

// A pass of at most ROWS rows over one panel. Functions instead of lambdas that call each other, and `total` apart:
// gcc 12 would keep it in memory.
template <TileFormat F, int ROWS>
struct FewRows {
    static constexpr TileShape kShape = tile_shape(F);
    const PackedLinearArgs& args;
    const uint8_t* panel;
    uint16_t (&codes)[kRing][kLanes * kShape.inputs];
    float (&products)[kRing][ROWS * kLanes];
};

template <TileFormat F, int ROWS>
FORERUN_INLINE void unpack_next(const FewRows<F, ROWS>& pass, __m512i values, int tile) {
    constexpr TileShape kShape = tile_shape(F);
    const uint8_t* const at = pass.panel + tile_offset(kShape, tile);
    FORERUN_UNROLL
    for (size_t line = 0; line < kShape.tile_bytes; line += 64) {
        prefetch_far(at + kFarBytes + line);
        prefetch(at + kNearBytes + line);
    }
    unpack_codes<F>(at + kShape.scale_bytes, values, pass.codes[tile & (kRing - 1)]);
}

template <int PLACE, TileFormat F, int ROWS>
FORERUN_INLINE void add_tile(const FewRows<F, ROWS>& pass, __m512 (&total)[ROWS], int tile) {
    constexpr TileShape kShape = tile_shape(F);
    store_product<PLACE>(pass.products[PLACE]);
    const LaneScales scales =
        code_scales<F>(pass.panel + header_offset(kShape, tile), pass.panel + tile_offset(kShape, tile));
    const float* const sums = tile_sums<F>(pass.args.sums, tile);
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        total[r] = add_product<F>(total[r], pass.products[PLACE] + r * kLanes, scales, sums + r);
}

// PLACE is the place of `tile` in the ring, free again once what was there is added up.
template <int PLACE, TileFormat F, int ROWS>
FORERUN_INLINE void pass_tile(const FewRows<F, ROWS>& pass, __m512i values, __m512 (&total)[ROWS], int tile) {
    if (tile >= kRing) add_tile<PLACE>(pass, total, tile - kRing);
    finish_stores(pass.codes[PLACE]);
    load_inputs(pass.args.x + static_cast<size_t>(tile) * tile_shape(F).inputs, pass.args.ldx);
    multiply_inputs<PLACE>(pass.codes[PLACE]);
    if (tile + kRing - 1 < pass.args.k_tiles) unpack_next(pass, values, tile + kRing - 1);
}

template <TileFormat F, int ROWS>
static void multiply_few_rows(const PackedLinearArgs& args, int panel) {
    alignas(64) uint16_t codes[kRing][kLanes * tile_shape(F).inputs];
    alignas(64) float products[kRing][ROWS * kLanes];
    const FewRows<F, ROWS> pass{args, args.panels + static_cast<size_t>(panel) * args.panel_bytes, codes, products};
    const __m512i values = code_values<F>();
    const int tiles = args.k_tiles;
    __m512 total[ROWS];
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        total[r] = _mm512_setzero_ps();
    for (int tile = 0; tile < kRing - 1 && tile < tiles; ++tile)
        unpack_next(pass, values, tile);
    for (int tile = 0; tile < tiles; tile += kRing) {
        pass_tile<0>(pass, values, total, tile);
        if (tile + 1 < tiles) pass_tile<1>(pass, values, total, tile + 1);
        if (tile + 2 < tiles) pass_tile<2>(pass, values, total, tile + 2);
        if (tile + 3 < tiles) pass_tile<3>(pass, values, total, tile + 3);
    }
    for (int tile = tiles < kRing ? 0 : tiles - kRing; tile < tiles; ++tile) {
        switch (tile & (kRing - 1)) {
            case 0:
                add_tile<0>(pass, total, tile);
                break;
            case 1:
                add_tile<1>(pass, total, tile);
                break;
            case 2:
                add_tile<2>(pass, total, tile);
                break;
            default:
                add_tile<3>(pass, total, tile);
        }
    }
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        _mm512_store_ps(products[0] + r * kLanes, total[r]);
    store_totals(args, products[0], 0, panel);
}

template <TileFormat F, int ROWS>
static void multiply_few_rows(const PackedLinearArgs& args, int panel_begin, int panel_end) {
    if constexpr (ROWS > 1) {
        if (args.rows <= ROWS / 2) return multiply_few_rows<F, ROWS / 2>(args, panel_begin, panel_end);
    }
    configure_packed<F>(ROWS);
    for (int panel = panel_begin; panel < panel_end; ++panel)
        multiply_few_rows<F, ROWS>(args, panel);
}

// ---- more ----

// A range of tiles of one or two panels, unpacked.
template <TileFormat F>
struct UnpackedRange {
    static constexpr int kTileWords = kLanes * tile_shape(F).inputs;
    int first, tiles;
    alignas(64) uint16_t codes[2][kRangeTiles][kTileWords];
    LaneScales scales[2][kRangeTiles];
};

template <TileFormat F>
static void unpack_range(const PackedLinearArgs& args, int panel, int panels, UnpackedRange<F>& range) {
    constexpr TileShape kShape = tile_shape(F);
    const __m512i values = code_values<F>();
    for (int p = 0; p < panels; ++p) {
        const uint8_t* const from = args.panels + static_cast<size_t>(panel + p) * args.panel_bytes;
        for (int i = 0; i < range.tiles; ++i) {
            const uint8_t* const at = from + tile_offset(kShape, range.first + i);
            for (size_t line = 0; line < kShape.tile_bytes; line += 64)
                prefetch_far(at + kFarBytes + line);
            unpack_codes<F>(at + kShape.scale_bytes, values, range.codes[p][i]);
            range.scales[p][i] = code_scales<F>(from + header_offset(kShape, range.first + i), at);
        }
    }
    finish_stores(range.codes);
}

typedef float Products[2][kRangeTiles][kLanes * kLanes];  // [panel][tile][row][output]

// Tile i of the range times 16 rows, into products EVEN and EVEN + 1 (0 or 2) once those of two tiles before are
// stored.
template <int EVEN, int PANELS, TileFormat F>
FORERUN_INLINE void multiply_tile(const UnpackedRange<F>& range, const uint16_t* x, size_t ldx, Products& products,
                                  int i) {
    if (i >= 2) {
        store_product<EVEN>(products[0][i - 2]);
        if constexpr (PANELS == 2) store_product<EVEN + 1>(products[1][i - 2]);
    }
    load_inputs(x + i * tile_shape(F).inputs, ldx);
    multiply_inputs<EVEN>(range.codes[0][i]);
    if constexpr (PANELS == 2) multiply_inputs<EVEN + 1>(range.codes[1][i]);
}

template <int EVEN, int PANELS>
FORERUN_INLINE void store_tile(Products& products, int i) {
    store_product<EVEN>(products[0][i]);
    if constexpr (PANELS == 2) store_product<EVEN + 1>(products[1][i]);
}

template <int PANELS, TileFormat F>
FORERUN_INLINE void multiply_range(const UnpackedRange<F>& range, const uint16_t* x, size_t ldx, Products& products) {
    const int tiles = range.tiles;
    for (int i = 0; i < tiles; i += 2) {
        multiply_tile<0, PANELS>(range, x, ldx, products, i);
        if (i + 1 < tiles) multiply_tile<2, PANELS>(range, x, ldx, products, i + 1);
    }
    const bool is_odd = tiles & 1;
    if (is_odd) {
        if (tiles > 1) store_tile<2, PANELS>(products, tiles - 2);
        store_tile<0, PANELS>(products, tiles - 1);
    } else {
        store_tile<0, PANELS>(products, tiles - 2);
        store_tile<2, PANELS>(products, tiles - 1);
    }
}

// Adds the products of a panel to totals [16][16], which start with the first tile.
template <TileFormat F>
FORERUN_INLINE void add_range(const UnpackedRange<F>& range, int p,
                              const float (&products)[kRangeTiles][kLanes * kLanes], const float* sums, float* totals) {
    __m512 total[kLanes];
    FORERUN_UNROLL
    for (int r = 0; r < kLanes; ++r)
        total[r] = range.first == 0 ? _mm512_setzero_ps() : _mm512_load_ps(totals + r * kLanes);
    for (int i = 0; i < range.tiles; ++i) {
        const LaneScales scales = range.scales[p][i];
        const float* const sum = tile_sums<F>(sums, range.first + i);
        FORERUN_UNROLL
        for (int r = 0; r < kLanes; ++r)
            total[r] = add_product<F>(total[r], products[i] + r * kLanes, scales, sum + r);
    }
    FORERUN_UNROLL
    for (int r = 0; r < kLanes; ++r)
        _mm512_store_ps(totals + r * kLanes, total[r]);
}

// Blocks of rows from `first` to `end`. totals [end - first][PANELS][16][16], private to the thread
template <TileFormat F, int PANELS>
static void multiply_many_rows(const PackedLinearArgs& args, int panel, int first, int end, float* totals) {
    UnpackedRange<F> range;
    alignas(64) Products products;
    const int ranges = (args.k_tiles + kRangeTiles - 1) / kRangeTiles;
    for (int i = 0; i < ranges; ++i) {
        range.first = args.k_tiles * i / ranges;
        range.tiles = args.k_tiles * (i + 1) / ranges - range.first;
        unpack_range(args, panel, PANELS, range);
        const uint16_t* x =
            args.x + first * kLanes * args.ldx + static_cast<size_t>(range.first) * tile_shape(F).inputs;
        const float* sums = args.sums + first * args.sum_floats;
        float* total = totals;
        for (int block = first; block < end; ++block) {
            multiply_range<PANELS>(range, x, args.ldx, products);
            for (int p = 0; p < PANELS; ++p, total += kLanes * kLanes) {
                add_range(range, p, products[p], sums, total);
                if (i + 1 == ranges) store_totals(args, total, block, panel + p);
            }
            x += kLanes * args.ldx;
            sums += args.sum_floats;
        }
    }
}

template <TileFormat F>
static void multiply_many_rows(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    configure_packed<F>(kLanes);
    static_assert(size_t{2} * kMaxPackedBlocks * kLanes * kLanes * sizeof(float) <= kPackedScratchBytes);
    float* const totals = reinterpret_cast<float*>(scratch);
    const int blocks = (args.rows + kLanes - 1) / kLanes;
    const int fitting = static_cast<int>(kResidentInputs / (kLanes * args.ldx * sizeof(uint16_t)));
    const int most = fitting < 2 ? 2 : fitting < kMaxPackedBlocks ? fitting : kMaxPackedBlocks;
    const int passes = (blocks + most - 1) / most;
    for (int pass = 0; pass < passes; ++pass) {
        const int first = blocks * pass / passes, end = blocks * (pass + 1) / passes;
        int panel = panel_begin;
        for (; panel + 2 <= panel_end; panel += 2)
            multiply_many_rows<F, 2>(args, panel, first, end, totals);
        if (panel < panel_end) multiply_many_rows<F, 1>(args, panel, first, end, totals);
    }
}

template <TileFormat F>
static void multiply_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    if (args.rows > kLanes) {
        multiply_many_rows<F>(args, panel_begin, panel_end, scratch);
    } else {
        multiply_few_rows<F, kLanes>(args, panel_begin, panel_end);
    }
}

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    with_format(args.format, [&]<TileFormat F> { multiply_packed<F>(args, panel_begin, panel_end, scratch); });
    _tile_release();
}
