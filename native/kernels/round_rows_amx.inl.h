// Rounding several rows at once with the sums of their inputs. In `sums` the rows lie side by side, so that two threads
// with rows of one block write the same cache lines: once each here, not once for every row.
//
// A sum has the shape of `sum`, bit for bit: halves to halves. Rows are put together while they are added up, so
// that every addition has a full vector.

// A tile's inputs of up to sixteen rows.
struct TileInputs {
    const float* x;
    size_t ldx;
    int rows, width;  // inputs behind `width` are zero
    uint16_t* out;
    size_t ldo;
};

// For the first and the last sixteen inputs.
struct HalfSums {
    __m512 low, high;
};

template <class F>
FORERUN_INLINE HalfSums add_halves(const HalfSums& a, const HalfSums& b, const F& add) {
    return {add(a.low, b.low), add(a.high, b.high)};
}

FORERUN_INLINE HalfSums round_one(const TileInputs& tile, int row) {
    if (row >= tile.rows) return {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const float* const from = tile.x + row * tile.ldx;
    const __m512i rounded =
        round_pair(load_first(from, tile.width).v, load_first(from + kLanes, tile.width - kLanes).v);
    _mm512_storeu_si512(tile.out + row * tile.ldo, rounded);
    return {widen(_mm512_castsi512_si256(rounded)).v, widen(_mm512_extracti64x4_epi64(rounded, 1)).v};
}
// In lanes 0 to 7 parts of the sum of `row`, in the others of the next.
FORERUN_INLINE HalfSums round_two(const TileInputs& tile, int row) {
    return add_halves(round_one(tile, row), round_one(tile, row + 1),
                      [](__m512 a, __m512 b) __attribute__((always_inline)) {
                          return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
                      });
}
// In each four lanes parts of the sum of one row.
FORERUN_INLINE HalfSums round_four(const TileInputs& tile, int row) {
    return add_halves(round_two(tile, row), round_two(tile, row + 2),
                      [](__m512 a, __m512 b) __attribute__((always_inline)) {
                          return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
                      });
}
// In each four lanes two parts of the sum of one row, and two of that of the fourth behind it.
FORERUN_INLINE HalfSums round_eight(const TileInputs& tile, int row) {
    return add_halves(round_four(tile, row), round_four(tile, row + 4),
                      [](__m512 a, __m512 b) __attribute__((always_inline)) {
                          const __m512d c = _mm512_castps_pd(a), d = _mm512_castps_pd(b);
                          return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(c, d)),
                                               _mm512_castpd_ps(_mm512_unpackhi_pd(c, d)));
                      });
}
// The sums of sixteen rows, in their order.
FORERUN_INLINE HalfSums round_sixteen(const TileInputs& tile) {
    const HalfSums first = round_eight(tile, 0);
    const HalfSums last = tile.rows > 8 ? round_eight(tile, 8) : HalfSums{_mm512_setzero_ps(), _mm512_setzero_ps()};
    return add_halves(first, last, [](__m512 a, __m512 b) __attribute__((always_inline)) {
        const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
        return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), sums);
    });
}

// `rows` rows of one block of sixteen, from the first at x on; its sums begin at `sums`.
FORERUN_INLINE void round_some_rows(const float* x, size_t ldx, int rows, int width, uint16_t* out, size_t ldo,
                                    float* sums) {
    const __mmask16 here = first_lanes(rows).bits;
    for (int i = 0; i < width; i += kTileDepth, sums += kSumsPerTile * kLanes) {
        const HalfSums found = round_sixteen({x + i, ldx, rows, width - i, out + i, ldo});
        _mm512_mask_storeu_ps(sums, here, _mm512_add_ps(found.low, found.high));
        _mm512_mask_storeu_ps(sums + kLanes, here, found.low);
        _mm512_mask_storeu_ps(sums + 2 * kLanes, here, found.high);
    }
    for (int i = (width + kTileDepth - 1) / kTileDepth * kTileDepth; i < static_cast<int>(ldo); i += kTileDepth) {
        for (int row = 0; row < rows; ++row)
            _mm512_storeu_si512(out + row * ldo + i, _mm512_setzero_si512());
    }
}

static void round_blocks_and_sum(const float* x, size_t ldx, int row_begin, int row_end, int width, uint16_t* out,
                                 size_t ldo, float* sums, size_t block_floats) {
    for (int row = row_begin, next; row < row_end; row = next) {
        next = (row / kLanes + 1) * kLanes;
        next = next < row_end ? next : row_end;
        float* const sum = sums + static_cast<size_t>(row / kLanes) * block_floats + row % kLanes;
        const float* const from = x + static_cast<size_t>(row) * ldx;
        uint16_t* const to = out + static_cast<size_t>(row) * ldo;
        if (next - row == kLanes) {
            round_some_rows(from, ldx, kLanes, width, to, ldo, sum);
        } else if (next - row == 1) {
            round_rows_and_sum(x, ldx, row, next, width, out, ldo, sums, block_floats);
        } else {
            round_some_rows(from, ldx, next - row, width, to, ldo, sum);
        }
    }
}
