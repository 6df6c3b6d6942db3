// Linear layers over packed weights in tables without tile products: a few panels are unpacked into `scratch`, in the
// order of packed_matrix.h, and the table's own kernel multiplies them. So the arithmetic is that of bfloat16 weights.

constexpr size_t kPackedAhead = 2048;  // bytes

template <TileFormat F>
static void unpack_panel(const PackedLinearArgs& args, int panel, uint16_t* out) {
    constexpr TileShape kShape = tile_shape(F);
    const uint8_t* const from = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    for (int tile = 0; tile < args.k_tiles; ++tile, out += kLanes * kShape.inputs) {
        const uint8_t* const at = from + tile_offset(kShape, tile);
        for (size_t line = 0; line < kShape.tile_bytes; line += 64)
            prefetch(at + kPackedAhead + line);
        unpack_lanes<F>(from + header_offset(kShape, tile), at, out);
    }
}

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

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    uint16_t* const unpacked = reinterpret_cast<uint16_t*>(scratch);
    const int k_tiles = args.k_tiles * tile_shape(args.format).inputs / kTileDepth;  // of bfloat16
    const size_t panel_elements = static_cast<size_t>(k_tiles) * kTileElements;
    for (int panel = panel_begin; panel < panel_end; panel += kUnpackedPanels) {
        const int panels = panel_end - panel < kUnpackedPanels ? panel_end - panel : kUnpackedPanels;
        for (int p = 0; p < panels; ++p)
            with_format(args.format,
                        [&]<TileFormat F> { unpack_panel<F>(args, panel + p, unpacked + p * panel_elements); });
        const int column = panel * kLanes, left = args.columns - column;
        const LinearArgs some{args.x,
                              args.ldx,
                              args.rows,
                              unpacked,
                              k_tiles,
                              left < panels * kLanes ? left : panels * kLanes,
                              args.bias ? args.bias + column : nullptr,
                              args.out + column,
                              args.ldo};
        linear(some, 0, panels);
    }
}
