// What the kernels of packed linear layers share: the format as a template argument, and sums of inputs by tile.

// f.operator()<F>() for the format at hand, any but bfloat16.
template <class Function>
FORERUN_INLINE void with_format(TileFormat format, const Function& f) {
    switch (format) {
        case TileFormat::kQ4_0:
            return f.template operator()<TileFormat::kQ4_0>();
        case TileFormat::kQ4_1:
            return f.template operator()<TileFormat::kQ4_1>();
        case TileFormat::kQ5_0:
            return f.template operator()<TileFormat::kQ5_0>();
        case TileFormat::kQ5_1:
            return f.template operator()<TileFormat::kQ5_1>();
        case TileFormat::kQ8_0:
            return f.template operator()<TileFormat::kQ8_0>();
        case TileFormat::kQ4_K:
            return f.template operator()<TileFormat::kQ4_K>();
        case TileFormat::kQ5_K:
            return f.template operator()<TileFormat::kQ5_K>();
        case TileFormat::kQ6_K:
            return f.template operator()<TileFormat::kQ6_K>();
        case TileFormat::kBf16:
            break;
    }
}

// Where the sums of 16 rows' inputs of a tile begin, see round_rows_and_sum.
template <TileFormat F>
FORERUN_INLINE const float* tile_sums(const float* sums, int tile) {
    return sums +
           (tile_shape(F).inputs == kTileDepth ? kSumsPerTile * tile : tile / 2 * kSumsPerTile + tile % 2 + 1) * kLanes;
}

constexpr size_t kStreamedOutputs = size_t{1} << 21;  // that no cache would keep, such as logits of many rows

FORERUN_INLINE bool streams_outputs(const PackedLinearArgs& args) {
    return static_cast<size_t>(args.rows) * static_cast<size_t>(args.columns) >= kStreamedOutputs;
}
