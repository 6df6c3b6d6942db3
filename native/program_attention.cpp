// Program's attention: how the queries and spans of a step are cut into tasks. No cut changes a bit.
#include <algorithm>

#include "program.h"

namespace forerun {

namespace {

int ceil_div(int value, int unit) {
    return (value + unit - 1) / unit;
}

}  // namespace

void Program::run_attention(const Op& op, const BatchArrays& batch, const KvStore& store) {
    const AttentionArgs args{store.layer(op.layer),
                             pointer(op.a),
                             stride(op.a),
                             pointer(op.out),
                             stride(op.out),
                             op.num_heads / op.num_kv_heads,
                             op.number,
                             batch.positions,
                             batch.slots,
                             batch.ancestors,
                             op.window};
    const auto attend = store.is_fp32() ? table_.attention_fp32 : table_.attention_bf16;
    const auto merge = store.is_fp32() ? table_.merge_fp32 : table_.merge_bf16;
    // With few queries the spans of one query are spread over threads and merged afterwards; the bits are the same.
    size_t floats = plan_attention(args, batch, false);
    if (tasks_.size() < static_cast<size_t>(4 * pool_.size()) && pool_.size() > 1) {
        floats = plan_attention(args, batch, true);
        if (floats > partial_floats_) plan_attention(args, batch, false);
    }
    run_tasks(static_cast<int>(tasks_.size()), [&](int task, int thread) {
        attend(args, tasks_[static_cast<size_t>(task)], scratch_ + scratch_floats_ * static_cast<size_t>(thread));
    });
    run_tasks(static_cast<int>(merges_.size()), [&](int task, int thread) {
        merge(args, merges_[static_cast<size_t>(task)], scratch_ + scratch_floats_ * static_cast<size_t>(thread));
    });
}

// Fills tasks_ and merges_; returns the floats of partial_ that they use.
size_t Program::plan_attention(const AttentionArgs& args, const BatchArrays& batch, bool split_spans) {
    tasks_.clear();
    merges_.clear();
    size_t used = 0;
    const int per_row = args.heads_per_group;
    const int most = args.layer.is_tiled ? kMaxTileQueries : kMaxTaskQueries;
    const int step = per_row <= most ? most / per_row * per_row : most;
    for (int s = 0; s < batch.num_sequences; ++s) {
        const int first = batch.query_start[s], num_rows = batch.query_start[s + 1] - first;
        const AttentionSequence sequence{first, num_rows, batch.tree_root[s],
                                         batch.block_table + static_cast<size_t>(s) * batch.table_width};
        // The last rows first: they see the most, and a long task at the end leaves the other threads idle.
        for (int end = num_rows * per_row, begin; end > 0; end = begin) {
            begin = (end - 1) / step * step;
            int keys = 0, before = max_positions_;
            for (int row = first + begin / per_row; row <= first + (end - 1) / per_row; ++row) {
                keys = std::max(keys, visible_keys(args, sequence, row));
                before = std::min(before, first_visible(args, visible_keys(args, sequence, row)));
            }
            const int span_begin = before / kSpan, span_end = ceil_div(keys, kSpan);
            for (int head = 0; head < args.layer.num_heads; ++head) {
                AttentionTask task{sequence, head, begin, end, span_begin, span_end, nullptr};
                if (!split_spans || span_end - span_begin == 1) {
                    tasks_.push_back(task);
                    continue;
                }
                task.partial = partial_ + used;
                merges_.push_back(task);
                for (int span = span_begin; span < span_end; ++span) {
                    task.span_begin = span;
                    task.span_end = span + 1;
                    task.partial = partial_ + used;
                    tasks_.push_back(task);
                    used += partial_state_floats(args.layer, end - begin);
                }
            }
        }
    }
    return used;
}

}  // namespace forerun
