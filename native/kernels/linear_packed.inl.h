// Linear layers over packed weights in tables without tile products: a few panels are unpacked into `scratch`, in the
// order of packed_matrix.h, and the table's own kernel multiplies them. So the arithmetic is that of bfloat16 weights.

static void unpack_panel(const PackedLinearArgs& args, int panel, uint16_t* out) {
    const TileShape shape = tile_shape(args.format);
    const uint8_t* const from = args.panels + static_cast<size_t>(panel) * args.panel_bytes;
    for (int tile = 0; tile < args.k_tiles; ++tile, out += kTileElements) {
        for (int o = 0; o < kLanes; ++o) {
            alignas(64) float values[kTileDepth];
            alignas(64) uint16_t weights[kTileDepth];
            tile_values(args.format, from + header_offset(shape, tile), from + tile_offset(shape, tile), o, values);
            for (int k = 0; k < kTileDepth; k += kLanes)
                store_bf16_first(weights + k, load(values + k), kLanes);
            for (int pair = 0; pair < kTileDepth / 2; ++pair)
                __builtin_memcpy(out + (pair * kLanes + o) * 2, weights + 2 * pair, 2 * sizeof(uint16_t));
        }
    }
}

static void linear_packed(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch) {
    uint16_t* const unpacked = reinterpret_cast<uint16_t*>(scratch);
    const size_t panel_elements = static_cast<size_t>(args.k_tiles) * kTileElements;
    for (int panel = panel_begin; panel < panel_end; panel += kUnpackedPanels) {
        const int panels = panel_end - panel < kUnpackedPanels ? panel_end - panel : kUnpackedPanels;
        for (int p = 0; p < panels; ++p)
            unpack_panel(args, panel + p, unpacked + p * panel_elements);
        const int column = panel * kLanes, left = args.columns - column;
        const LinearArgs some{args.x,
                              args.ldx,
                              args.rows,
                              unpacked,
                              args.k_tiles,
                              left < panels * kLanes ? left : panels * kLanes,
                              args.bias ? args.bias + column : nullptr,
                              args.out + column,
                              args.ldo};
        linear(some, 0, panels);
    }
}
