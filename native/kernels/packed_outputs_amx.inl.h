// Accumulators [16 outputs][columns] of tile products to where results belong.

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

// silu(gate) * up of 32 outputs of a block to where round_columns would have put step `step` of the next layer's
// inputs. totals  gates of the first and of the second sixteen outputs, then the same of what they multiply
static void store_gated(const PackedLinearArgs& args, const float* const (&totals)[4], int columns, int block,
                        int step) {
    uint16_t* const out = args.gated + static_cast<size_t>(block) * kLanes * args.gated_ld +
                          static_cast<size_t>(step) * static_cast<size_t>(columns) * kTileDepth;
    for (int i = 0; i < columns * kLanes; i += kLanes) {
        const Vec first = gated(load(totals[0] + i), load(totals[2] + i));
        const Vec second = gated(load(totals[1] + i), load(totals[3] + i));
        _mm512_store_si512(out + 2 * i, round_and_pair(first.v, second.v));
    }
}
