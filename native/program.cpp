#include "program.h"

#include <algorithm>
#include <stdexcept>

namespace forerun {

namespace {

constexpr size_t kMaxPartialFloats = size_t{2} << 20;

[[noreturn]] void fail(const std::string& message) {
    throw std::invalid_argument(message);
}

void require(bool ok, const char* message) {
    if (!ok) fail(message);
}

int ceil_div(int value, int unit) {
    return (value + unit - 1) / unit;
}

}  // namespace

Program::Program(const KernelTable& table, ThreadPool& pool, int max_rows, int max_outputs, int max_positions)
    : table_(table), pool_(pool), max_rows_(max_rows), max_outputs_(max_outputs), max_positions_(max_positions) {
    require(max_rows >= 1 && max_outputs >= 1 && max_positions >= 1, "limits of a program must be at least 1");
}

// ---- building ----

int Program::add_buffer(int width, bool on_outputs) {
    require(width >= 1, "a buffer must have columns");
    buffers_.push_back(Buffer{.width = width, .on_outputs = on_outputs, .stride = spread_stride(width, kLanes)});
    return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_input(int width) {
    const int index = add_buffer(width, false);
    buffers_.back().is_input = true;
    return index;
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

bool Program::serves(const PackedMatrix& rounded_for, const PackedMatrix& matrix) const {
    if (rounded_for.is_packed() == matrix.is_packed()) return true;
    return rounded_for.is_packed() && table_.packed_inputs == PackedInputs::kRows;
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
    require(!matrix.is_packed() || matrix.order() == table_.tile_order, "a matrix was packed for another kernel table");
    max_inputs_ = std::max(max_inputs_, matrix.cols());
    if (matrix.is_packed()) packed_scratch_bytes_ = kPackedScratchBytes;
    // Layers side by side share their rounded input, if the one before has left all that this one needs.
    const Op* const before = ops_.empty() ? nullptr : &ops_.back();
    const bool is_rounded = before && before->kind == Kind::kLinear && before->a == x &&
                            before->out.buffer != x.buffer && serves(*before->matrix, matrix);
    if (!is_rounded) push(Op{.kind = Kind::kRound, .a = x, .matrix = &matrix});
    push(Op{.kind = Kind::kLinear, .a = x, .out = out, .matrix = &matrix, .vector = bias});
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

void Program::add_silu(View x, View out) {
    check(x);
    check_width(out, x.width, "an activation");
    vectors_.emplace_back(x.width, 1.0f);  // the second factor of silu_mul, the same for every row
    const int ones = static_cast<int>(vectors_.size()) - 1;
    push(Op{.kind = Kind::kSilu, .a = x, .out = out, .vector = ones});
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

void Program::keep(View value) {
    check(value);
    require(!finished_, "the program is finished");
    kept_.push_back(value);
}

Program::Rows Program::rows(View value) const {
    check(value);
    const bool is_kept = std::find(kept_.begin(), kept_.end(), value) != kept_.end();
    require(finished_ && (is_kept || buffer(value).is_input), "only inputs and kept values of a finished program");
    const int rows = buffer(value).on_outputs ? max_outputs_ : max_rows_;
    return {pointer(value), static_cast<size_t>(rows), stride(value)};
}

void Program::finish(View logits, bool fuse) {
    check(logits);
    const bool has_input = std::any_of(buffers_.begin(), buffers_.end(), [](const Buffer& b) { return b.is_input; });
    require(!finished_ && (vocab_ > 0 || has_input),
            "a program embeds its tokens or has an input, and is finished once");
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
    plan_stages(fuse);
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
    const int tile_elements = table_.packed_inputs == PackedInputs::kInt16 ? kInt16TileElements : kTileDepth;
    const size_t rounded = take(rounded_stride(max_inputs_, tile_elements) * padded(most_rows) / 2);
    const size_t gated = take(gated_words_ * padded(most_rows) / 2);
    const size_t sums = take(
        table_.round_rows_and_sum ? sum_floats(max_inputs_) * static_cast<size_t>(ceil_div(most_rows, kLanes)) : 0);
    const size_t scratch = take(scratch_floats_ * static_cast<size_t>(pool_.size()));
    const size_t partial = take(partial_floats_);
    const size_t scrap = take(scrap_floats_ * static_cast<size_t>(pool_.size()));
    const size_t packed_scratch = take(packed_scratch_bytes_ / sizeof(float) * static_cast<size_t>(pool_.size()));

    memory_ = std::make_unique<HugeBuffer>(floats * sizeof(float));
    float* base = reinterpret_cast<float*>(memory_->data());
    for (size_t i = 0; i < buffers_.size(); ++i)
        buffers_[i].data = base + starts[i];
    rounded_ = reinterpret_cast<uint16_t*>(base + rounded);
    gated_ = reinterpret_cast<uint16_t*>(base + gated);
    sums_ = base + sums;
    scratch_ = base + scratch;
    partial_ = base + partial;
    scrap_ = base + scrap;
    packed_scratch_ = reinterpret_cast<char*>(base + packed_scratch);
}

size_t Program::workspace_bytes() const {
    size_t bytes = memory_ ? memory_->bytes() : 0;
    for (const RopeTable& table : rope_tables_)
        bytes += (table.cosine.size() + table.sine.size()) * sizeof(float);
    return bytes;
}

}  // namespace forerun
