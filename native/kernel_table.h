// KernelTable: the kernels of one instruction set, as function pointers. Chosen once, when a program is made.
//
// Every kernel computes a range of an operation (rows, panels, a task) on one thread and keeps the law of row
// invariance: a row's result depends on that row's inputs alone, bit for bit, whatever range, thread or neighbours it
// comes with.
//
// Conventions. Strides (`ld...`) count elements between rows. R rows, E or `width` columns, G key/value heads, D head
// size, S block size. float32 unless the type is uint16_t, which is bfloat16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "half.h"
#include "inline.h"
#include "row_passes.h"
#include "tile_formats.h"

namespace forerun {

constexpr int kLanes = 16;      // floats in a vector, columns in a panel, rows in a tile
constexpr int kTileDepth = 32;  // inputs in a tile
constexpr int kTileElements = kLanes * kTileDepth;

// Attention adds up keys in chunks of 64 logical positions, inside spans of 512 that start empty and are merged in
// order.
constexpr int kChunk = 64;
constexpr int kSpan = 512;
constexpr int kGroupsPerChunk = kChunk / kLanes;
constexpr int kMaxTaskQueries = 96;   // (row, head) pairs of one attention task, of all its key/value heads
constexpr int kMaxTileQueries = 128;  // of one over tiled KV: 16 rows of 8 heads read their keys once
constexpr int kMaxTileHead = 256;     // largest head that is tiled
constexpr int kMaxTileGroups = 16;    // (key/value head, sixteen queries) pairs of a task over tiled KV
constexpr int kMaxTaskHeads = 8;      // key/value heads of such a task
constexpr int kStepPositions = 32;    // positions that one tile product sums
constexpr int kStepsPerChunk = kChunk / kStepPositions;

// out[r, n] = sum over k of x[r, k] * w[n, k], then + bias[n]. w as in packed_matrix.h.
struct LinearArgs {
    const uint16_t* x;  // [R, ldx], zero from K up to k_tiles * kTileDepth
    size_t ldx;
    int rows;
    const uint16_t* panels;
    int k_tiles;
    int columns;        // N
    const float* bias;  // [N] or null
    float* out;         // [R, ldo]
    size_t ldo;
};

constexpr int kSumsPerTile = 3;
constexpr int kInt16TileElements = 48;  // uint16_t that 32 inputs and what belongs to them take as int16
constexpr size_t kPackedScratchBytes = size_t{384} << 10;

// The same with weights in a packed format, see tile_formats.h.
struct PackedLinearArgs {
    const uint16_t* x;
    size_t ldx;
    int rows;
    const float* sums;  // of inputs, where the table has round_rows_and_sum
    size_t sum_floats;  // between blocks of 16 rows
    const uint8_t* panels;
    size_t panel_bytes;
    TileFormat format;
    int k_tiles;  // of the format
    int columns;
    const float* bias;
    float* out;
    size_t ldo;
    // Where the table gates_packed, not null if the first half of the outputs gates the second: silu(gate) * up then
    // goes here, as round_columns would leave it, instead of to `out`. Panels are counted in the first half, a task's
    // begin and end are even; no bias.
    uint16_t* gated = nullptr;
    size_t gated_ld = 0;
};

// What linear_packed takes: bfloat16 as linear does, with sums; int16 with scales; bfloat16 with rows as columns.
enum class PackedInputs { kRows, kInt16, kColumns };

// How numbers of a KV layer are stored.
enum class KvCodec { kBf16, kFp32 };

// Keys and values of one layer, as in kv_store.h.
struct KvLayer {
    char* base;
    size_t block_bytes;  // of this layer's K and V in one block; V starts in the middle
    int block_size;      // S, a multiple of kLanes
    int num_heads;       // G
    int head_dim;        // D
    bool is_tiled;       // K and V are laid out for tile products
    KvCodec codec;
};

struct WriteKvArgs {
    KvLayer layer;
    const float* k;  // [R, ldk], G heads of D
    size_t ldk;
    const float* v;
    size_t ldv;
    const int32_t* slots;  // [R]
};

// One sequence's rows in an attention call; see batch.py for the meaning of the fields.
struct AttentionSequence {
    int first_row;
    int num_rows;
    int tree_root;  // position, -1 when all rows are causal
    const int32_t* block_table;
};

struct AttentionArgs {
    KvLayer layer;
    const float* q;  // [R, ldq], H heads of D
    size_t ldq;
    float* out;  // [R, ldo]
    size_t ldo;
    int heads_per_group;  // H / G
    float scale;
    const int32_t* positions;   // [R]
    const uint64_t* ancestors;  // [R]
    int window;                 // a row sees this many positions, its own the last of them; 0: all before it too
};

// Queries are the (row, head of the group) pairs of one sequence and key/value head, numbered row-major. The same
// numbers for each of several neighbouring key/value heads: their keys lie beside each other.
struct AttentionTask {
    AttentionSequence sequence;
    int kv_head, num_heads;  // the first, how many
    int query_begin, query_end;
    int span_begin, span_end;
    float* partial;         // null: merge the spans and write `out`; else leave the states of the spans here,
    size_t partial_stride;  // this many floats apart
};

struct KernelTable {
    const char* name;
    bool tiles_kv;         // it takes bfloat16 KV as tiles, see kv_store.h
    TileOrder tile_order;  // of packed matrices
    PackedInputs packed_inputs;
    bool gates_packed;  // linear_packed can gate its outputs itself
    int sums_per_tile;  // floats that round_rows_and_sum leaves in `sums` for every 32 inputs of a row

    // x[r, 0..width) to bfloat16, zeros up to ldo.
    void (*round_rows)(const float* x, size_t ldx, int rows, int width, uint16_t* out, size_t ldo);
    void (*linear)(const LinearArgs& args, int panel_begin, int panel_end);
    // The same for rows [row_begin, row_end) and with sums of the rounded inputs, as linear_packed of this table needs
    // them; null if it needs none. sums [R / 16][K / 32][kSumsPerTile][16], blocks of 16 rows `block_floats` apart: of
    // 32 inputs, of the first 16, of the others. Inputs of int16 have their sums between them in `out` instead, see
    // kernels/quantise_rows.inl.h.
    void (*round_rows_and_sum)(const float* x, size_t ldx, int row_begin, int row_end, int width, uint16_t* out,
                               size_t ldo, float* sums, size_t block_floats);
    // The same as columns, see kernels/round_columns.inl.h; null if inputs are rows. The batch has all_rows rows.
    void (*round_columns)(const float* x, size_t ldx, int row_begin, int row_end, int all_rows, int width,
                          uint16_t* out, size_t ldo);
    // `scratch` holds kPackedScratchBytes, 64-byte aligned, private to the thread.
    void (*linear_packed)(const PackedLinearArgs& args, int panel_begin, int panel_end, char* scratch);
    // out[r] = row tokens[r] of a packed [V, E] matrix.
    void (*embed)(const uint16_t* panels, int k_tiles, const int32_t* tokens, int rows, int width, float* out,
                  size_t ldo);
    void (*rms_norm)(const float* x, size_t ldx, int rows, int width, const float* weight, float eps, float* out,
                     size_t ldo);
    // In place; cosine and sine are [P, rotary_dim / 2].
    void (*rope)(float* x, size_t ldx, int rows, int num_heads, int head_dim, int rotary_dim, const float* cosine,
                 const float* sine, const int32_t* positions);
    void (*silu_mul)(const float* gate, size_t ldg, const float* up, size_t ldu, int rows, int width, float* out,
                     size_t ldo);
    void (*add)(const float* x, size_t ldx, const float* y, size_t ldy, int rows, int width, float* out, size_t ldo);
    void (*write_kv_bf16)(const WriteKvArgs& args, int row_begin, int row_end);
    void (*write_kv_fp32)(const WriteKvArgs& args, int row_begin, int row_end);
    // `scratch` holds attention_scratch_floats(tiles_kv, D) floats, 64-byte aligned, private to the thread.
    void (*attention_bf16)(const AttentionArgs& args, const AttentionTask& task, float* scratch);
    void (*attention_fp32)(const AttentionArgs& args, const AttentionTask& task, float* scratch);
    // Merges the states that tasks left in `partial`, those of the spans of `task`, and writes `out`.
    void (*merge_bf16)(const AttentionArgs& args, const AttentionTask& task, float* scratch);
    void (*merge_fp32)(const AttentionArgs& args, const AttentionTask& task, float* scratch);
    SamplingKernels sampling;
};

constexpr int padded(int width) {
    return (width + kLanes - 1) / kLanes * kLanes;
}

// Floats of one query's state (m, l, o), padded so that o is aligned.
constexpr size_t attention_state_floats(int head_dim) {
    return static_cast<size_t>(kLanes + padded(head_dim));
}

constexpr size_t plain_scratch_floats(int head_dim) {
    // queries, span and total states, weights of up to eight queries, and one chunk of K and of V
    const size_t width = static_cast<size_t>(padded(head_dim));
    return kMaxTaskQueries * (width + 2 * attention_state_floats(head_dim)) + 8 * kChunk + 2 * kChunk * width;
}

// A tile of queries for every 32 components, and the state of sixteen queries: m [16], l [16], o [D, 16].
constexpr size_t tile_query_floats(int head_dim) {
    return static_cast<size_t>((head_dim + kTileDepth - 1) / kTileDepth) * kTileElements / 2;
}
constexpr size_t tile_state_floats(int head_dim) {
    return static_cast<size_t>(kLanes) * (2 + head_dim);
}

constexpr size_t tile_scratch_floats(int head_dim) {
    // scores and weights; three chunks of 64 x D bfloat16; one o; and for sixteen queries each: tiles and two states
    return kChunk * kLanes * 3 / 2 + static_cast<size_t>(head_dim) * (3 * kChunk / 2 + kLanes) +
           kMaxTileGroups * (tile_query_floats(head_dim) + 2 * tile_state_floats(head_dim));
}

constexpr bool is_tiled_head(int head_dim) {
    return head_dim % kLanes == 0 && head_dim <= kMaxTileHead;
}

constexpr size_t attention_scratch_floats(bool tiles_kv, int head_dim) {
    const size_t plain = plain_scratch_floats(head_dim);
    const size_t tiled = tiles_kv && is_tiled_head(head_dim) ? tile_scratch_floats(head_dim) : 0;
    return plain > tiled ? plain : tiled;
}

// Floats that `queries` of one key/value head leave in `partial` for every span.
constexpr size_t partial_state_floats(const KvLayer& layer, int queries) {
    if (!layer.is_tiled) return queries * attention_state_floats(layer.head_dim);
    return (queries + kLanes - 1) / kLanes * tile_state_floats(layer.head_dim);
}

// Number of positions up to the last that a row sees.
FORERUN_INLINE int visible_keys(const AttentionArgs& args, const AttentionSequence& sequence, int row) {
    const uint64_t ancestors = args.ancestors[row];
    if (ancestors == 0) return args.positions[row] + 1;
    return sequence.tree_root + __builtin_popcountll(ancestors);
}

// The first position that a row sees which sees none behind `end` - 1.
FORERUN_INLINE int first_visible(const AttentionArgs& args, int end) {
    return args.window > 0 && end > args.window ? end - args.window : 0;
}

// CMakeLists.txt says which tables a build has: portable always, the others as far as architecture and compiler go.
extern const KernelTable portable_table;
extern const KernelTable amx_bf16_table;
extern const KernelTable avx512_bf16_table;
extern const KernelTable avx512_vnni_bf16_table;
extern const KernelTable avx512_vnni_table;
extern const KernelTable avx512_table;
extern const KernelTable avx2_table;
extern const KernelTable neon_table;

}  // namespace forerun
