#include "kv_store.h"

#include <cstring>
#include <limits>
#include <stdexcept>

namespace forerun {

namespace {

size_t layer_block_bytes(const KvGeometry& layer, int block_size) {
    return 2 * static_cast<size_t>(layer.num_heads) * layer.head_dim * block_size * element_bytes(layer.codec);
}

size_t total_bytes(int num_blocks, int block_size, const std::vector<KvGeometry>& layers) {
    if (num_blocks < 1 || block_size < kLanes || block_size % kLanes != 0) {
        throw std::invalid_argument("KV blocks must be at least 1, of a multiple of 16 slots");
    }
    if (static_cast<int64_t>(num_blocks) * block_size > std::numeric_limits<int>::max()) {
        throw std::invalid_argument("KV slots must fit 31 bits");
    }
    size_t bytes = 0;
    for (const KvGeometry& layer : layers) {
        if (layer.num_heads < 1 || layer.head_dim < 1) throw std::invalid_argument("KV heads must not be empty");
        bytes += layer_block_bytes(layer, block_size) * static_cast<size_t>(num_blocks);
    }
    return bytes;
}

}  // namespace

KvCodec find_kv_codec(const std::string& name) {
    if (name == "bf16") return KvCodec::kBf16;
    if (name == "fp32") return KvCodec::kFp32;
    throw std::invalid_argument("KV codec must be bf16 or fp32, got '" + name + "'");
}

size_t element_bytes(KvCodec codec) {
    return codec == KvCodec::kFp32 ? sizeof(float) : sizeof(uint16_t);
}

bool can_tile_kv(const KernelTable& table, KvCodec codec, int head_dim) {
    return table.tiles_kv && codec == KvCodec::kBf16 && is_tiled_head(head_dim);
}

KvStore::KvStore(const KernelTable& table, int num_blocks, int block_size, const std::vector<KvGeometry>& layers)
    : num_blocks_(num_blocks), block_size_(block_size), buffer_(total_bytes(num_blocks, block_size, layers)) {
    char* base = buffer_.data();
    for (const KvGeometry& layer : layers) {
        const size_t block_bytes = layer_block_bytes(layer, block_size);
        const bool is_tiled = can_tile_kv(table, layer.codec, layer.head_dim);
        layers_.push_back(
            KvLayer{base, block_bytes, block_size, layer.num_heads, layer.head_dim, is_tiled, layer.codec});
        base += block_bytes * static_cast<size_t>(num_blocks);
    }
}

void KvStore::check_block(int block) const {
    if (block < 0 || block >= num_blocks_) {
        throw std::out_of_range("KV block " + std::to_string(block) + " of " + std::to_string(num_blocks_));
    }
}

void KvStore::copy_blocks(const std::vector<std::pair<int, int>>& source_target) {
    for (const auto& [source, target] : source_target) {
        check_block(source);
        check_block(target);
    }
    for (const auto& [source, target] : source_target) {
        if (source == target) continue;
        for (const KvLayer& layer : layers_)
            std::memcpy(block(layer, target), block(layer, source), layer.block_bytes);
    }
}

void KvStore::clear_blocks(const std::vector<int>& blocks) {
    for (const int index : blocks)
        check_block(index);
    for (const int index : blocks) {
        for (const KvLayer& layer : layers_)
            std::memset(block(layer, index), 0, layer.block_bytes);
    }
}

void KvStore::move_slots(const std::vector<std::pair<int, int>>& source_target) {
    for (const auto& [source, target] : source_target) {
        if (source < 0 || target < 0 || source >= num_slots() || target >= num_slots()) {
            throw std::out_of_range("KV slot move from " + std::to_string(source) + " to " + std::to_string(target) +
                                    " of " + std::to_string(num_slots()));
        }
    }
    for (const auto& [source, target] : source_target) {
        if (source == target) continue;
        const size_t from_slot = static_cast<size_t>(source % block_size_), to_slot = target % block_size_;
        for (const KvLayer& layer : layers_) {
            const char* from = block(layer, source / block_size_);
            char* to = block(layer, target / block_size_);
            const size_t half = layer.block_bytes / 2;
            const size_t whole = layer.is_tiled ? 0 : half, spread = half - whole;
            copy_whole(layer, from + whole, from_slot, to + whole, to_slot);
            copy_spread(layer, from + spread, from_slot, to + spread, to_slot);
        }
    }
}

// One slot of a half laid out [G, S, D].
void KvStore::copy_whole(const KvLayer& layer, const char* from, size_t from_slot, char* to, size_t to_slot) const {
    const size_t bytes = static_cast<size_t>(layer.head_dim) * element_bytes(layer.codec);
    for (size_t head = 0; head < static_cast<size_t>(layer.num_heads); ++head) {
        const size_t first = head * static_cast<size_t>(block_size_);
        std::memcpy(to + (first + to_slot) * bytes, from + (first + from_slot) * bytes, bytes);
    }
}

// One slot of a half laid out [G, D, S].
void KvStore::copy_spread(const KvLayer& layer, const char* from, size_t from_slot, char* to, size_t to_slot) const {
    const size_t rows = static_cast<size_t>(layer.num_heads) * layer.head_dim, size = element_bytes(layer.codec);
    for (size_t row = 0; row < rows; ++row) {
        const size_t first = row * static_cast<size_t>(block_size_);
        std::memcpy(to + (first + to_slot) * size, from + (first + from_slot) * size, size);
    }
}

}  // namespace forerun
