// Program::run: the stages one after the other, each shared out to the threads.
#include <algorithm>
#include <stdexcept>

#include "program.h"

namespace forerun {

namespace {

constexpr size_t kLinearTaskBytes = size_t{128} << 10;  // of weights that one task of a linear layer streams
constexpr size_t kMaxThreadTasks = 8;                   // of a linear layer, for every thread
constexpr size_t kManyRowsTasks = 4;                    // the same with many rows
constexpr size_t kSerialWork = 16384;                   // elements below which waking threads costs more than it saves
constexpr int kSharedRows = 8;   // of one task at least, where sixteen rows write into the same cache lines
constexpr int kCachedRows = 16;  // whose heads stay in the level 1 cache

int ceil_div(int value, int unit) {
    return (value + unit - 1) / unit;
}

// The first row from `row` on whose values do not lie in a cache line of the row before it: two threads that write one
// line wait for each other.
int next_line(const BatchArrays& batch, int row) {
    if (row == 0) return 0;
    const auto line = [&](int r) { return batch.slots[r] / kStepPositions; };
    while (row < batch.num_rows && line(row) == line(row - 1))
        ++row;
    return row;
}

// Where piece `index` of `pieces` begins.
int piece_begin(int rows, int index, int pieces) {
    return static_cast<int>(int64_t{rows} * index / pieces);
}

}  // namespace

void Program::run(const BatchArrays& batch, KvStore& store) {
    if (!finished_) throw std::invalid_argument("the program is not finished");
    check_store(store);
    check_batch(batch, store);
    if (batch.num_rows == 0) return;
    const FloatEnvironment environment;
    for (size_t i = 0; i < stages_.size(); ++i) {
        if (times_) times_->begin_op(i);
        run_stage(stages_[i], batch, store);
        if (times_) times_->end_op();
    }
}

void Program::run_stage(const Stage& stage, const BatchArrays& batch, const KvStore& store) {
    const Op& first = ops_[stage.begin];
    const int rows = runs_on_outputs(first) ? batch.num_outputs : batch.num_rows;
    if (rows == 0) return;
    if (first.kind == Kind::kLinear) return run_linear(stage, rows);
    if (first.kind == Kind::kAttention) return run_attention(first, batch, store);
    if (stage.by_heads) return run_heads(stage, batch, store);
    int pieces = pieces_of(rows, work_per_row(stage)), unit = 1;
    const Op& last = ops_[stage.end - 1];
    if (last.kind == Kind::kRound && (needs_sums(*last.matrix) || needs_columns(*last.matrix))) {
        unit = kSharedRows;
        pieces = std::min(pieces, ceil_div(rows, unit));
    }
    run_tasks(pieces, [&](int piece, int thread) {
        const int blocks = ceil_div(rows, unit);
        const int begin = piece_begin(blocks, piece, pieces) * unit;
        const int end = std::min(rows, piece_begin(blocks, piece + 1, pieces) * unit);
        if (stage.end - stage.begin == 1) return run_rows(first, {batch, store, begin, end, nullptr});
        for (int row = begin, next; row < end; row = next) {
            next = std::min(end, (row / kLanes + 1) * kLanes);
            for (size_t i = stage.begin; i < stage.end; ++i)
                run_rows(ops_[i], {batch, store, row, next, scrap_of(thread)});
        }
    });
}

// Pieces of equal size, as many for every thread; one when the work is small.
int Program::pieces_of(int rows, size_t work_per_row) const {
    const size_t work = static_cast<size_t>(rows) * work_per_row, threads = static_cast<size_t>(pool_.size());
    const size_t pieces = std::min({static_cast<size_t>(rows), work / kSerialWork + 1, 4 * threads});
    return static_cast<int>(pieces > threads ? pieces / threads * threads : pieces);
}

size_t Program::work_per_row(const Stage& stage) const {
    size_t work = 0;
    for (size_t i = stage.begin; i < stage.end; ++i) {
        const Op& op = ops_[i];
        const size_t read = static_cast<size_t>(op.a.width), written = static_cast<size_t>(op.out.width);
        work += op.kind == Kind::kEmbed     ? 8 * written
                : op.kind == Kind::kWriteKv ? 4 * read
                : op.kind == Kind::kSilu    ? 4 * read
                : op.kind == Kind::kSiluMul ? 4 * read
                                            : read;
    }
    return work;
}

void Program::run_heads(const Stage& stage, const BatchArrays& batch, const KvStore& store) {
    const int heads = ops_[stage.end - 1].num_kv_heads, rows = batch.num_rows;
    const int wanted = pieces_of(rows * heads, work_per_row(stage) / static_cast<size_t>(heads));
    const int groups = std::min(heads, wanted), pieces = ceil_div(wanted, groups);
    run_tasks(groups * pieces, [&](int task, int thread) {
        const int piece = task / groups, group = task % groups;
        const int first = piece_begin(heads, group, groups), count = piece_begin(heads, group + 1, groups) - first;
        const int end = next_line(batch, piece_begin(rows, piece + 1, pieces));
        int begin = next_line(batch, piece_begin(rows, piece, pieces));
        for (int next; begin < end; begin = next) {
            next = next_line(batch, std::min(begin + kCachedRows, end));
            for (size_t i = stage.begin; i < stage.end; ++i) {
                Op op = ops_[i];
                for (View* view : {&op.a, &op.b}) {
                    view->column += view->width / heads * first;
                    view->width = view->width / heads * count;
                }
                op.num_heads = op.num_heads / heads * count;
                op.num_kv_heads = count;
                op.first_head = first;
                run_rows(op, {batch, store, begin, next, scrap_of(thread)});
            }
        }
    });
}

void Program::run_rows(const Op& op, const RowTask& task) const {
    const size_t lda = op.a.width ? stride(op.a) : 0, ldb = op.b.width ? stride(op.b) : 0;
    const size_t ldo = op.is_scrap ? scrap_stride(op.out) : op.out.width ? stride(op.out) : 0;
    const int rows = task.end - task.begin;
    const float* a = op.a.width ? pointer(op.a, task.begin) : nullptr;
    const float* b = op.b.width ? pointer(op.b, task.begin) : nullptr;
    float* const out = op.is_scrap    ? task.scrap + static_cast<size_t>(task.begin % kLanes) * ldo
                       : op.out.width ? pointer(op.out, task.begin)
                                      : nullptr;
    switch (op.kind) {
        case Kind::kEmbed:
            if (op.matrix->is_packed()) {
                for (int row = 0; row < rows; ++row)
                    op.matrix->read_row(task.batch.tokens[task.begin + row], out + static_cast<size_t>(row) * ldo);
            } else {
                table_.embed(op.matrix->data(), op.matrix->k_tiles(), task.batch.tokens + task.begin, rows,
                             op.out.width, out, ldo);
            }
            break;
        case Kind::kRmsNorm:
            table_.rms_norm(a, lda, rows, op.a.width, vector(op.vector), op.number, out, ldo);
            break;
        case Kind::kRound:
            round_rows(op, task);
            break;
        case Kind::kRope: {
            const RopeTable& table = rope_table(op.vector);
            table_.rope(pointer(op.a, task.begin), lda, rows, op.num_heads, op.a.width / op.num_heads, op.rotary_dim,
                        table.cosine.data(), table.sine.data(), task.batch.positions + task.begin);
            break;
        }
        case Kind::kWriteKv:
            write_kv(op, task);
            break;
        case Kind::kSilu:
            table_.silu_mul(a, lda, vector(op.vector), 0, rows, op.a.width, out, ldo);
            break;
        case Kind::kSiluMul:
            table_.silu_mul(a, lda, b, ldb, rows, op.a.width, out, ldo);
            break;
        case Kind::kAdd:
            table_.add(a, lda, b, ldb, rows, op.a.width, out, ldo);
            break;
        case Kind::kSelectOutputs:
            for (int row = 0; row < rows; ++row) {
                const float* from = pointer(op.a, task.batch.output_rows[task.begin + row]);
                std::copy(from, from + op.a.width, out + static_cast<size_t>(row) * ldo);
            }
            break;
        case Kind::kLinear:
        case Kind::kAttention:
            break;  // not by rows
    }
}

void Program::round_rows(const Op& op, const RowTask& task) const {
    const size_t ldx = rounded_stride(*op.matrix), block_floats = sum_floats(op.a.width);
    const size_t lda = op.is_scrap ? scrap_stride(op.a) : stride(op.a);
    // Scrap has the rows of one block of sixteen, in their places.
    const int skipped = op.is_scrap ? task.begin / kLanes * kLanes : 0;
    const int begin = task.begin - skipped, end = task.end - skipped;
    const float* const x = op.is_scrap ? task.scrap : pointer(op.a);
    uint16_t* const out = rounded_ + static_cast<size_t>(skipped) * ldx;
    if (needs_sums(*op.matrix)) {
        float* const sums = sums_ + static_cast<size_t>(skipped / kLanes) * block_floats;
        table_.round_rows_and_sum(x, lda, begin, end, op.a.width, out, ldx, sums, block_floats);
    } else if (needs_columns(*op.matrix)) {
        const int all_rows = runs_on_outputs(op) ? task.batch.num_outputs : task.batch.num_rows;
        table_.round_columns(x, lda, begin, end, all_rows, op.a.width, out, ldx);
    } else {
        const auto first = static_cast<size_t>(begin);
        table_.round_rows(x + first * lda, lda, end - begin, op.a.width, out + first * ldx, ldx);
    }
}

void Program::write_kv(const Op& op, const RowTask& task) const {
    WriteKvArgs args{
        task.store.layer(op.layer), pointer(op.a), stride(op.a), pointer(op.b), stride(op.b), task.batch.slots};
    const size_t head_elements = static_cast<size_t>(args.layer.head_dim) * args.layer.block_size;
    args.layer.base += static_cast<size_t>(op.first_head) * head_elements * element_bytes(args.layer.codec);
    args.layer.num_heads = op.num_kv_heads;
    const bool is_fp32 = args.layer.codec == KvCodec::kFp32;
    (is_fp32 ? table_.write_kv_fp32 : table_.write_kv_bf16)(args, task.begin, task.end);
}

// Tasks of equal size, as many for every thread: large enough to stream, small enough to share the rest of a thread
// that is held up. Many rows' inputs do not fit the caches that are close, and every task reads all of them.
int Program::linear_tasks(const PackedMatrix& matrix, int rows) const {
    const size_t bytes = matrix.panel_bytes() * static_cast<size_t>(matrix.panels());
    const size_t each = bytes / (kLinearTaskBytes * static_cast<size_t>(pool_.size()));
    const size_t most = rows > 2 * kLanes ? kManyRowsTasks : kMaxThreadTasks;
    const int tasks = static_cast<int>(std::clamp<size_t>(each, 2, most)) * pool_.size();
    return std::min(tasks, ceil_div(matrix.panels(), 2));
}

namespace {

// Which of `tasks` tasks the `claim`-th claim gets, so that threads that keep pace each walk through a range of their
// own: what one prefetches behind the end of a task is then its own next one.
int task_of_claim(int claim, int tasks, int threads) {
    const int range = claim % threads, longer = tasks % threads;
    return range * (tasks / threads) + std::min(range, longer) + claim / threads;
}

}  // namespace

void Program::run_linear(const Stage& stage, int rows) {
    const Op& op = ops_[stage.begin];
    const PackedMatrix& matrix = *op.matrix;
    const uint16_t* const x = op.is_gated ? gated_ : rounded_;
    const size_t ldx = rounded_stride(matrix);
    const float* const bias = op.vector >= 0 ? vector(op.vector) : nullptr;
    const LinearArgs plain{
        x, ldx, rows, matrix.data(), matrix.k_tiles(), matrix.rows(), bias, pointer(op.out), stride(op.out)};
    const PackedLinearArgs packed{.x = x,
                                  .ldx = ldx,
                                  .rows = rows,
                                  .sums = sums_,
                                  .sum_floats = sum_floats(matrix.cols()),
                                  .panels = matrix.tiles(),
                                  .panel_bytes = matrix.panel_bytes(),
                                  .format = matrix.format(),
                                  .k_tiles = matrix.k_tiles(),
                                  .columns = matrix.rows(),
                                  .bias = bias,
                                  .out = pointer(op.out),
                                  .ldo = stride(op.out),
                                  .gated = stage.is_gating ? gated_ : nullptr,
                                  .gated_ld = stage.is_gating ? rounded_stride(*ops_[stage.end - 1].matrix) : 0};
    const int panels = stage.is_gating ? matrix.panels() / 2 : matrix.panels();
    const int64_t pairs = ceil_div(panels, 2);  // kernels like panels in pairs
    const int tasks = std::min(linear_tasks(matrix, rows), static_cast<int>(pairs));
    run_tasks(tasks, [&](int claim, int thread) {
        const int task = task_of_claim(claim, tasks, pool_.size());
        const int begin = static_cast<int>(2 * (pairs * task / tasks));
        const int end = std::min(panels, static_cast<int>(2 * (pairs * (task + 1) / tasks)));
        if (matrix.is_packed()) {
            table_.linear_packed(packed, begin, end,
                                 packed_scratch_ + packed_scratch_bytes_ * static_cast<size_t>(thread));
        } else {
            table_.linear(plain, begin, end);
        }
    });
}

}  // namespace forerun
