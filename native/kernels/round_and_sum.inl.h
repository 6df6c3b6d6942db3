// Inputs of packed linear layers on vectors: rounded to bfloat16, with the sums of what they became.

static void round_rows_and_sum(const float* x, size_t ldx, int row_begin, int row_end, int width, uint16_t* out,
                               size_t ldo, float* sums, size_t block_floats) {
    for (int row = row_begin; row < row_end; ++row) {
        const uint16_t* rounded = out + static_cast<size_t>(row) * ldo;
        round_rows(x + static_cast<size_t>(row) * ldx, ldx, 1, width, out + static_cast<size_t>(row) * ldo, ldo);
        float* to = sums + static_cast<size_t>(row / kLanes) * block_floats + row % kLanes;
        for (int i = 0; i < width; i += kTileDepth, to += kSumsPerTile * kLanes) {
            to[kLanes] = sum(load(rounded + i));
            to[2 * kLanes] = sum(load(rounded + i + kLanes));
            to[0] = to[kLanes] + to[2 * kLanes];
        }
    }
}
