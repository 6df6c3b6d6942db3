#include "packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

#include "bf16.h"
#include "packed_tiles.h"

namespace forerun {

namespace {

int64_t ceil_div(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit;
}

int checked(int64_t size) {
    if (size < 1 || size > std::numeric_limits<int>::max() - kTileDepth) {
        throw std::invalid_argument("matrix sizes must be at least 1 and fit 31 bits, got " + std::to_string(size));
    }
    return static_cast<int>(size);
}

}  // namespace

size_t PackedMatrix::bytes(int64_t rows, int64_t cols, TileFormat format) {
    const TileShape shape = tile_shape(format);
    const int64_t groups = tile_count(shape, cols) / shape.group_tiles;
    return static_cast<size_t>(ceil_div(rows, kLanes) * groups) * group_bytes(shape);
}

PackedMatrix::PackedMatrix(Arena& arena, int64_t rows, int64_t cols, TileFormat format, TileOrder order)
    : format_(format),
      order_(order),
      rows_(checked(rows)),
      cols_(checked(cols)),
      k_tiles_(tile_count(tile_shape(format), cols)),
      panels_(static_cast<int>(ceil_div(rows, kLanes))),
      panel_bytes_(bytes(kLanes, cols, format)),
      data_(nullptr) {
    const TileShape shape = tile_shape(format);
    if (cols % shape.block_inputs) {
        throw std::invalid_argument("a row of " + std::to_string(cols) + " weights is no multiple of the blocks of " +
                                    shape.name);
    }
    data_ = reinterpret_cast<uint8_t*>(arena.take(bytes(rows, cols, format)));
}

size_t PackedMatrix::row_bytes() const {
    const TileShape shape = tile_shape(format_);
    return static_cast<size_t>(cols_ / shape.block_inputs) * shape.block_bytes;
}

void PackedMatrix::check_rows(int64_t start, int64_t count) const {
    if (start < 0 || count < 0 || start > rows_ - count) {
        throw std::out_of_range("rows " + std::to_string(start) + " to " + std::to_string(start + count) +
                                " are not in a matrix of " + std::to_string(rows_) + " rows");
    }
}

void PackedMatrix::pack_rows(int64_t start, int64_t count, const float* values, ThreadPool& pool) {
    if (is_packed()) throw std::invalid_argument("this matrix is packed from blocks");
    check_rows(start, count);
    if (count == 0) return;
    const int64_t first_panel = start / kLanes, end_panel = ceil_div(start + count, kLanes);
    pool.run(static_cast<int>(end_panel - first_panel), [&](int task, int) {
        const int64_t panel = first_panel + task;
        const int64_t begin = std::max(start, panel * kLanes), end = std::min(start + count, (panel + 1) * kLanes);
        for (int64_t row = begin; row < end; ++row) {
            const float* from = values + (row - start) * cols_;
            uint16_t* to =
                reinterpret_cast<uint16_t*>(data_ + static_cast<size_t>(panel) * panel_bytes_) + 2 * (row % kLanes);
            for (int k = 0; k < cols_; ++k)
                to[static_cast<size_t>(k / 2) * 2 * kLanes + k % 2] = bf16_from_float(from[k]);
        }
    });
}

void PackedMatrix::pack_blocks(int64_t start, int64_t count, const uint8_t* blocks, ThreadPool& pool) {
    if (!is_packed()) throw std::invalid_argument("this matrix is packed from float32");
    check_rows(start, count);
    if (start % kLanes) throw std::invalid_argument("blocks are packed from a multiple of 16 rows on");
    const size_t row = row_bytes();
    pool.run(static_cast<int>(ceil_div(count, kLanes)), [&](int task, int) {
        const int64_t first = static_cast<int64_t>(task) * kLanes;
        pack_panel(format_, order_, blocks + static_cast<size_t>(first) * row, row,
                   static_cast<int>(std::min<int64_t>(kLanes, count - first)), k_tiles_,
                   data_ + static_cast<size_t>(start / kLanes + task) * panel_bytes_);
    });
}

void PackedMatrix::read_row(int row, float* out) const {
    read_lane(format_, order_, data_ + static_cast<size_t>(row / kLanes) * panel_bytes_, k_tiles_, row % kLanes, out);
}

TileFormat find_format(const char* name) {
    for (int i = 0; i <= static_cast<int>(TileFormat::kQ6_K); ++i) {
        const TileFormat format = static_cast<TileFormat>(i);
        if (std::strcmp(tile_shape(format).name, name) == 0) return format;
    }
    throw std::invalid_argument("no packed weight format named '" + std::string(name) + "'");
}

}  // namespace forerun
