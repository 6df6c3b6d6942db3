#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace forerun {

namespace {

constexpr size_t kLinearTaskBytes = size_t{128} << 10;  // of weights that one task of a linear layer streams
constexpr size_t kMaxThreadTasks = 64;                  // of a linear layer, for every thread
constexpr size_t kSerialWork = 8192;                    // elements below which waking threads costs more than it saves
constexpr size_t kMaxPartialFloats = size_t{2} << 20;

[[noreturn]] void fail(const std::string& message) {
    throw std::invalid_argument(message);
}

void require(bool ok, const char* message) {
    if (!ok) fail(message);
}

// A row stride of an odd number of cache lines: rows of one column then fall into different cache sets.
size_t spread_stride(int width, int unit) {
    const size_t lines = static_cast<size_t>((width + unit - 1) / unit);
    return (lines | 1) * static_cast<size_t>(unit);
}

int ceil_div(int value, int unit) {
    return (value + unit - 1) / unit;
}

// Sums of the inputs of a block of 16 rows.
size_t sum_floats(int inputs) {
    return static_cast<size_t>(ceil_div(inputs, kTileDepth)) * kSumsPerTile * kLanes;
}
size_t sum_floats(const PackedMatrix& matrix) {
    return sum_floats(matrix.cols());
}

}  // namespace

Program::Program(const KernelTable& table, ThreadPool& pool, int max_rows, int max_outputs, int max_positions)
    : table_(table), pool_(pool), max_rows_(max_rows), max_outputs_(max_outputs), max_positions_(max_positions) {
    require(max_rows >= 1 && max_outputs >= 1 && max_positions >= 1, "limits of a program must be at least 1");
}

// ---- building ----

int Program::add_buffer(int width, bool on_outputs) {
    require(width >= 1, "a buffer must have columns");
    buffers_.push_back(Buffer{width, on_outputs, spread_stride(width, kLanes), nullptr});
    return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_vector(const float* values, int size) {
    vectors_.emplace_back(values, values + size);
    return static_cast<int>(vectors_.size()) - 1;
}

int Program::add_rope_table(const float* cosine, const float* sine, int positions, int half) {
    require(positions >= max_positions_ && half >= 1, "a rotary table must cover all positions");
    const size_t size = static_cast<size_t>(positions) * static_cast<size_t>(half);
    rope_tables_.push_back(RopeTable{{cosine, cosine + size}, {sine, sine + size}, half});
    return static_cast<int>(rope_tables_.size()) - 1;
}

void Program::check(View view) const {
    require(view.buffer >= 0 && view.buffer < static_cast<int>(buffers_.size()), "no such buffer");
    require(view.column >= 0 && view.width >= 1 && view.width <= buffer(view).width - view.column,
            "a view leaves its buffer");
}

void Program::check_width(View view, int width, const char* what) const {
    check(view);
    if (view.width != width) {
        fail(std::string(what) + " must be " + std::to_string(width) + " wide, not " + std::to_string(view.width));
    }
}

void Program::check_heads(View view, int num_heads, const char* what) const {
    check(view);
    require(num_heads >= 1, "heads must be at least 1");
    if (view.width % num_heads != 0) fail(std::string(what) + " cannot be cut into its heads");
}

void Program::push(Op op) {
    require(!finished_, "the program is finished");
    ops_.push_back(op);
}

void Program::add_matrix_embed(const PackedMatrix& table, View out) {
    check_width(out, table.cols(), "an embedding");
    vocab_ = table.rows();
    push(Op{.kind = Kind::kEmbed, .out = out, .matrix = &table});
}

void Program::add_rms_norm(View x, int weight, float eps, View out) {
    check(x);
    check_width(out, x.width, "the result of a norm");
    require(weight >= 0 && weight < static_cast<int>(vectors_.size()) &&
                static_cast<int>(vectors_[static_cast<size_t>(weight)].size()) == x.width,
            "a norm's weight must be as wide as its input");
    push(Op{.kind = Kind::kRmsNorm, .a = x, .out = out, .vector = weight, .number = eps});
}

void Program::add_linear(View x, const PackedMatrix& matrix, int bias, View out) {
    check_width(x, matrix.cols(), "the input of a linear layer");
    check_width(out, matrix.rows(), "the output of a linear layer");
    require(bias < static_cast<int>(vectors_.size()) &&
                (bias < 0 || static_cast<int>(vectors_[static_cast<size_t>(bias)].size()) == matrix.rows()),
            "a bias must be as wide as its output");
    max_inputs_ = std::max(max_inputs_, matrix.cols());
    if (matrix.is_packed()) packed_scratch_bytes_ = kPackedScratchBytes;
    const Op* const before = ops_.empty() ? nullptr : &ops_.back();
    const bool shares_input = before && before->kind == Kind::kLinear && before->a.buffer == x.buffer &&
                              before->a.column == x.column && before->a.width == x.width &&
                              (needs_sums(*before->matrix) || !needs_sums(matrix));
    push(
        Op{.kind = Kind::kLinear, .a = x, .out = out, .matrix = &matrix, .vector = bias, .shares_input = shares_input});
}

void Program::add_rope(View x, int num_heads, int rotary_dim, int table) {
    check_heads(x, num_heads, "a rotated value");
    require(table >= 0 && table < static_cast<int>(rope_tables_.size()) && rope_table(table).half * 2 == rotary_dim &&
                rotary_dim <= x.width / num_heads,
            "the rotary dimension must be even, fit the head and have a table");
    push(Op{.kind = Kind::kRope, .a = x, .vector = table, .num_heads = num_heads, .rotary_dim = rotary_dim});
}

void Program::add_write_kv(int layer, View k, View v, int num_kv_heads) {
    check_heads(k, num_kv_heads, "keys");
    check_width(v, k.width, "values");
    push(Op{.kind = Kind::kWriteKv, .a = k, .b = v, .layer = layer, .num_kv_heads = num_kv_heads});
}

void Program::add_attention(int layer, View q, int num_heads, int num_kv_heads, float scale, int window, View out) {
    check_heads(q, num_heads, "queries");
    check_width(out, q.width, "the result of attention");
    require(num_kv_heads >= 1 && num_heads % num_kv_heads == 0, "query heads must be a multiple of key/value heads");
    require(window >= 0, "a window must be at least 1, or 0 for none");
    const int head_dim = q.width / num_heads;
    scratch_floats_ = std::max(scratch_floats_, attention_scratch_floats(table_.tiles_kv, head_dim));
    state_floats_ = std::max(state_floats_, attention_state_floats(head_dim));
    push(Op{.kind = Kind::kAttention,
            .a = q,
            .out = out,
            .layer = layer,
            .num_heads = num_heads,
            .num_kv_heads = num_kv_heads,
            .window = window,
            .number = scale});
}

void Program::add_silu_mul(View gate, View up, View out) {
    check(gate);
    check_width(up, gate.width, "the second factor");
    check_width(out, gate.width, "a product");
    push(Op{.kind = Kind::kSiluMul, .a = gate, .b = up, .out = out});
}

void Program::add_add(View x, View y, View out) {
    check(x);
    check_width(y, x.width, "the second term");
    check_width(out, x.width, "a sum");
    push(Op{.kind = Kind::kAdd, .a = x, .b = y, .out = out});
}

void Program::add_select_outputs(View x, View out) {
    check(x);
    check_width(out, x.width, "selected rows");
    require(!buffer(x).on_outputs && buffer(out).on_outputs, "output rows are selected once, into their own buffer");
    push(Op{.kind = Kind::kSelectOutputs, .a = x, .out = out});
}

void Program::finish(View logits) {
    check(logits);
    require(!finished_ && vocab_ > 0, "a program embeds its tokens and is finished once");
    require(buffer(logits).on_outputs && logits.column == 0 && logits.width == buffer(logits).width,
            "logits must be a buffer of their own, of output rows");
    for (const Op& op : ops_) {
        const bool selects = op.kind == Kind::kSelectOutputs;
        require(selects || op.kind == Kind::kEmbed || op.out.width == 0 ||
                    buffer(op.a).on_outputs == buffer(op.out).on_outputs,
                "an operation cannot change the set of rows");
    }
    finished_ = true;
    logits_ = logits;
    buffers_[static_cast<size_t>(logits.buffer)].stride = static_cast<size_t>(logits.width);  // contiguous for Python

    const int spans = ceil_div(max_positions_ + 1, kSpan);
    const int task_queries = table_.tiles_kv ? kMaxTileQueries : kMaxTaskQueries;
    partial_floats_ =
        std::min(kMaxPartialFloats, static_cast<size_t>(4 * pool_.size() * task_queries) * spans * state_floats_);
    size_t floats = 0;
    const auto take = [&floats](size_t count) {
        const size_t start = floats;
        floats += (count + kLanes - 1) / kLanes * kLanes;
        return start;
    };
    std::vector<size_t> starts;
    for (const Buffer& b : buffers_)
        starts.push_back(take(b.stride * (b.on_outputs ? max_outputs_ : max_rows_)));
    const int most_rows = std::max(max_rows_, max_outputs_);
    const size_t rounded = take(spread_stride(max_inputs_, kTileDepth) * padded(most_rows) / 2);
    const size_t sums = take(
        table_.round_rows_and_sum ? sum_floats(max_inputs_) * static_cast<size_t>(ceil_div(most_rows, kLanes)) : 0);
    const size_t scratch = take(scratch_floats_ * static_cast<size_t>(pool_.size()));
    const size_t partial = take(partial_floats_);
    const size_t packed_scratch = take(packed_scratch_bytes_ / sizeof(float) * static_cast<size_t>(pool_.size()));

    memory_ = std::make_unique<HugeBuffer>(floats * sizeof(float));
    float* base = reinterpret_cast<float*>(memory_->data());
    for (size_t i = 0; i < buffers_.size(); ++i)
        buffers_[i].data = base + starts[i];
    rounded_ = reinterpret_cast<uint16_t*>(base + rounded);
    sums_ = base + sums;
    scratch_ = base + scratch;
    partial_ = base + partial;
    packed_scratch_ = reinterpret_cast<char*>(base + packed_scratch);
}

size_t Program::workspace_bytes() const {
    size_t bytes = memory_ ? memory_->bytes() : 0;
    for (const RopeTable& table : rope_tables_)
        bytes += (table.cosine.size() + table.sine.size()) * sizeof(float);
    return bytes;
}

// ---- running ----

void Program::run(const BatchArrays& batch, KvStore& store) {
    require(finished_, "the program is not finished");
    check_store(store);
    check_batch(batch, store);
    if (batch.num_rows == 0) return;
    const FloatEnvironment environment;
    for (size_t i = 0; i < ops_.size(); ++i) {
        if (times_) times_->begin_op(i);
        run_op(ops_[i], batch, store);
        if (times_) times_->end_op();
    }
}

bool Program::runs_on_outputs(const Op& op) const {
    return op.kind != Kind::kEmbed && op.kind != Kind::kSelectOutputs && buffer(op.a).on_outputs;
}

// f(begin, end) over ranges of rows; on this thread alone when the work is small.
template <class F>
void Program::for_rows(int rows, size_t work_per_row, const F& f) {
    if (rows == 0) return;
    const size_t work = static_cast<size_t>(rows) * work_per_row;
    const int pieces = static_cast<int>(
        std::min({static_cast<size_t>(rows), work / kSerialWork + 1, static_cast<size_t>(4 * pool_.size())}));
    run_tasks(pieces, [&](int piece, int) {
        const int64_t all = rows;
        f(static_cast<int>(all * piece / pieces), static_cast<int>(all * (piece + 1) / pieces));
    });
}

void Program::run_op(const Op& op, const BatchArrays& batch, const KvStore& store) {
    const int rows = runs_on_outputs(op) ? batch.num_outputs : batch.num_rows;
    const size_t lda = op.a.width ? stride(op.a) : 0, ldb = op.b.width ? stride(op.b) : 0;
    const size_t ldo = op.out.width ? stride(op.out) : 0;
    switch (op.kind) {
        case Kind::kEmbed:
            for_rows(rows, 8 * static_cast<size_t>(op.out.width), [&](int begin, int end) {
                if (op.matrix->is_packed()) {
                    for (int row = begin; row < end; ++row)
                        op.matrix->read_row(batch.tokens[row], pointer(op.out, row));
                    return;
                }
                table_.embed(op.matrix->data(), op.matrix->k_tiles(), batch.tokens + begin, end - begin, op.out.width,
                             pointer(op.out, begin), ldo);
            });
            break;
        case Kind::kRmsNorm:
            for_rows(rows, static_cast<size_t>(op.a.width), [&](int begin, int end) {
                table_.rms_norm(pointer(op.a, begin), lda, end - begin, op.a.width, vector(op.vector), op.number,
                                pointer(op.out, begin), ldo);
            });
            break;
        case Kind::kLinear:
            run_linear(op, rows);
            break;
        case Kind::kRope:
            for_rows(rows, 2 * static_cast<size_t>(op.a.width), [&](int begin, int end) {
                const RopeTable& table = rope_table(op.vector);
                table_.rope(pointer(op.a, begin), lda, end - begin, op.num_heads, op.a.width / op.num_heads,
                            op.rotary_dim, table.cosine.data(), table.sine.data(), batch.positions + begin);
            });
            break;
        case Kind::kWriteKv: {
            const WriteKvArgs args{store.layer(op.layer), pointer(op.a), lda, pointer(op.b), ldb, batch.slots};
            const auto write = store.is_fp32() ? table_.write_kv_fp32 : table_.write_kv_bf16;
            for_rows(rows, 8 * static_cast<size_t>(op.a.width), [&](int begin, int end) { write(args, begin, end); });
            break;
        }
        case Kind::kAttention:
            run_attention(op, batch, store);
            break;
        case Kind::kSiluMul:
            for_rows(rows, 4 * static_cast<size_t>(op.a.width), [&](int begin, int end) {
                table_.silu_mul(pointer(op.a, begin), lda, pointer(op.b, begin), ldb, end - begin, op.a.width,
                                pointer(op.out, begin), ldo);
            });
            break;
        case Kind::kAdd:
            for_rows(rows, static_cast<size_t>(op.a.width), [&](int begin, int end) {
                table_.add(pointer(op.a, begin), lda, pointer(op.b, begin), ldb, end - begin, op.a.width,
                           pointer(op.out, begin), ldo);
            });
            break;
        case Kind::kSelectOutputs:
            for (int i = 0; i < batch.num_outputs; ++i) {
                const float* from = pointer(op.a, batch.output_rows[i]);
                std::copy(from, from + op.a.width, pointer(op.out, i));
            }
            break;
    }
}

void Program::round_inputs(const Op& op, int rows) {
    const size_t ldx = spread_stride(op.matrix->cols(), kTileDepth);
    for_rows(rows, 2 * static_cast<size_t>(op.a.width), [&](int begin, int end) {
        if (needs_sums(*op.matrix)) {
            table_.round_rows_and_sum(pointer(op.a), stride(op.a), begin, end, op.a.width, rounded_, ldx, sums_,
                                      sum_floats(*op.matrix));
        } else {
            table_.round_rows(pointer(op.a, begin), stride(op.a), end - begin, op.a.width,
                              rounded_ + static_cast<size_t>(begin) * ldx, ldx);
        }
    });
}

// Tasks of equal size, as many for every thread: large enough to stream, small enough to share the rest of a thread
// that is held up.
int Program::linear_tasks(const PackedMatrix& matrix) const {
    const size_t bytes = matrix.panel_bytes() * static_cast<size_t>(matrix.panels());
    const size_t each = bytes / (kLinearTaskBytes * static_cast<size_t>(pool_.size()));
    const int tasks = static_cast<int>(std::clamp<size_t>(each, 2, kMaxThreadTasks)) * pool_.size();
    return std::min(tasks, ceil_div(matrix.panels(), 2));
}

void Program::run_linear(const Op& op, int rows) {
    if (rows == 0) return;
    const PackedMatrix& matrix = *op.matrix;
    if (!op.shares_input) round_inputs(op, rows);
    const size_t ldx = spread_stride(matrix.cols(), kTileDepth);
    const float* const bias = op.vector >= 0 ? vector(op.vector) : nullptr;
    const LinearArgs plain{rounded_,        ldx,           rows, matrix.data(), matrix.k_tiles(), matrix.rows(), bias,
                           pointer(op.out), stride(op.out)};
    const PackedLinearArgs packed{.x = rounded_,
                                  .ldx = ldx,
                                  .rows = rows,
                                  .sums = sums_,
                                  .sum_floats = sum_floats(matrix),
                                  .panels = matrix.tiles(),
                                  .panel_bytes = matrix.panel_bytes(),
                                  .format = matrix.format(),
                                  .k_tiles = matrix.k_tiles(),
                                  .columns = matrix.rows(),
                                  .bias = bias,
                                  .out = pointer(op.out),
                                  .ldo = stride(op.out)};
    const int64_t pairs = ceil_div(matrix.panels(), 2);  // kernels like panels in pairs
    const int tasks = linear_tasks(matrix);
    run_tasks(tasks, [&](int task, int thread) {
        const int begin = static_cast<int>(2 * (pairs * task / tasks));
        const int end = std::min(matrix.panels(), static_cast<int>(2 * (pairs * (task + 1) / tasks)));
        if (matrix.is_packed()) {
            table_.linear_packed(packed, begin, end,
                                 packed_scratch_ + packed_scratch_bytes_ * static_cast<size_t>(thread));
        } else {
            table_.linear(plain, begin, end);
        }
    });
}

}  // namespace forerun
