#include "measure.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

#include "cpu_features.h"
#include "memory.h"
#include "program.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

// Here rather than in program.cpp because only those who measure ask.
const char* Program::name_of(Kind kind) {
    // A switch, so that the compiler misses the name of a new kind.
    switch (kind) {
        case Kind::kEmbed:
            return "embed";
        case Kind::kRmsNorm:
            return "rms_norm";
        case Kind::kRound:
            return "round";
        case Kind::kLinear:
            return "linear";
        case Kind::kRope:
            return "rope";
        case Kind::kWriteKv:
            return "write_kv";
        case Kind::kAttention:
            return "attention";
        case Kind::kSilu:
            return "silu";
        case Kind::kSiluMul:
            return "silu_mul";
        case Kind::kAdd:
            return "add";
        case Kind::kSelectOutputs:
            return "select_outputs";
    }
    return "unnamed";
}

Program::OpShape Program::shape_of(const Op& op) const {
    const PackedMatrix* matrix = op.kind == Kind::kEmbed || op.kind == Kind::kLinear ? op.matrix : nullptr;
    return {.kind = name_of(op.kind),
            .layer = op.layer,
            .inputs = op.a.width + op.b.width,
            .outputs = op.kind == Kind::kRound ? (op.a.width + 1) / 2 : op.out.width,  // half as wide as float32
            .num_heads = op.num_heads,
            .num_kv_heads = op.num_kv_heads,
            .weight_bytes = matrix ? PackedMatrix::bytes(matrix->rows(), matrix->cols(), matrix->format()) : 0,
            .on_outputs = runs_on_outputs(op)};
}

// What the operations of a stage read that none of them has made, and all that they write.
Program::OpShape Program::shape_of(const Stage& stage) const {
    OpShape shape = shape_of(ops_[stage.begin]);
    if (stage.end - stage.begin == 1) return shape;
    shape.kind.clear();
    shape.inputs = shape.outputs = 0;
    if (!stage.is_gating) shape.weight_bytes = 0;  // of an embedding table a few rows are read
    std::vector<View> made;
    for (size_t i = stage.begin; i < stage.end; ++i) {
        const Op& op = ops_[i];
        const std::string name = name_of(op.kind);
        if (i == stage.begin || op.kind != ops_[i - 1].kind) shape.kind += (shape.kind.empty() ? "" : "+") + name;
        if (op.kind == Kind::kEmbed) shape.inputs += op.out.width / 2;
        for (const View view : {op.a, op.b}) {
            if (std::find(made.begin(), made.end(), view) == made.end()) shape.inputs += view.width;
        }
        const bool in_place = op.kind == Kind::kRope || op.kind == Kind::kWriteKv;
        if (!op.is_scrap || op.kind == Kind::kRound)
            shape.outputs += in_place ? op.a.width + op.b.width : shape_of(op).outputs;
        made.push_back(in_place ? op.a : op.out);
    }
    shape.layer = ops_[stage.end - 1].layer;
    shape.num_kv_heads = ops_[stage.end - 1].num_kv_heads;
    return shape;
}

std::vector<Program::OpShape> Program::op_shapes() const {
    std::vector<OpShape> shapes;
    for (const Stage& stage : stages_)
        shapes.push_back(shape_of(stage));
    return shapes;
}

namespace {

// Bytes that one thread reads at a time when a buffer is read once: threads then stay close together in memory, and
// one that is late costs little.
constexpr size_t kReadPiece = size_t{1} << 20;

uint64_t read_portable(const char* data, size_t bytes) {
    const uint64_t* words = reinterpret_cast<const uint64_t*>(data);
    uint64_t sum[16] = {};
    for (size_t i = 0; i < bytes / sizeof(uint64_t); i += 16) {
        for (size_t lane = 0; lane < 16; ++lane)
            sum[lane] += words[i + lane];
    }
    uint64_t total = 0;
    for (const uint64_t lane : sum)
        total += lane;
    return total;
}

// A multiply and an add, as strict floating point has them where no fused instruction may be assumed.
constexpr int kPortableLanes = 32;
double multiply_portable(int64_t rounds) {
    float sum[kPortableLanes];
    float factor = 0.9990234375f;
    __asm__ volatile("" : "+m"(factor));  // nothing the compiler could compute with
    for (int lane = 0; lane < kPortableLanes; ++lane)
        sum[lane] = static_cast<float>(lane + 1);
    for (int64_t round = 0; round < rounds; ++round) {
        for (int lane = 0; lane < kPortableLanes; ++lane)
            sum[lane] = sum[lane] * factor + factor;
    }
    double total = 0;
    for (const float lane : sum)
        total += lane;
    return total;
}

template <class Loop>
std::vector<Loop> usable(std::vector<Loop> loops) {
    std::erase_if(loops, [](const Loop& loop) {
        return !std::all_of(loop.needs.begin(), loop.needs.end(), [](const char* need) { return has_feature(need); });
    });
    return loops;
}

const std::vector<ReadLoop>& read_loops() {
    static const std::vector<ReadLoop> loops = [] {
        std::vector<ReadLoop> all;
#if defined(__x86_64__)
        all = x86_read_loops();
#endif
        all.push_back({"portable", {}, read_portable});
        return usable(all);
    }();
    return loops;
}

const std::vector<MultiplyLoop>& multiply_loops() {
    static const std::vector<MultiplyLoop> loops = [] {
        std::vector<MultiplyLoop> all;
#if defined(__x86_64__)
        all = x86_multiply_loops();
#elif defined(__aarch64__)
        all = neon_multiply_loops();
#endif
        all.push_back({"portable_fp32", {}, 2.0 * kPortableLanes, multiply_portable});
        return usable(all);
    }();
    return loops;
}

template <class Loop>
const Loop& loop_at(const std::vector<Loop>& loops, int index) {
    if (index < 0 || static_cast<size_t>(index) >= loops.size()) throw std::out_of_range("no such measuring loop");
    return loops[static_cast<size_t>(index)];
}

template <class F>
double seconds_of(const F& work) {
    const auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Where sums go that nobody needs, so that they must be computed.
std::atomic<uint64_t> unread_sum{0};

// Memory to read: pages that exist and hold no zeros.
class ReadBuffer {
  public:
    ReadBuffer(size_t bytes, ThreadPool& pool) : memory_(bytes) {
        const size_t pieces = (bytes + kReadPiece - 1) / kReadPiece;
        if (pieces == 0 || pieces > static_cast<size_t>(ThreadPool::kMaxTasks)) {
            throw std::invalid_argument("a read buffer must hold 1 byte to 1 TB");
        }
        pool.run(static_cast<int>(pieces), [&](int piece, int) {
            const size_t begin = static_cast<size_t>(piece) * kReadPiece;
            std::fill(memory_.data() + begin, memory_.data() + std::min(bytes, begin + kReadPiece), char{37});
        });
    }

    // Bytes per second at which the pool reads the first `bytes` `passes` times. With several passes every thread keeps
    // to its own part, so that small buffers are read from the caches of the cores.
    double rate(size_t bytes, int passes, const ReadLoop& loop, ThreadPool& pool) const {
        const size_t threads = static_cast<size_t>(pool.size());
        const size_t share = bytes / threads / kReadUnit * kReadUnit;
        if (share == 0 || bytes > memory_.bytes() || passes < 1) {
            throw std::invalid_argument("cannot read " + std::to_string(bytes) + " bytes " + std::to_string(passes) +
                                        " times with " + std::to_string(threads) + " threads");
        }
        const size_t piece = passes > 1 ? share : std::min(share, kReadPiece);
        const size_t tasks = passes > 1 ? threads : bytes / piece;
        const double seconds = seconds_of([&] {
            pool.run(static_cast<int>(tasks), [&](int task, int) {
                uint64_t sum = 0;
                for (int pass = 0; pass < passes; ++pass)
                    sum += loop.read(memory_.data() + static_cast<size_t>(task) * piece, piece);
                unread_sum.fetch_add(sum, std::memory_order_relaxed);
            });
        });
        return static_cast<double>(tasks * piece) * passes / seconds;
    }

  private:
    HugeBuffer memory_;
};

void bind_limits(nb::module_& m) {
    nb::class_<ReadBuffer>(m, "ReadBuffer")
        .def(nb::init<size_t, ThreadPool&>(), "bytes"_a, "pool"_a)
        .def(
            "rate",
            [](const ReadBuffer& buffer, size_t bytes, int passes, int loop, ThreadPool& pool) {
                return buffer.rate(bytes, passes, loop_at(read_loops(), loop), pool);
            },
            "bytes"_a, "passes"_a, "loop"_a, "pool"_a, nb::call_guard<nb::gil_scoped_release>(),
            "Bytes per second at which the pool reads the first `bytes` with one of read_loops().");
    m.def(
        "read_loops",
        [] {
            std::vector<std::string> names;
            for (const ReadLoop& loop : read_loops())
                names.emplace_back(loop.name);
            return names;
        },
        "Ways of reading memory that this CPU has.");
    m.def(
        "multiply_loops",
        [] {
            std::vector<std::string> formats;
            for (const MultiplyLoop& loop : multiply_loops())
                formats.emplace_back(loop.format);
            return formats;
        },
        "Instructions that multiply numbers, as far as this CPU has them.");
    m.def(
        "multiply_rate",
        [](int loop, double at_least, ThreadPool& pool) {
            const MultiplyLoop& chosen = loop_at(multiply_loops(), loop);
            for (int64_t rounds = 1024;; rounds *= 2) {
                const double seconds = seconds_of([&] {
                    pool.run(pool.size(), [&](int, int) {
                        const double sum = chosen.multiply(rounds);
                        unread_sum.fetch_add(sum > 0, std::memory_order_relaxed);
                    });
                });
                if (seconds >= at_least) return chosen.operations * static_cast<double>(rounds) * pool.size() / seconds;
            }
        },
        "loop"_a, "at_least"_a, "pool"_a, nb::call_guard<nb::gil_scoped_release>(),
        "Operations per second of one of multiply_loops() on all threads of the pool, from a run of at least so many "
        "seconds; a multiply-add is two operations.");
}

void bind_op_times(nb::module_& m) {
    using Shape = Program::OpShape;
    nb::class_<Shape>(m, "OpShape")
        .def_ro("kind", &Shape::kind)
        .def_ro("layer", &Shape::layer)
        .def_ro("inputs", &Shape::inputs)
        .def_ro("outputs", &Shape::outputs)
        .def_ro("num_heads", &Shape::num_heads)
        .def_ro("num_kv_heads", &Shape::num_kv_heads)
        .def_ro("weight_bytes", &Shape::weight_bytes)
        .def_ro("on_outputs", &Shape::on_outputs);
    m.def("op_shapes", &Program::op_shapes, "program"_a,
          "What runs one after the other: operations, or several that were fused, named a+b.");
    m.def("time_ops", &Program::time_ops, "program"_a, "on"_a, "Time every operation of the next runs, or no longer.");
    m.def("op_ns", &Program::op_ns, "program"_a, "Nanoseconds of each operation in the last run that was timed.");
}

}  // namespace
}  // namespace forerun

void bind_measure(nb::module_& m) {
    forerun::bind_limits(m);
    forerun::bind_op_times(m);
}
