// Scales of packed tiles, a lane for an output, for any vectors.

// A weight is scale * (code - excess) + minimum; here the excess is part of the minimum.
struct LaneScales {
    Vec scale, minimum;
};

template <TileFormat F, int EXCESS>
FORERUN_INLINE LaneScales lane_scales(const uint8_t* header, const uint8_t* tile) {
    LaneScales scales = {halves(tile_shape(F).group_tiles > 1 ? header : tile), zero()};
    if constexpr (F == TileFormat::kQ6_K) {
        scales.scale = scales.scale * bytes(reinterpret_cast<const int8_t*>(tile));
    } else if constexpr (tile_shape(F).group_tiles > 1) {
        scales.scale = scales.scale * bytes(tile);
        scales.minimum = broadcast(-1.0f) * (halves(header + 2 * kLanes) * bytes(tile + kLanes));
    } else if constexpr (has_minimum(F)) {
        scales.minimum = halves(tile + 2 * kLanes);
    }
    static_assert(EXCESS == 0 || !has_minimum(F), "no format has both");
    if constexpr (EXCESS != 0) scales.minimum = scales.scale * broadcast(-static_cast<float>(EXCESS));
    return scales;
}
