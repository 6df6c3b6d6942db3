// Program::run's checks: no index of a batch may leave the array it points into. They cost a few microseconds and are
// what makes a bug in the scheduler an exception instead of silent corruption.
#include <stdexcept>
#include <string>

#include "program.h"

namespace forerun {

namespace {

[[noreturn]] void fail(const std::string& message) {
    throw std::invalid_argument("bad batch: " + message);
}

void in_range(int64_t value, int64_t begin, int64_t end, const char* what) {
    if (value < begin || value >= end) {
        fail(std::string(what) + " " + std::to_string(value) + " is not in " + std::to_string(begin) + " to " +
             std::to_string(end - 1));
    }
}

}  // namespace

void Program::check_store(const KvStore& store) const {
    for (const Op& op : ops_) {
        if (op.kind != Kind::kWriteKv && op.kind != Kind::kAttention) continue;
        in_range(op.layer, 0, store.num_layers(), "layer");
        const KvLayer& layer = store.layer(op.layer);
        const int heads = op.kind == Kind::kWriteKv ? op.num_kv_heads : op.num_heads;
        if (layer.num_heads != op.num_kv_heads || layer.head_dim * heads != op.a.width) {
            fail("the KV store of layer " + std::to_string(op.layer) + " has another shape than the model");
        }
        if (layer.is_tiled != can_tile_kv(table_, layer.codec, layer.head_dim)) {
            fail("the KV store is laid out for another kernel table");
        }
    }
}

void Program::check_batch(const BatchArrays& batch, const KvStore& store) const {
    in_range(batch.num_rows, 0, static_cast<int64_t>(max_rows_) + 1, "number of rows");
    in_range(batch.num_outputs, 0, static_cast<int64_t>(max_outputs_) + 1, "number of output rows");
    for (int row = 0; row < batch.num_rows; ++row) {
        if (vocab_ > 0) in_range(batch.tokens[row], 0, vocab_, "token id");
        in_range(batch.positions[row], 0, max_positions_, "position");
        in_range(batch.slots[row], 0, store.num_slots(), "slot");
    }
    for (int i = 0; i < batch.num_outputs; ++i)
        in_range(batch.output_rows[i], 0, batch.num_rows, "output row");
    in_range(batch.query_start[0], 0, 1, "first query_start");
    in_range(batch.query_start[batch.num_sequences], batch.num_rows, static_cast<int64_t>(batch.num_rows) + 1,
             "last query_start");
    for (int s = 0; s < batch.num_sequences; ++s) {
        in_range(batch.query_start[s + 1], batch.query_start[s], static_cast<int64_t>(batch.num_rows) + 1,
                 "query_start");
    }
    for (int s = 0; s < batch.num_sequences; ++s)
        check_sequence(batch, store, s);
}

void Program::check_sequence(const BatchArrays& batch, const KvStore& store, int sequence) const {
    const int begin = batch.query_start[sequence], end = batch.query_start[sequence + 1];
    const int root = batch.tree_root[sequence];
    in_range(root, -1, max_positions_, "tree root");
    int keys = 0;  // that are read through the block table
    for (int row = begin; row < end; ++row) {
        const uint64_t ancestors = batch.ancestors[row];
        if (ancestors == 0) {
            keys = batch.positions[row] + 1 > keys ? batch.positions[row] + 1 : keys;
            continue;
        }
        if (root < 0) fail("a row with ancestors needs its sequence's tree root");
        if (!(ancestors & 1)) fail("a tree row's ancestors must begin with the root");
        in_range(batch.positions[row], root + __builtin_popcountll(ancestors) - 1,
                 root + int64_t{__builtin_popcountll(ancestors)}, "position of a tree row");
        const int node = 63 - __builtin_clzll(ancestors);  // the row itself
        keys = root + node + 1 > keys ? root + node + 1 : keys;
    }
    const int blocks = (keys + store.block_size() - 1) / store.block_size();
    in_range(blocks, 0, static_cast<int64_t>(batch.table_width) + 1, "blocks needed");
    for (int i = 0; i < blocks; ++i) {
        in_range(batch.block_table[static_cast<size_t>(sequence) * batch.table_width + i], 0, store.num_blocks(),
                 "block");
    }
    const int32_t* blocks_of = batch.block_table + static_cast<size_t>(sequence) * batch.table_width;
    for (int row = begin; row < end; ++row) {
        if (batch.ancestors[row] == 0) continue;
        const int logical = root + 63 - __builtin_clzll(batch.ancestors[row]);
        const int slot = blocks_of[logical / store.block_size()] * store.block_size() + logical % store.block_size();
        if (batch.slots[row] != slot) fail("node i of a tree must be written at logical slot root + i");
    }
}

}  // namespace forerun
