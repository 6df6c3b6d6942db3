#include "packed_matrix.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "bf16.h"

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

size_t PackedMatrix::bytes(int64_t rows, int64_t cols) {
    return static_cast<size_t>(ceil_div(rows, kLanes) * ceil_div(cols, kTileDepth)) * kTileElements * sizeof(uint16_t);
}

PackedMatrix::PackedMatrix(Arena& arena, int64_t rows, int64_t cols)
    : rows_(checked(rows)),
      cols_(checked(cols)),
      k_tiles_(static_cast<int>(ceil_div(cols, kTileDepth))),
      panels_(static_cast<int>(ceil_div(rows, kLanes))),
      data_(reinterpret_cast<uint16_t*>(arena.take(bytes(rows, cols)))) {}

void PackedMatrix::pack_rows(int64_t start, int64_t count, const float* values, ThreadPool& pool) {
    if (start < 0 || count < 0 || start > rows_ - count) {
        throw std::out_of_range("rows " + std::to_string(start) + " to " + std::to_string(start + count) +
                                " are not in a matrix of " + std::to_string(rows_) + " rows");
    }
    if (count == 0) return;
    const int64_t first_panel = start / kLanes, end_panel = ceil_div(start + count, kLanes);
    pool.run(static_cast<int>(end_panel - first_panel), [&](int task, int) {
        const int64_t panel = first_panel + task;
        const int64_t begin = std::max(start, panel * kLanes), end = std::min(start + count, (panel + 1) * kLanes);
        for (int64_t row = begin; row < end; ++row) {
            const float* from = values + (row - start) * cols_;
            uint16_t* to = data_ + static_cast<size_t>(panel) * k_tiles_ * kTileElements + 2 * (row % kLanes);
            for (int k = 0; k < cols_; ++k)
                to[static_cast<size_t>(k / 2) * 2 * kLanes + k % 2] = bf16_from_float(from[k]);
        }
    });
}

}  // namespace forerun
