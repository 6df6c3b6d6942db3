// Linear layers over packed weights on AMX tiles: 16 outputs x 32 inputs, unpacked to bfloat16 just before TDPBF16PS
// multiplies them with 32 inputs x 16 rows. Weights are the first operand, because there a line of the tile holds the
// weights of one group, which is what unpacks fast; so a result tile is [16 outputs][16 rows], transposed on its way
// out.
//
// An output is one element of one accumulator tile that takes the input tiles in ascending order, whatever the number
// of rows, as in linear_amx.inl.h: the products and their order are the same, hence the bits.
//
// Up to 32 rows a pair of panels is unpacked one tile ahead of the products, so that unpacking, multiplying and the
// weights' way from memory overlap. More rows unpack a range of a pair of panels once, into the level 2 cache, and
// multiply all rows by it; accumulators rest in `scratch` between ranges.
//
// Inputs come as tiles: [R / 16][k_tiles][16 pairs][16 rows] pairs of bfloat16. Rows that pad the last block may hold
// anything, since a column of a product depends on no other column.

constexpr size_t kPrefetchBytes = 2048;  // ahead of the tile in use, per panel
constexpr int kRangeInputTiles = 1024;   // 1 KiB tiles of inputs that stay in the level 2 cache

FORERUN_INLINE void configure_full_tiles() {
    configure_tiles(kLanes, kLanes);
}

static void transpose_16x16(const float* from, __m512 (&rows)[kLanes]) {
    __m512 t[kLanes];
    for (int i = 0; i < kLanes; i += 2) {
        const __m512 a = _mm512_load_ps(from + i * kLanes), b = _mm512_load_ps(from + (i + 1) * kLanes);
        t[i] = _mm512_unpacklo_ps(a, b);
        t[i + 1] = _mm512_unpackhi_ps(a, b);
    }
    for (int i = 0; i < kLanes; i += 4) {
        const __m512d a = _mm512_castps_pd(t[i]), b = _mm512_castps_pd(t[i + 1]);
        const __m512d c = _mm512_castps_pd(t[i + 2]), d = _mm512_castps_pd(t[i + 3]);
        rows[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
        rows[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
        rows[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
        rows[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
    }
    // rows[4 g + j] has columns j, 4 + j, 8 + j, 12 + j of lines 4 g .. 4 g + 3.
    for (int j = 0; j < 4; ++j) {
        t[j] = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(rows[j], rows[4 + j], 0xdd);
        t[8 + j] = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(rows[8 + j], rows[12 + j], 0xdd);
    }
    for (int j = 0; j < 4; ++j) {
        rows[j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0x88);
        rows[8 + j] = _mm512_shuffle_f32x4(t[j], t[8 + j], 0xdd);
        rows[4 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0x88);
        rows[12 + j] = _mm512_shuffle_f32x4(t[4 + j], t[12 + j], 0xdd);
    }
}

// Inputs of `rows` rows to blocks of tiles; `out` starts with the block of the first row.
static void round_rows_to_tiles(const float* x, size_t ldx, int rows, int width, uint16_t* out) {
    const int tiles = (width + kTileDepth - 1) / kTileDepth;
    for (int row = 0; row < rows; row += kLanes) {
        const int count = rows - row < kLanes ? rows - row : kLanes;
        for (int tile = 0; tile < tiles; ++tile, out += kTileElements) {
            alignas(64) float pairs[kLanes * kLanes];
            for (int r = 0; r < kLanes; ++r) {
                const float* from = x + static_cast<size_t>(row + (r < count ? r : 0)) * ldx + tile * kTileDepth;
                const int left = width - tile * kTileDepth;
                _mm512_store_si512(pairs + r * kLanes,
                                   round_pair(load_first(from, left).v, load_first(from + kLanes, left - kLanes).v));
                if (r + 1 == count && count == 1) break;
            }
            if (count == 1) {
                const __m512i first =
                    _mm512_setr_epi32(0, 16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240);
                _mm512_i32scatter_ps(out, first, _mm512_load_ps(pairs), 4);
                continue;
            }
            __m512 lines[kLanes];
            transpose_16x16(pairs, lines);
            for (int i = 0; i < kLanes; ++i)
                _mm512_store_ps(out + i * 2 * kLanes, lines[i]);
        }
    }
}

// A result tile [16 outputs][16 rows] to rows of `out`, with the bias.
static void store_result(const PackedLinearArgs& args, const float* tile, int panel, int row_block) {
    const int column = panel * kLanes, lanes = args.columns - column, first = row_block * kLanes;
    const int rows = args.rows - first < kLanes ? args.rows - first : kLanes;
    float* out = args.out + static_cast<size_t>(first) * args.ldo + column;
    const __m512 bias = args.bias ? load_first(args.bias + column, lanes).v : _mm512_setzero_ps();
    __m512 lines[kLanes];
    if (rows == 1) {
        alignas(64) float line[kLanes];
        for (int i = 0; i < kLanes; ++i)
            line[i] = tile[i * kLanes];
        lines[0] = _mm512_load_ps(line);
    } else {
        transpose_16x16(tile, lines);
    }
    for (int r = 0; r < rows; ++r)
        store_first(out + r * args.ldo, Vec{args.bias ? _mm512_add_ps(lines[r], bias) : lines[r]}, lanes);
}

FORERUN_INLINE const uint16_t* input_tiles(const PackedLinearArgs& args, int row_block, int tile) {
    return args.x + (static_cast<size_t>(row_block) * args.k_tiles + tile) * kTileElements;
}

// Accumulators 0-3 as [panel][row block], inputs 4-5 by row block, weights 6-7 by panel.
template <int PANELS, int ROW_BLOCKS>
FORERUN_INLINE void multiply_unpacked(const uint16_t* weights0, const uint16_t* weights1, const uint16_t* x0,
                                      const uint16_t* x1) {
    _tile_loadd(4, x0, 64);
    _tile_loadd(6, weights0, 64);
    _tile_dpbf16ps(0, 6, 4);
    if constexpr (PANELS == 2) {
        _tile_loadd(7, weights1, 64);
        _tile_dpbf16ps(2, 7, 4);
    }
    if constexpr (ROW_BLOCKS == 2) {
        _tile_loadd(5, x1, 64);
        _tile_dpbf16ps(1, 6, 5);
        if constexpr (PANELS == 2) _tile_dpbf16ps(3, 7, 5);
    }
}

template <int PANELS, int ROW_BLOCKS>
FORERUN_INLINE void zero_accumulators() {
    _tile_zero(0);
    if constexpr (ROW_BLOCKS == 2) _tile_zero(1);
    if constexpr (PANELS == 2) _tile_zero(2);
    if constexpr (PANELS == 2 && ROW_BLOCKS == 2) _tile_zero(3);
}

// results[panel][row block], `panel_floats` between panels.
template <int PANELS, int ROW_BLOCKS>
FORERUN_INLINE void store_accumulators(float* results, size_t panel_floats) {
    _tile_stored(0, results, 64);
    if constexpr (ROW_BLOCKS == 2) _tile_stored(1, results + kLanes * kLanes, 64);
    if constexpr (PANELS == 2) _tile_stored(2, results + panel_floats, 64);
    if constexpr (PANELS == 2 && ROW_BLOCKS == 2) _tile_stored(3, results + panel_floats + kLanes * kLanes, 64);
}

template <int PANELS, int ROW_BLOCKS>
FORERUN_INLINE void load_accumulators(const float* results, size_t panel_floats) {
    _tile_loadd(0, results, 64);
    if constexpr (ROW_BLOCKS == 2) _tile_loadd(1, results + kLanes * kLanes, 64);
    if constexpr (PANELS == 2) _tile_loadd(2, results + panel_floats, 64);
    if constexpr (PANELS == 2 && ROW_BLOCKS == 2) _tile_loadd(3, results + panel_floats + kLanes * kLanes, 64);
}

// ---- up to 32 rows ----

template <TileFormat F, int PANELS, int ROW_BLOCKS>
static void multiply_few_rows(const PackedLinearArgs& args, int panel) {
    constexpr TileShape kShape = tile_shape(F);
    alignas(64) uint16_t unpacked[2][PANELS][kTileElements];
    alignas(64) float results[PANELS][ROW_BLOCKS][kLanes * kLanes];
    const uint8_t* const data = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    const auto unpack = [&](int tile) __attribute__((always_inline)) {
        const size_t header = header_offset(kShape, tile), at = tile_offset(kShape, tile);
        // Behind the end of its panel a stream goes on in the panel after the pair.
        const size_t ahead =
            at + kPrefetchBytes + (at + kPrefetchBytes < args.panel_bytes ? 0 : (PANELS - 1) * args.panel_bytes);
        FORERUN_UNROLL
        for (int p = 0; p < PANELS; ++p) {
            const uint8_t* const from = data + p * args.panel_bytes;
            for (size_t line = 0; line < kShape.tile_bytes; line += 64)
                prefetch(from + ahead + line);
            unpack_tile<F>(from + header, from + at, unpacked[tile & 1][p]);
        }
    };
    zero_accumulators<PANELS, ROW_BLOCKS>();
    unpack(0);
    for (int tile = 0; tile < args.k_tiles; ++tile) {
        if (tile + 1 < args.k_tiles) unpack(tile + 1);
        const uint16_t* const weights = unpacked[tile & 1][0];
        multiply_unpacked<PANELS, ROW_BLOCKS>(weights, weights + kTileElements * (PANELS - 1),
                                              input_tiles(args, 0, tile), input_tiles(args, ROW_BLOCKS - 1, tile));
    }
    store_accumulators<PANELS, ROW_BLOCKS>(results[0][0], ROW_BLOCKS * kLanes * kLanes);
    for (int p = 0; p < PANELS; ++p) {
        for (int block = 0; block < ROW_BLOCKS; ++block)
            store_result(args, results[p][block], panel + p, block);
    }
}

template <TileFormat F, int ROW_BLOCKS>
static void multiply_few_rows(const PackedLinearArgs& args, int panel_begin, int panel_end) {
    int panel = panel_begin;
    for (; panel + 2 <= panel_end; panel += 2)
        multiply_few_rows<F, 2, ROW_BLOCKS>(args, panel);
    if (panel < panel_end) multiply_few_rows<F, 1, ROW_BLOCKS>(args, panel);
}

// ---- more ----

struct PackedRange {
    int tile, tiles;            // of the inputs
    int row_block, row_blocks;  // of the rows
};

// results [panels][row_blocks][16][16]
template <TileFormat F, int PANELS>
static void multiply_range(const PackedLinearArgs& args, const PackedRange& range, int panel, uint16_t* unpacked,
                           float* results) {
    constexpr TileShape kShape = tile_shape(F);
    for (int p = 0; p < PANELS; ++p) {
        const uint8_t* const from = args.panels + static_cast<size_t>(panel + p) * args.panel_bytes;
        for (int tile = 0; tile < range.tiles; ++tile) {
            const size_t at = tile_offset(kShape, range.tile + tile);
            unpack_tile<F>(from + header_offset(kShape, range.tile + tile), from + at,
                           unpacked + (static_cast<size_t>(p) * kMaxRangeTiles + tile) * kTileElements);
        }
    }
    const size_t panel_floats = static_cast<size_t>(range.row_blocks) * kLanes * kLanes;
    const auto multiply = [&]<int ROW_BLOCKS>(int block) __attribute__((always_inline)) {
        float* const at = results + static_cast<size_t>(block) * kLanes * kLanes;
        if (range.tile == 0) {
            zero_accumulators<PANELS, ROW_BLOCKS>();
        } else {
            load_accumulators<PANELS, ROW_BLOCKS>(at, panel_floats);
        }
        const uint16_t* weights = unpacked;
        const uint16_t* x0 = input_tiles(args, range.row_block + block, range.tile);
        const uint16_t* x1 = input_tiles(args, range.row_block + block + ROW_BLOCKS - 1, range.tile);
        for (int tile = 0; tile < range.tiles; ++tile) {
            for (int line = 0; line < kTileElements; line += 2 * kLanes) {  // of the next inputs
                prefetch(x0 + kTileElements + line);
                if constexpr (ROW_BLOCKS == 2) prefetch(x1 + kTileElements + line);
            }
            multiply_unpacked<PANELS, ROW_BLOCKS>(weights, weights + kMaxRangeTiles * kTileElements, x0, x1);
            weights += kTileElements;
            x0 += kTileElements;
            x1 += kTileElements;
        }
        if (range.tile + range.tiles < args.k_tiles) {
            store_accumulators<PANELS, ROW_BLOCKS>(at, panel_floats);
            return;
        }
        alignas(64) float done[PANELS][ROW_BLOCKS][kLanes * kLanes];
        store_accumulators<PANELS, ROW_BLOCKS>(done[0][0], ROW_BLOCKS * kLanes * kLanes);
        for (int p = 0; p < PANELS; ++p) {
            for (int b = 0; b < ROW_BLOCKS; ++b)
                store_result(args, done[p][b], panel + p, range.row_block + block + b);
        }
    };
    int block = 0;
    for (; block + 2 <= range.row_blocks; block += 2)
        multiply.template operator()<2>(block);
    if (block < range.row_blocks) multiply.template operator()<1>(block);
}

template <TileFormat F>
static void multiply_many_rows(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    uint16_t* const unpacked = reinterpret_cast<uint16_t*>(scratch);
    float* const results = reinterpret_cast<float*>(scratch + 2 * kMaxRangeTiles * kTileBytes);
    const int all_blocks = (args.rows + kLanes - 1) / kLanes;
    for (int row_block = 0; row_block < all_blocks; row_block += kMaxPackedRowBlocks) {
        const int left = all_blocks - row_block;
        const int row_blocks = left < kMaxPackedRowBlocks ? left : kMaxPackedRowBlocks;
        const int fitting = kRangeInputTiles / row_blocks;
        const int most = fitting < kMaxRangeTiles ? fitting : kMaxRangeTiles;
        const int ranges = (args.k_tiles + most - 1) / most;
        const int longest = (args.k_tiles + ranges - 1) / ranges;  // of equal ranges but the last
        const size_t panel_floats = static_cast<size_t>(row_blocks) * kLanes * kLanes;
        for (int first = panel_begin; first < panel_end; first += kMaxPackedPanels) {
            const int end = first + kMaxPackedPanels < panel_end ? first + kMaxPackedPanels : panel_end;
            for (int tile = 0; tile < args.k_tiles; tile += longest) {
                const PackedRange range{tile, args.k_tiles - tile < longest ? args.k_tiles - tile : longest, row_block,
                                        row_blocks};
                for (int panel = first; panel < end; panel += 2) {
                    float* const at = results + static_cast<size_t>(panel - first) * panel_floats;
                    if (panel + 1 < end) {
                        multiply_range<F, 2>(args, range, panel, unpacked, at);
                    } else {
                        multiply_range<F, 1>(args, range, panel, unpacked, at);
                    }
                }
            }
        }
    }
}

template <TileFormat F>
static void multiply_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    if (args.rows > 2 * kLanes) {
        multiply_many_rows<F>(args, panel_begin, panel_end, scratch);
    } else if (args.rows > kLanes) {
        multiply_few_rows<F, 2>(args, panel_begin, panel_end);
    } else {
        multiply_few_rows<F, 1>(args, panel_begin, panel_end);
    }
}

static void linear_packed_tiles(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    configure_full_tiles();
    switch (args.format) {
        case TileFormat::kQ4_0:
            multiply_packed<TileFormat::kQ4_0>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ4_1:
            multiply_packed<TileFormat::kQ4_1>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ5_0:
            multiply_packed<TileFormat::kQ5_0>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ5_1:
            multiply_packed<TileFormat::kQ5_1>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ8_0:
            multiply_packed<TileFormat::kQ8_0>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ4_K:
            multiply_packed<TileFormat::kQ4_K>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ5_K:
            multiply_packed<TileFormat::kQ5_K>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kQ6_K:
            multiply_packed<TileFormat::kQ6_K>(args, panel_begin, panel_end, scratch);
            break;
        case TileFormat::kBf16:
            break;
    }
    _tile_release();
}
