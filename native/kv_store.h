// KvStore: keys and values of every layer, paged. One allocation, made once.
//
//   layer 0: block 0 [K | V], block 1 [K | V], ...   layer 1: block 0 ...
//                 K of a block  V of a block
//   plain         [G, D, S]     [G, S, D]     positions are the lanes of a vector, so scores need no horizontal sums
//   tiled         [G, S, D]     [G, D, S]     both lie as left operands of tile products over D and over positions
//
// Which of the two is up to the kernel table, see KernelTable::tiles_kv.
//
// Slot s is position s % S of block s / S. Every layer has a codec of its own, "bf16" or "fp32". Moves and copies copy
// bytes and never re-encode.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernel_table.h"
#include "memory.h"

namespace forerun {

struct KvGeometry {
    int num_heads;  // G
    int head_dim;   // D
    KvCodec codec;
};

// Throws std::invalid_argument on an unknown name.
KvCodec find_kv_codec(const std::string& name);

// Bytes of one stored number.
size_t element_bytes(KvCodec codec);

// Does a table take such KV as tiles?
bool can_tile_kv(const KernelTable& table, KvCodec codec, int head_dim);

class KvStore {
  public:
    // Throws std::invalid_argument on sizes below 1 or a block size that is no multiple of 16.
    KvStore(const KernelTable& table, int num_blocks, int block_size, const std::vector<KvGeometry>& layers);

    int num_blocks() const { return num_blocks_; }
    int block_size() const { return block_size_; }
    int64_t num_slots() const { return static_cast<int64_t>(num_blocks_) * block_size_; }
    int num_layers() const { return static_cast<int>(layers_.size()); }
    size_t bytes() const { return buffer_.bytes(); }
    const KvLayer& layer(int index) const { return layers_[static_cast<size_t>(index)]; }

    // In order; all layers. Throw std::out_of_range, before anything is changed, when a block or slot does not exist.
    void copy_blocks(const std::vector<std::pair<int, int>>& source_target);
    void move_slots(const std::vector<std::pair<int, int>>& source_target);
    void clear_blocks(const std::vector<int>& blocks);

  private:
    void check_block(int block) const;
    void copy_whole(const KvLayer& layer, const char* from, size_t from_slot, char* to, size_t to_slot) const;
    void copy_spread(const KvLayer& layer, const char* from, size_t from_slot, char* to, size_t to_slot) const;
    char* block(const KvLayer& layer, int index) const { return layer.base + index * layer.block_bytes; }

    int num_blocks_, block_size_;
    HugeBuffer buffer_;
    std::vector<KvLayer> layers_;
};

}  // namespace forerun
