// Program's attention: how the queries and spans of a step are cut into tasks. No cut changes a bit.
#include <algorithm>

#include "program.h"

namespace forerun {

namespace {

int ceil_div(int value, int unit) {
    return (value + unit - 1) / unit;
}

// How many key/value heads a task takes, for a sequence with that many queries of each.
int heads_of_task(const KvLayer& layer, int queries, int max_heads) {
    const int fitting = layer.is_tiled ? kMaxTileGroups / ceil_div(queries, kLanes) : kMaxTaskQueries / queries;
    if (fitting < 1 || queries > kMaxTileQueries) return 1;
    const int most = std::min(max_heads, fitting);
    return ceil_div(layer.num_heads, ceil_div(layer.num_heads, most));
}

// Where spans are spread over threads: how many key/value heads get a task each over all spans instead, as many as the
// threads share evenly. Their queries are packed once and nothing is left to merge, which costs a tenth of the time of
// 16 rows, because a span's state over tiles holds sixteen queries and half of the states come from another core's
// cache.
int whole_heads_of(const KvLayer& layer, int threads) {
    return layer.is_tiled ? layer.num_heads / threads * threads : 0;
}

}  // namespace

void Program::run_attention(const Op& op, const BatchArrays& batch, const KvStore& store) {
    const AttentionArgs args{
        store.layer(op.layer),          pointer(op.a), stride(op.a),    pointer(op.out), stride(op.out),
        op.num_heads / op.num_kv_heads, op.number,     batch.positions, batch.ancestors, op.window};
    const bool is_fp32 = args.layer.codec == KvCodec::kFp32;
    const auto attend = is_fp32 ? table_.attention_fp32 : table_.attention_bf16;
    const auto merge = is_fp32 ? table_.merge_fp32 : table_.merge_bf16;
    // With few queries the spans of one query are spread over threads and merged afterwards; the bits are the same.
    // Neighbouring heads go together, because their keys are read as one stream, if that leaves enough tasks.
    const auto enough = static_cast<size_t>(4 * pool_.size());
    plan_attention(args, batch, false, kMaxTaskHeads);
    if (pool_.size() > 1 && tasks_.size() < enough) {
        size_t floats = plan_attention(args, batch, true, kMaxTaskHeads);
        if (tasks_.size() < enough) floats = plan_attention(args, batch, true, 1);
        if (floats > partial_floats_) plan_attention(args, batch, false, 1);
    }
    run_tasks(static_cast<int>(tasks_.size()), [&](int task, int thread) {
        attend(args, tasks_[static_cast<size_t>(task)], scratch_ + scratch_floats_ * static_cast<size_t>(thread));
    });
    run_tasks(static_cast<int>(merges_.size()), [&](int task, int thread) {
        merge(args, merges_[static_cast<size_t>(task)], scratch_ + scratch_floats_ * static_cast<size_t>(thread));
    });
}

// Fills tasks_ and merges_; returns the floats of partial_ that they use.
size_t Program::plan_attention(const AttentionArgs& args, const BatchArrays& batch, bool split_spans, int max_heads) {
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
            const int span_begin = before / kSpan, span_end = ceil_div(keys, kSpan), queries = end - begin;
            const int heads = heads_of_task(args.layer, num_rows * per_row, max_heads);
            const size_t state_floats = partial_state_floats(args.layer, queries);
            const int whole_heads = split_spans ? whole_heads_of(args.layer, pool_.size()) : 0;
            for (int head = 0, num_heads; head < args.layer.num_heads; head += num_heads) {
                num_heads = head < whole_heads ? 1 : std::min(heads, args.layer.num_heads - head);
                AttentionTask task{sequence, head, num_heads, begin, end, span_begin, span_end, nullptr, 0};
                if (!split_spans || head < whole_heads || span_end - span_begin == 1) {
                    tasks_.push_back(task);
                    continue;
                }
                float* const partial = partial_ + used;
                task.partial_stride = state_floats * static_cast<size_t>(num_heads);
                used += task.partial_stride * static_cast<size_t>(span_end - span_begin);
                for (int span = span_begin; span < span_end; ++span) {
                    task.span_begin = span;
                    task.span_end = span + 1;
                    task.partial = partial + static_cast<size_t>(span - span_begin) * task.partial_stride;
                    tasks_.push_back(task);
                }
                task.span_begin = span_begin;
                task.num_heads = 1;
                for (int i = 0; i < num_heads; ++i) {
                    task.kv_head = head + i;
                    task.partial = partial + static_cast<size_t>(i) * state_floats;
                    merges_.push_back(task);
                }
            }
        }
    }
    return used;
}

}  // namespace forerun
