// PackedMatrix: one weight matrix [N, K] in bfloat16, in the order in which the kernels of every table stream it.
//
//   panel   16 columns (rows of W), all of K; panels follow each other
//   tile    1 KiB: 16 columns x 32 inputs of a panel; tiles follow each other in K
//   in a tile, row p holds inputs 2p and 2p+1 of the 16 columns, interleaved: (k0,n0) (k1,n0) (k0,n1) (k1,n1) ...
//   N and K are zero padded to whole tiles
//
// That is the operand order of TDPBF16PS; for plain vectors a shift and a mask give 16 columns of one input.
// Matrices over one input (q, k, v or gate, up) are packed one below the other as one matrix.
#pragma once

#include <cstdint>

#include "kernel_table.h"
#include "memory.h"
#include "thread_pool.h"

namespace forerun {

class PackedMatrix {
  public:
    // Takes its memory from the arena, which must outlive it. Throws std::invalid_argument on sizes below 1.
    PackedMatrix(Arena& arena, int64_t rows, int64_t cols);

    static size_t bytes(int64_t rows, int64_t cols);

    // Rounds rows start .. start+count-1 of W (float32, [count, K] contiguous) into place.
    // Throws std::out_of_range when they do not exist.
    void pack_rows(int64_t start, int64_t count, const float* values, ThreadPool& pool);

    int rows() const { return rows_; }
    int cols() const { return cols_; }
    int k_tiles() const { return k_tiles_; }
    int panels() const { return panels_; }
    const uint16_t* data() const { return data_; }

  private:
    int rows_, cols_, k_tiles_, panels_;
    uint16_t* data_;
};

}  // namespace forerun
