// Program: one forward pass as a flat list of operations over numbered buffers, replayed in one call.
//
// Built once per model from Python (backends/recorder.py runs the model code against a recording Ops), then run once
// per step. Everything is allocated while building; running allocates nothing that grows.
//
// A buffer is [rows, width] float32, rows = max_rows, or max_outputs behind select_outputs. A View is a range of
// columns of a buffer. Which values share a buffer is the recorder's business. The last operation's result is the
// logits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel_table.h"
#include "kv_store.h"
#include "packed_matrix.h"
#include "profile.h"
#include "thread_pool.h"

namespace forerun {

struct View {
    int buffer;
    int column;
    int width;

    bool operator==(const View&) const = default;
};

// A row stride of an odd number of cache lines: rows of one column then fall into different cache sets.
constexpr size_t spread_stride(int width, int unit) {
    const size_t lines = static_cast<size_t>((width + unit - 1) / unit);
    return (lines | 1) * static_cast<size_t>(unit);
}

// The arrays of batch.py; pointers are borrowed for the call.
struct BatchArrays {
    int num_rows, num_sequences, table_width, num_outputs;
    const int32_t *tokens, *positions, *slots;
    const int32_t *query_start, *context_len, *block_table, *tree_root;
    const uint64_t* ancestors;
    const int32_t* output_rows;
};

class Program {
  public:
    // The table must be usable here; the pool must outlive the program.
    Program(const KernelTable& table, ThreadPool& pool, int max_rows, int max_outputs, int max_positions);

    // ---- building; all throw std::invalid_argument when something does not fit together ----
    int add_buffer(int width, bool on_outputs);
    // A buffer of all rows that the caller fills, through rows(), before every run.
    int add_input(int width);
    int add_vector(const float* values, int size);
    int add_rope_table(const float* cosine, const float* sine, int positions, int half);
    void add_matrix_embed(const PackedMatrix& table, View out);
    void add_rms_norm(View x, int weight, float eps, View out);
    void add_linear(View x, const PackedMatrix& matrix, int bias, View out);  // bias -1: none
    void add_rope(View x, int num_heads, int rotary_dim, int rope_table);
    void add_write_kv(int layer, View k, View v, int num_kv_heads);
    // window 0: a row sees all positions up to its own
    void add_attention(int layer, View q, int num_heads, int num_kv_heads, float scale, int window, View out);
    void add_silu(View x, View out);
    void add_silu_mul(View gate, View up, View out);
    void add_add(View x, View y, View out);
    void add_select_outputs(View x, View out);
    // The caller will read this value after a run: it is written whatever is fused. Its buffer must be its own.
    void keep(View value);
    // Allocates the buffers. `fuse` merges neighbouring operations into stages, see program_fuse.cpp; no bit depends on
    // it.
    void finish(View logits, bool fuse = true);

    // ---- running ----
    // Writes the rows' KV and leaves logits of the output rows in logits(). Throws std::invalid_argument, before
    // anything is computed, when an index would leave its array.
    void run(const BatchArrays& batch, KvStore& store);

    // ---- timing, for benches and the profiler ----
    // What is timed, an operation or several that run as one ("add+rms_norm+round"): columns read and written by one
    // row, and the packed weights behind it.
    struct OpShape {
        std::string kind;
        int layer, inputs, outputs, num_heads, num_kv_heads;
        size_t weight_bytes;
        bool on_outputs;  // runs on the output rows only
    };
    std::vector<OpShape> op_shapes() const;  // in the order in which they run; in measure.cpp
    // From now on every run leaves the times of its operations behind, or no longer; in profile.cpp.
    void time_ops(bool on);
    const OpTimes* times() const { return times_.get(); }
    std::vector<int64_t> op_ns() const;  // nanoseconds of each operation; empty unless timed

    float* logits() const { return pointer(logits_); }
    // The rows of an input or of a value that is kept. Throws std::invalid_argument for any other, and before finish.
    struct Rows {
        float* data;
        size_t rows, stride;  // stride  floats between rows
    };
    Rows rows(View value) const;
    int logits_width() const { return logits_.width; }
    int max_outputs() const { return max_outputs_; }
    size_t workspace_bytes() const;

  private:
    enum class Kind {
        kEmbed,
        kRmsNorm,
        kRound,
        kLinear,
        kRope,
        kWriteKv,
        kAttention,
        kSilu,
        kSiluMul,
        kAdd,
        kSelectOutputs
    };

    struct Op {
        Kind kind;
        View a{}, b{}, out{};
        const PackedMatrix* matrix = nullptr;
        int vector = -1;  // norm weight, bias or rotary table
        int layer = 0, num_heads = 0, num_kv_heads = 0, rotary_dim = 0, window = 0;
        float number = 0;       // epsilon or scale
        int first_head = 0;     // key/value head, of an operation on some heads
        bool is_scrap = false;  // what it makes or, rounding, takes lies in no buffer but with the thread
        bool is_gated = false;  // the inputs of a linear layer are what another has gated and rounded
    };

    // Neighbouring operations ops_[begin, end) that run as one parallel region.
    struct Stage {
        size_t begin, end;
        bool by_heads;           // shared out by key/value heads and rows, else by rows
        bool is_gating = false;  // a linear layer whose kernel gates and rounds its outputs itself
    };

    // Rows [begin, end) of an operation. scrap  of the thread, for sixteen rows of what goes into no buffer
    struct RowTask {
        const BatchArrays& batch;
        const KvStore& store;
        int begin, end;
        float* scrap;
    };

    struct Buffer {
        int width;
        bool on_outputs;
        bool is_input = false;
        size_t stride = 0;  // floats between rows
        float* data = nullptr;
    };

    struct RopeTable {
        std::vector<float> cosine, sine;
        int half;
    };

    const Buffer& buffer(View view) const { return buffers_[static_cast<size_t>(view.buffer)]; }
    size_t stride(View view) const { return buffer(view).stride; }
    float* pointer(View view) const { return buffer(view).data + view.column; }
    float* pointer(View view, int row) const { return pointer(view) + static_cast<size_t>(row) * stride(view); }
    const float* vector(int index) const { return vectors_[static_cast<size_t>(index)].data(); }
    const RopeTable& rope_table(int index) const { return rope_tables_[static_cast<size_t>(index)]; }

    void check(View view) const;
    void check_width(View view, int width, const char* what) const;
    void check_heads(View view, int num_heads, const char* what) const;
    void push(Op op);
    bool runs_on_outputs(const Op& op) const;

    static const char* name_of(Kind kind);
    OpShape shape_of(const Op& op) const;
    OpShape shape_of(const Stage& stage) const;

    void plan_stages(bool fuse);
    size_t end_of_rows(size_t begin) const;
    size_t end_of_heads(size_t begin) const;
    bool gates_outputs(size_t begin) const;
    bool is_read_behind(View value, size_t index) const;

    void check_batch(const BatchArrays& batch, const KvStore& store) const;
    void check_sequence(const BatchArrays& batch, const KvStore& store, int sequence) const;
    void check_store(const KvStore& store) const;

    void run_stage(const Stage& stage, const BatchArrays& batch, const KvStore& store);
    void run_heads(const Stage& stage, const BatchArrays& batch, const KvStore& store);
    void run_rows(const Op& op, const RowTask& task) const;
    void round_rows(const Op& op, const RowTask& task) const;
    void write_kv(const Op& op, const RowTask& task) const;
    void run_linear(const Stage& stage, int rows);
    int linear_tasks(const PackedMatrix& matrix, int rows) const;
    bool needs_sums(const PackedMatrix& matrix) const { return table_.round_rows_and_sum && matrix.is_packed(); }
    bool needs_columns(const PackedMatrix& matrix) const { return table_.round_columns && matrix.is_packed(); }
    // Whether what was rounded for one matrix also serves another.
    bool serves(const PackedMatrix& rounded_for, const PackedMatrix& matrix) const;
    // uint16_t between rows of what was rounded for a matrix.
    size_t rounded_stride(const PackedMatrix& matrix) const {
        const bool is_int16 = matrix.is_packed() && table_.packed_inputs == PackedInputs::kInt16;
        return rounded_stride(matrix.cols(), is_int16 ? kInt16TileElements : kTileDepth);
    }
    static size_t rounded_stride(int inputs, int tile_elements) {
        return spread_stride((inputs + kTileDepth - 1) / kTileDepth * tile_elements, kTileDepth);
    }
    // Sums of the inputs of a block of 16 rows.
    size_t sum_floats(int inputs) const {
        const size_t tiles = static_cast<size_t>((inputs + kTileDepth - 1) / kTileDepth);
        return tiles * static_cast<size_t>(table_.sums_per_tile) * kLanes;
    }
    void run_attention(const Op& op, const BatchArrays& batch, const KvStore& store);
    size_t plan_attention(const AttentionArgs& args, const BatchArrays& batch, bool split_spans, int max_heads);
    // pool_.run, with the times of every task where operations are timed.
    template <class F>
    void run_tasks(int num_tasks, const F& f) {
        if (!times_) return pool_.run(num_tasks, f);
        pool_.run(num_tasks, [&](int task, int thread) { times_->time_task(thread, [&] { f(task, thread); }); });
    }
    int pieces_of(int rows, size_t work_per_row) const;
    size_t work_per_row(const Stage& stage) const;
    static size_t scrap_stride(View view) { return spread_stride(view.width, kLanes); }
    float* scrap_of(int thread) const { return scrap_ + scrap_floats_ * static_cast<size_t>(thread); }

    const KernelTable& table_;
    ThreadPool& pool_;
    int max_rows_, max_outputs_, max_positions_;
    int vocab_ = 0;
    bool finished_ = false;

    std::vector<Buffer> buffers_;
    std::vector<std::vector<float>> vectors_;
    std::vector<RopeTable> rope_tables_;
    std::vector<Op> ops_;
    std::vector<Stage> stages_;  // all of ops_, in order
    View logits_{};
    std::vector<View> kept_;  // read by the caller

    int max_inputs_ = 0;                            // widest input of a linear layer, padded
    size_t packed_scratch_bytes_ = 0;               // that linear layers over packed weights need at most
    size_t scratch_floats_ = 0, state_floats_ = 0;  // that attention layers need at most
    size_t partial_floats_ = 0, scrap_floats_ = 0;
    std::unique_ptr<HugeBuffer> memory_;
    size_t gated_words_ = 0;          // what linear layers that gate leave at most, of a row
    uint16_t* rounded_ = nullptr;     // bf16 inputs of the next linear layers
    uint16_t* gated_ = nullptr;       // the same where a linear layer has left them
    float* sums_ = nullptr;           // of those inputs, where the table needs them
    float* scratch_ = nullptr;        // per thread, for attention
    float* scrap_ = nullptr;          // per thread
    char* packed_scratch_ = nullptr;  // per thread, for linear layers
    float* partial_ = nullptr;        // attention states of spans computed apart
    std::vector<AttentionTask> tasks_, merges_;
    std::unique_ptr<OpTimes> times_;  // null unless operations are timed
};

}  // namespace forerun
