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
};

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
    int add_vector(const float* values, int size);
    int add_rope_table(const float* cosine, const float* sine, int positions, int half);
    void add_matrix_embed(const PackedMatrix& table, View out);
    void add_rms_norm(View x, int weight, float eps, View out);
    void add_linear(View x, const PackedMatrix& matrix, int bias, View out);  // bias -1: none
    void add_rope(View x, int num_heads, int rotary_dim, int rope_table);
    void add_write_kv(int layer, View k, View v, int num_kv_heads);
    // window 0: a row sees all positions up to its own
    void add_attention(int layer, View q, int num_heads, int num_kv_heads, float scale, int window, View out);
    void add_silu_mul(View gate, View up, View out);
    void add_add(View x, View y, View out);
    void add_select_outputs(View x, View out);
    void finish(View logits);  // allocates the buffers

    // ---- running ----
    // Writes the rows' KV and leaves logits of the output rows in logits(). Throws std::invalid_argument, before
    // anything is computed, when an index would leave its array.
    void run(const BatchArrays& batch, KvStore& store);

    // ---- timing, for benches and the profiler ----
    // What an operation is: columns read and written by one row, and the packed weights behind it.
    struct OpShape {
        const char* kind;
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
    int logits_width() const { return logits_.width; }
    int max_outputs() const { return max_outputs_; }
    size_t workspace_bytes() const;

  private:
    enum class Kind { kEmbed, kRmsNorm, kLinear, kRope, kWriteKv, kAttention, kSiluMul, kAdd, kSelectOutputs };

    struct Op {
        Kind kind;
        View a{}, b{}, out{};
        const PackedMatrix* matrix = nullptr;
        int vector = -1;            // norm weight, bias or rotary table
        bool shares_input = false;  // the linear layer before it has rounded the same input in the same way
        int layer = 0, num_heads = 0, num_kv_heads = 0, rotary_dim = 0, window = 0;
        float number = 0;  // epsilon or scale
    };

    struct Buffer {
        int width;
        bool on_outputs;
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

    void check_batch(const BatchArrays& batch, const KvStore& store) const;
    void check_sequence(const BatchArrays& batch, const KvStore& store, int sequence) const;
    void check_store(const KvStore& store) const;

    void run_op(const Op& op, const BatchArrays& batch, const KvStore& store);
    void run_linear(const Op& op, int rows);
    void round_inputs(const Op& op, int rows);
    int linear_tasks(const PackedMatrix& matrix, int rows) const;
    bool needs_sums(const PackedMatrix& matrix) const { return table_.round_rows_and_sum && matrix.is_packed(); }
    void run_attention(const Op& op, const BatchArrays& batch, const KvStore& store);
    size_t plan_attention(const AttentionArgs& args, const BatchArrays& batch, bool split_spans, int max_heads);
    // pool_.run, with the times of every task where operations are timed.
    template <class F>
    void run_tasks(int num_tasks, const F& f) {
        if (!times_) return pool_.run(num_tasks, f);
        pool_.run(num_tasks, [&](int task, int thread) { times_->time_task(thread, [&] { f(task, thread); }); });
    }
    template <class F>
    void for_rows(int rows, size_t work_per_row, const F& f);

    const KernelTable& table_;
    ThreadPool& pool_;
    int max_rows_, max_outputs_, max_positions_;
    int vocab_ = 0;
    bool finished_ = false;

    std::vector<Buffer> buffers_;
    std::vector<std::vector<float>> vectors_;
    std::vector<RopeTable> rope_tables_;
    std::vector<Op> ops_;
    View logits_{};

    int max_inputs_ = 0;                            // widest input of a linear layer, padded
    size_t packed_scratch_bytes_ = 0;               // that linear layers over packed weights need at most
    size_t scratch_floats_ = 0, state_floats_ = 0;  // that attention layers need at most
    size_t partial_floats_ = 0;
    std::unique_ptr<HugeBuffer> memory_;
    uint16_t* rounded_ = nullptr;     // bf16 inputs of the linear layer that runs
    float* sums_ = nullptr;           // of those inputs, where the table needs them
    float* scratch_ = nullptr;        // per thread, for attention
    char* packed_scratch_ = nullptr;  // per thread, for linear layers
    float* partial_ = nullptr;        // attention states of spans computed apart
    std::vector<AttentionTask> tasks_, merges_;
    std::unique_ptr<OpTimes> times_;  // null unless operations are timed
};

}  // namespace forerun
