// Program's stages: which neighbouring operations run as one parallel region.
//
// Waking the threads and waiting for the last of them costs as much as a small operation, and a row is cheapest to read
// where it was just written. So operations that treat each row on its own run together, a few rows through all of them
// before the next few. The rotations of queries and keys and the writing of keys and values run together by heads.
// Every operation is the kernel it was, on values that it would have found, so that no bit changes.
//
// A row's operations keep their order, and none of them reads another row: whatever buffers they share, they may be
// merged as long as they run on the same rows. Only the fp32 result that goes into nothing but a rounding needs more
// thought, since it is then not written at all. Nor are the outputs of a linear layer whose kernel gates them.
#include <algorithm>
#include <vector>

#include "program.h"

namespace forerun {

namespace {

bool overlap(View x, View y) {
    return x.width > 0 && y.width > 0 && x.buffer == y.buffer && x.column < y.column + y.width &&
           y.column < x.column + x.width;
}

// Which columns of a view still hold the value that was there at first.
class Columns {
  public:
    explicit Columns(View value) : value_(value), held_(static_cast<size_t>(value.width), true) {}

    bool any_in(View view) const {
        for (int column = 0; column < value_.width; ++column)
            if (held_[static_cast<size_t>(column)] && is_in(view, column)) return true;
        return false;
    }
    void overwrite(View view) {
        for (int column = 0; column < value_.width; ++column)
            if (is_in(view, column)) held_[static_cast<size_t>(column)] = false;
    }

  private:
    bool is_in(View view, int column) const {
        const int place = value_.column + column - view.column;
        return view.buffer == value_.buffer && place >= 0 && place < view.width;
    }

    View value_;
    std::vector<bool> held_;
};

}  // namespace

bool Program::runs_on_outputs(const Op& op) const {
    return buffer(op.out.width > 0 ? op.out : op.a).on_outputs;
}

void Program::plan_stages(bool fuse) {
    for (size_t begin = 0, end; begin < ops_.size(); begin = end) {
        end = begin + 1;
        if (fuse && gates_outputs(begin)) {
            end = begin + 3;
            stages_.push_back({begin, end, false, true});
            gated_words_ = std::max(gated_words_, rounded_stride(*ops_[begin + 2].matrix));
            ops_[begin].is_scrap = ops_[begin + 1].is_scrap = ops_[begin + 2].is_scrap = true;
            for (size_t i = end; i < ops_.size() && ops_[i].kind != Kind::kRound; ++i)
                ops_[i].is_gated = ops_[i].kind == Kind::kLinear;
            continue;
        }
        if (fuse) end = std::max({end, end_of_rows(begin), end_of_heads(begin)});
        stages_.push_back({begin, end, end - begin > 1 && ops_[end - 1].kind == Kind::kWriteKv});
        if (end - begin == 1 || ops_[end - 1].kind != Kind::kRound) continue;
        Op &maker = ops_[end - 2], &round = ops_[end - 1];
        if (maker.out != round.a || is_read_behind(round.a, end)) continue;
        maker.is_scrap = round.is_scrap = true;
        scrap_floats_ = std::max(scrap_floats_, kLanes * scrap_stride(round.a));
    }
}

// Behind the last of the operations from `begin` on that go through rows one by one.
size_t Program::end_of_rows(size_t begin) const {
    size_t end = begin;
    for (; end < ops_.size() && runs_on_outputs(ops_[end]) == runs_on_outputs(ops_[begin]); ++end) {
        const Kind kind = ops_[end].kind;
        const bool by_rows = kind == Kind::kEmbed || kind == Kind::kRmsNorm || kind == Kind::kRound ||
                             kind == Kind::kSilu || kind == Kind::kSiluMul || kind == Kind::kAdd ||
                             kind == Kind::kSelectOutputs;
        if (!by_rows) break;
    }
    return end;
}

// Behind a write_kv after rotations, if each of these belongs to whole key/value heads: the rotated columns of one
// task are then nobody else's, and the keys it writes are those that it has rotated. `begin` if there is none.
size_t Program::end_of_heads(size_t begin) const {
    size_t end = begin;
    while (end < ops_.size() && ops_[end].kind == Kind::kRope)
        ++end;
    if (end == begin || end == ops_.size() || ops_[end].kind != Kind::kWriteKv) return begin;
    const Op& write = ops_[end];
    if (overlap(write.a, write.b) || runs_on_outputs(write)) return begin;
    for (size_t i = begin; i < end; ++i) {
        const Op& rope = ops_[i];
        if (rope.num_heads % write.num_kv_heads != 0 || runs_on_outputs(rope) != runs_on_outputs(write)) return begin;
        if (overlap(rope.a, write.b) || (overlap(rope.a, write.a) && rope.a != write.a)) return begin;
        for (size_t other = begin; other < i; ++other)
            if (overlap(rope.a, ops_[other].a)) return begin;
    }
    return end + 1;
}

// Whether a linear layer, the gating of one half of its outputs with the other and the rounding of that follow upon
// each other, so that the layer's kernel can do it all.
bool Program::gates_outputs(size_t begin) const {
    if (!table_.gates_packed || begin + 2 >= ops_.size()) return false;
    const Op &linear = ops_[begin], &gate = ops_[begin + 1], &round = ops_[begin + 2];
    if (linear.kind != Kind::kLinear || gate.kind != Kind::kSiluMul || round.kind != Kind::kRound) return false;
    const int half = linear.out.width / 2;
    const View first{linear.out.buffer, linear.out.column, half}, second{first.buffer, first.column + half, half};
    const PackedMatrix& next = *round.matrix;
    return !linear.is_gated && linear.matrix->is_packed() && linear.vector < 0 && linear.out.width == 2 * half &&
           gate.a == first && gate.b == second && round.a == gate.out && needs_columns(next) &&
           half == next.k_tiles() * tile_shape(next.format()).inputs &&  // no inputs of zero behind them
           !is_read_behind(linear.out, begin + 2) && !is_read_behind(gate.out, begin + 3);
}

// Whether anybody reads a value from operation `index` on, before it is written anew.
bool Program::is_read_behind(View value, size_t index) const {
    for (const View kept : kept_)
        if (overlap(kept, value)) return true;
    Columns columns(value);
    for (size_t i = index; i < ops_.size(); ++i) {
        const Op& op = ops_[i];
        const bool reads_rounded = op.kind == Kind::kLinear;  // what the rounding has left
        if (!reads_rounded && (columns.any_in(op.a) || columns.any_in(op.b))) return true;
        columns.overwrite(op.out);
    }
    return columns.any_in(logits_);
}

}  // namespace forerun
