// OpTimes: when each operation of a program's last run was worked on, as a whole and by every thread.
//
// A program that is not timed has none and pays one branch an operation. While an operation runs, a thread writes its
// own span only; the caller reads when the run is over, which the pool orders behind everything a task wrote.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace nanobind {
class module_;
}

namespace forerun {

// Nanoseconds on std::chrono::steady_clock, which is the clock of Python's time.perf_counter_ns; 0, 0: nothing done.
struct Span {
    int64_t begin = 0, end = 0;
};

class OpTimes {
  public:
    OpTimes(size_t num_ops, int num_threads)
        : num_ops_(num_ops), spans_((1 + static_cast<size_t>(num_threads)) * num_ops) {}

    // ---- for the caller of a run ----
    void begin_op(size_t op) {
        op_ = op;
        for (size_t i = op; i < spans_.size(); i += num_ops_)
            spans_[i] = {};
        spans_[op].begin = now();
    }
    void end_op() { spans_[op_].end = now(); }

    // Runs a task of the current operation on one of the pool's threads; its span there grows to the task's end.
    template <class F>
    void time_task(int thread, const F& task) {
        Span& span = spans_[(1 + static_cast<size_t>(thread)) * num_ops_ + op_];
        if (span.begin == 0) span.begin = now();
        task();
        span.end = now();
    }

    // [1 + threads, ops]: each operation as a whole, then each thread's part in it.
    const std::vector<Span>& spans() const { return spans_; }
    size_t num_ops() const { return num_ops_; }

  private:
    static int64_t now() {
        return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    }

    size_t num_ops_, op_ = 0;
    std::vector<Span> spans_;
};

}  // namespace forerun

// Adds what backends/profiled uses to the Python module.
void bind_profile(nanobind::module_& m);
