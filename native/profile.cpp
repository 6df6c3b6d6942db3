#include "profile.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <memory>
#include <stdexcept>

#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

void Program::time_ops(bool on) {
    if (on == (times_ != nullptr)) return;
    times_ = on ? std::make_unique<OpTimes>(stages_.size(), pool_.size()) : nullptr;
}

std::vector<int64_t> Program::op_ns() const {
    if (!times_) return {};
    std::vector<int64_t> all;
    for (size_t op = 0; op < stages_.size(); ++op)
        all.push_back(times_->spans()[op].end - times_->spans()[op].begin);
    return all;
}

namespace {

using SpanArray = nb::ndarray<nb::numpy, int64_t, nb::ndim<3>>;

SpanArray op_spans(const Program& program) {
    const OpTimes* times = program.times();
    if (times == nullptr) throw std::invalid_argument("the program's operations are not timed: call time_ops first");
    const size_t num_ops = times->num_ops(), size = times->spans().size();
    auto copy = std::make_unique<Span[]>(size);
    std::copy(times->spans().begin(), times->spans().end(), copy.get());
    const nb::capsule owner(copy.get(), [](void* data) noexcept { delete[] static_cast<Span*>(data); });
    const size_t shape[3] = {num_ops ? size / num_ops : 0, num_ops, 2};
    return SpanArray(&copy.release()->begin, 3, shape, owner);
}

}  // namespace
}  // namespace forerun

void bind_profile(nb::module_& m) {
    m.def("op_spans", &forerun::op_spans, "program"_a,
          "[1 + threads, O, 2] int64 begin and end of each operation of the last timed run, in nanoseconds of "
          "time.perf_counter_ns: the operation as a whole, then every thread's part in it, zeros where it had none.");
}
