// Shapes of the eight tile registers: tiles that are not set may not be used.

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    FORERUN_MEMBER void set(int tile, int num_rows, int bytes) {
        rows[tile] = static_cast<uint8_t>(num_rows);
        row_bytes[tile] = static_cast<uint16_t>(bytes);
    }
    FORERUN_MEMBER void load() const {
        // gcc 12 declares only 8 bytes of the configuration as input and may drop the other stores without this
        // barrier.
        __asm__ volatile("" : : "r"(this) : "memory");
        _tile_loadconfig(this);
    }
};
