// Steps of a panel, 32 inputs of 16 outputs each, unpacked to scaled bfloat16 for tile products.

// Ahead of the step in use: into the second level, shared by the panels that are read together, and into the first.
constexpr size_t kFarBytes = 8192, kNearBytes = 1024;

// As the assembler sees them, so that they stay where they are: the compiler would put them side by side.
FORERUN_INLINE void fetch_far(const uint8_t* p) {
    __asm__ volatile("prefetcht1 %0" : : "m"(*p));
}
FORERUN_INLINE void fetch_near(const uint8_t* p) {
    __asm__ volatile("prefetcht0 %0" : : "m"(*p));
}

// Puts an array in memory: gcc's tile loads do not say that they read it.
template <class Array>
FORERUN_INLINE void finish_stores(const Array& array) {
    __asm__ volatile("" : : "m"(array));
}

template <TileFormat F>
FORERUN_INLINE int step_count(const PackedLinearArgs& args) {
    return args.k_tiles / kTilesPerStep<F>;
}

template <TileFormat F>
FORERUN_INLINE const uint8_t* step_tile(const uint8_t* panel, int step) {
    return panel + tile_offset(tile_shape(F), step * kTilesPerStep<F>);
}

// Scales of the step that is unpacked and of the one behind it, so that they are stored well before they are read.
struct PassScales {
    GroupScales group;
    RowScales steps[2];
};

template <TileFormat F>
FORERUN_INLINE void begin_group(const uint8_t* panel, int step, PassScales& scales) {
    store_group<F>(panel + header_offset(tile_shape(F), step * kTilesPerStep<F>), scales.group);
}

// Before the first step of a pass over a panel.
template <TileFormat F>
FORERUN_INLINE void begin_scales(const uint8_t* panel, int step, PassScales& scales) {
    begin_group<F>(panel, step, scales);
    store_scales<F>(scales.group, step_tile<F>(panel, step), scales.steps[step & 1]);
}

// A panel that streams past, and where its stream goes on.
struct StreamedPanel {
    const uint8_t *from, *next;
    size_t bytes;

    FORERUN_MEMBER const uint8_t* ahead(size_t offset) const {
        return offset < bytes ? from + offset : next + (offset - bytes);
    }
};

// A step of a pass, which takes those before `end`, to [16][32]. fetch(line) is called in even intervals for every
// line of the step.
template <TileFormat F, class Fetch>
FORERUN_INLINE void unpack_step(const uint8_t* panel, int step, int end, PassScales& scales, uint16_t* out,
                                const Fetch& fetch) {
    constexpr TileShape kShape = tile_shape(F);
    constexpr int kGroupSteps = kShape.group_tiles / kTilesPerStep<F>;
    constexpr int kLines = static_cast<int>((kTilesPerStep<F> * kShape.tile_bytes + 63) / 64);
    const auto fetch_for = [&](int output) __attribute__((always_inline)) {
        const int line = (output * kLines + kLanes - 1) / kLanes;  // the first that is due at this output or later
        if (line * kLanes < (output + 1) * kLines) fetch(line);
    };
    if (step + 1 < end) {
        if (kGroupSteps > 1 && (step + 1) % kGroupSteps == 0) begin_group<F>(panel, step + 1, scales);
        store_scales<F>(scales.group, step_tile<F>(panel, step + 1), scales.steps[(step + 1) & 1]);
    }
    unpack_rows<F>(step_tile<F>(panel, step), scales.steps[step & 1], out, fetch_for);
}

// The same from a stream, one of `streams`: what it needs soon is asked for on the way.
template <TileFormat F>
FORERUN_INLINE void unpack_streamed(const StreamedPanel& panel, int streams, int step, int end, PassScales& scales,
                                    uint16_t* out) {
    const size_t offset = static_cast<size_t>(step_tile<F>(panel.from, step) - panel.from);
    const uint8_t* const far = panel.ahead(offset + kFarBytes / static_cast<size_t>(streams));
    const uint8_t* const near = panel.ahead(offset + kNearBytes);
    unpack_step<F>(panel.from, step, end, scales, out, [&](int line) __attribute__((always_inline)) {
        fetch_far(far + 64 * line);
        fetch_near(near + 64 * line);
    });
}
