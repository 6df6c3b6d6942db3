// PackedMatrix: one weight matrix [N, K], in the order in which the kernels of every table stream it.
//
//   panel   16 columns (rows of W), all of K; panels follow each other
//   tile    16 columns x 32 inputs of a panel; tiles follow each other in K
//
// In bfloat16 a tile is 1 KiB and holds inputs 2p and 2p+1 of the 16 columns in its row p, interleaved:
//   (k0,n0) (k1,n0) (k0,n1) (k1,n1) ...
// N and K are zero padded to whole tiles. That is the second operand of TDPBF16PS; for plain vectors a shift and a mask
// give 16 columns of one input. The other formats keep the file's bits, see tile_formats.h.
//
// Matrices over one input (q, k, v or gate, up) are packed one below the other as one matrix.
#pragma once

#include <cstdint>

#include "kernel_table.h"
#include "memory.h"
#include "thread_pool.h"

namespace forerun {

class PackedMatrix {
  public:
    // Takes its memory from the arena, which must outlive it. Throws std::invalid_argument on sizes below 1, or when
    // K is no multiple of the format's blocks.
    PackedMatrix(Arena& arena, int64_t rows, int64_t cols, TileFormat format = TileFormat::kBf16,
                 TileOrder order = TileOrder::kPairs);

    static size_t bytes(int64_t rows, int64_t cols, TileFormat format = TileFormat::kBf16);

    // Rounds rows start .. start+count-1 of W (float32, [count, K] contiguous) into place. For bfloat16 only.
    // Throws std::out_of_range when they do not exist.
    void pack_rows(int64_t start, int64_t count, const float* values, ThreadPool& pool);

    // Rearranges the blocks of rows start .. start+count-1 as the file has them. For the other formats only. `start`
    // and `count` are multiples of 16, save for a count that ends with the matrix or is followed by no call that
    // packs the rest of its panel.
    void pack_blocks(int64_t start, int64_t count, const uint8_t* blocks, ThreadPool& pool);

    // Row `row` of W as float32.
    void read_row(int row, float* out) const;

    TileFormat format() const { return format_; }
    TileOrder order() const { return order_; }
    bool is_packed() const { return format_ != TileFormat::kBf16; }
    int rows() const { return rows_; }
    int cols() const { return cols_; }
    int k_tiles() const { return k_tiles_; }
    int panels() const { return panels_; }
    size_t panel_bytes() const { return panel_bytes_; }
    size_t row_bytes() const;  // of a row in the file
    const uint16_t* data() const { return reinterpret_cast<const uint16_t*>(data_); }
    const uint8_t* tiles() const { return data_; }

  private:
    void check_rows(int64_t start, int64_t count) const;

    TileFormat format_;
    TileOrder order_;
    int rows_, cols_, k_tiles_, panels_;
    size_t panel_bytes_;
    uint8_t* data_;
};

// The format of a name as GGUF has it, "BF16" included. Throws std::invalid_argument.
TileFormat find_format(const char* name);

}  // namespace forerun
