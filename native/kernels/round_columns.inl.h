// Inputs of packed linear layers as the second operand of tile products: blocks of up to sixteen rows, each row a
// column.
//
//   block   rows 16 b .. 16 b + 15, 16 x `ldo` words apart
//   step    32 inputs of them: [16 pairs][columns][2] bfloat16, without gaps; input j is paired with 16 + j
//
// `columns` is tile_columns(rows of the whole batch). Columns of rows that do not exist hold anything.

// Columns of a block that has the first of `rows` rows: few rows lie close together.
FORERUN_INLINE int tile_columns(int rows) {
    int columns = 1;
    while (columns < rows && columns < kLanes)
        columns *= 2;
    return columns;
}

// Sixteen pairs of bfloat16.
FORERUN_INLINE __m512i round_and_pair(__m512 first, __m512 second) {
    const __m512bh rounded = _mm512_cvtne2ps_pbh(second, first);
    __m512i words;
    __builtin_memcpy(&words, &rounded, sizeof words);
    alignas(64) static constexpr uint16_t kTurns[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(kTurns), words);
}

// 32 numbers of a row as 16 pairs, j with 16 + j; what is behind `width` is zero.
FORERUN_INLINE __m512i round_pairs(const float* x, int width) {
    return round_and_pair(load_first(x, width).v, load_first(x + kLanes, width - kLanes).v);
}

// Rows [first, end) of a block; x its first such row, out the block.
static void round_some_columns(const float* x, size_t ldx, int first, int end, int width, int columns, uint16_t* out) {
    const int rows = end - first, steps = (width + kTileDepth - 1) / kTileDepth;
    const __m512i places = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                              _mm512_set1_epi32(columns));
    const __mmask16 here = first_lanes(rows).bits;
    for (int step = 0; step < steps; ++step, x += kTileDepth, width -= kTileDepth, out += columns * kTileDepth) {
        if (rows < 4) {
            for (int row = 0; row < rows; ++row) {
                const __m512i pairs = round_pairs(x + static_cast<size_t>(row) * ldx, width);
                if (columns == 1) {
                    _mm512_storeu_si512(out, pairs);
                } else {
                    _mm512_i32scatter_epi32(out + 2 * (first + row), places, pairs, 4);
                }
            }
            continue;
        }
        __m512i lines[16];
        FORERUN_UNROLL
        for (int row = 0; row < 16; ++row)
            lines[row] = row < rows ? round_pairs(x + static_cast<size_t>(row) * ldx, width) : _mm512_setzero_si512();
        transpose(lines);
        FORERUN_UNROLL
        for (int pair = 0; pair < 16; ++pair)
            _mm512_mask_storeu_epi32(out + 2 * (static_cast<ptrdiff_t>(pair) * columns + first), here, lines[pair]);
    }
}

static void round_columns(const float* x, size_t ldx, int row_begin, int row_end, int all_rows, int width,
                          uint16_t* out, size_t ldo) {
    const int columns = tile_columns(all_rows);
    for (int row = row_begin, next; row < row_end; row = next) {
        const int block = row / kLanes;
        next = (block + 1) * kLanes < row_end ? (block + 1) * kLanes : row_end;
        round_some_columns(x + static_cast<size_t>(row) * ldx, ldx, row % kLanes, next - block * kLanes, width, columns,
                           out + static_cast<size_t>(block) * kLanes * ldo);
    }
}
