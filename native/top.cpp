// See top.h. One pass: almost every block of a row holds nothing above the least of the best so far, and that question
// is one comparison a value, which compilers turn into vectors of whatever the platform has.
#include "top.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <stdexcept>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

constexpr size_t kBlock = 64;

bool any_above(const float* values, float least) {
    int above = 0;
    for (size_t i = 0; i < kBlock; ++i)
        above |= values[i] > least;  // false for NaN
    return above != 0;
}

// The best values so far, in order.
class Best {
  public:
    explicit Best(std::span<int32_t> ids) : ids_(ids), values_(ids.size()) {}

    float least() const { return values_.back(); }

    // Insert behind everything that is as large; ids come in ascending order, so the lowest stays first.
    void insert(float value, size_t id) {
        size_t at = size_ < ids_.size() ? size_++ : size_ - 1;
        for (; at > 0 && values_[at - 1] < value; --at) {
            values_[at] = values_[at - 1];
            ids_[at] = ids_[at - 1];
        }
        values_[at] = value;
        ids_[at] = static_cast<int32_t>(id);
    }

  private:
    std::span<int32_t> ids_;
    std::vector<float> values_;
    size_t size_ = 0;
};

}  // namespace

void top_ids(std::span<const float> values, std::span<int32_t> ids) {
    if (ids.empty() || ids.size() > values.size()) throw std::invalid_argument("bad number of top ids");
    Best best(ids);
    size_t id = 0;
    for (; id < ids.size(); ++id) {
        const float value = values[id];
        best.insert(value == value ? value : -std::numeric_limits<float>::infinity(), id);
    }
    while (id < values.size()) {
        const bool is_whole = values.size() - id >= kBlock;
        if (is_whole && !any_above(values.data() + id, best.least())) {
            id += kBlock;
            continue;
        }
        for (const size_t end = is_whole ? id + kBlock : values.size(); id < end; ++id)
            if (values[id] > best.least()) best.insert(values[id], id);
    }
}

}  // namespace forerun

void bind_top(nb::module_& m) {
    m.def(
        "top_ids",
        [](nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu> logits,
           const std::vector<int64_t>& rows, nb::ndarray<int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
            if (out.shape(0) != rows.size()) throw std::invalid_argument("the result has one row for each of `rows`");
            const size_t width = logits.shape(1), count = out.shape(1);
            for (size_t i = 0; i < rows.size(); ++i) {
                if (rows[i] < 0 || static_cast<size_t>(rows[i]) >= logits.shape(0))
                    throw nb::index_error("no such row of logits");
                forerun::top_ids({logits.data() + static_cast<size_t>(rows[i]) * width, width},
                                 {out.data() + i * count, count});
            }
        },
        "logits"_a.noconvert(), "rows"_a, "out"_a.noconvert(),
        "Ids of the largest of each row, largest first, into out [len(rows), count]. See forerun.sampling.top.");
}
