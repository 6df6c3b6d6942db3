// Rearranges the blocks of a model file into the tiles of tile_formats.h, and reads single rows back.
#pragma once

#include <cstdint>

#include "tile_formats.h"

namespace forerun {

// Packs `count` rows (1 to 16) of blocks, `row_bytes` apart, as one panel; rows that are missing become zero.
void pack_panel(TileFormat format, TileOrder order, const uint8_t* rows, size_t row_bytes, int count, int tiles,
                uint8_t* panel);

// Weights of output `lane` of a panel.
void read_lane(TileFormat format, TileOrder order, const uint8_t* panel, int tiles, int lane, float* out);

}  // namespace forerun
