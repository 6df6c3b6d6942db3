// Scales of packed tiles, a lane for an output, for any vectors.

// A weight is scale * (code - excess) + minimum; here the excess is part of the minimum.
struct LaneScales {
    Vec scale, minimum;
};

// What the tiles of a group share, from its header; nothing where groups are single tiles.
template <TileFormat F>
FORERUN_INLINE LaneScales group_scales(const uint8_t* header) {
    if constexpr (tile_shape(F).group_tiles == 1) return {zero(), zero()};
    LaneScales scales = {halves(header), zero()};
    if constexpr (has_minimum(F)) scales.minimum = broadcast(-1.0f) * halves(header + 2 * kLanes);
    return scales;
}

template <TileFormat F, int EXCESS>
FORERUN_INLINE LaneScales lane_scales(const LaneScales& group, const uint8_t* tile) {
    LaneScales scales = {zero(), zero()};
    if constexpr (F == TileFormat::kQ6_K) {
        scales.scale = group.scale * bytes(reinterpret_cast<const int8_t*>(tile));
    } else if constexpr (tile_shape(F).group_tiles > 1) {
        scales.scale = group.scale * bytes(tile);
        scales.minimum = group.minimum * bytes(tile + kLanes);
    } else {
        scales.scale = halves(tile);
        if constexpr (has_minimum(F)) scales.minimum = halves(tile + 2 * kLanes);
    }
    static_assert(EXCESS == 0 || !has_minimum(F), "no format has both");
    if constexpr (EXCESS != 0) scales.minimum = scales.scale * broadcast(-static_cast<float>(EXCESS));
    return scales;
}

template <TileFormat F, int EXCESS>
FORERUN_INLINE LaneScales lane_scales(const uint8_t* header, const uint8_t* tile) {
    return lane_scales<F, EXCESS>(group_scales<F>(header), tile);
}
