// Linear layers on plain vectors. A column is a lane; each output is one accumulator that takes the inputs in ascending
// order, so kernels for 1, 2, 4 and 8 rows give the same bits.

template <int ROWS>
FORERUN_INLINE void linear_rows(const LinearArgs& args, int row, int panel) {
    Vec total[ROWS];
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r)
        total[r] = zero();
    const uint16_t* weights = args.panels + static_cast<size_t>(panel) * args.k_tiles * kTileElements;
    const uint16_t* x = args.x + row * args.ldx;
    for (int pair = 0; pair < args.k_tiles * (kTileDepth / 2); ++pair) {
        Vec even, odd;
        load_pairs(weights + static_cast<size_t>(pair) * 2 * kLanes, even, odd);
        FORERUN_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            const uint16_t* inputs = x + r * args.ldx + 2 * pair;
            total[r] = fma(broadcast(float_from_bf16(inputs[0])), even, total[r]);
            total[r] = fma(broadcast(float_from_bf16(inputs[1])), odd, total[r]);
        }
    }
    const int column = panel * kLanes, lanes = args.columns - column;
    FORERUN_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        if (args.bias) total[r] = total[r] + load_first(args.bias + column, lanes);
        store_first(args.out + (row + r) * args.ldo + column, total[r], lanes);
    }
}

static void linear(const LinearArgs& args, int panel_begin, int panel_end) {
    for (int panel = panel_begin; panel < panel_end; ++panel) {
        int row = 0;
        for (; row + 8 <= args.rows; row += 8)
            linear_rows<8>(args, row, panel);
        for (; row + 4 <= args.rows; row += 4)
            linear_rows<4>(args, row, panel);
        for (; row + 2 <= args.rows; row += 2)
            linear_rows<2>(args, row, panel);
        for (; row < args.rows; ++row)
            linear_rows<1>(args, row, panel);
    }
}
