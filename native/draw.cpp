// The walk over draft trees on the CPU: the flat arrays of forerun/sampling/flatten.py in, drawn tokens out. What a row
// yields is drawer.h's business. Requests are independent of each other, so threads share them.
#include "draw.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dispatch.h"
#include "drawer.h"
#include "thread_pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Logits = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
template <class T, class Shape>
using Array = nb::ndarray<T, Shape, nb::c_contig, nb::device::cpu>;

void require(bool condition, const char* message) {
    if (!condition) throw std::invalid_argument(message);
}

// Hands out consecutive pieces of an array, and never more than there is.
template <class T>
class Pieces {
  public:
    explicit Pieces(std::span<const T> all) : rest_(all) {}
    std::span<const T> take(int64_t count) {
        require(0 <= count && static_cast<size_t>(count) <= rest_.size(),
                "the flat arrays are shorter than their counts say");
        const auto piece = rest_.first(static_cast<size_t>(count));
        rest_ = rest_.subspan(static_cast<size_t>(count));
        return piece;
    }

  private:
    std::span<const T> rest_;
};

// Numbers of a request in `whole` and `real`: see sampling/flatten.py, which writes them and `items`.
constexpr size_t kWholeColumns = 12, kRealColumns = 6;
constexpr int32_t kNotDrawn = -1;

DrawRequest read_request(const int64_t* whole, const double* real, Pieces<int32_t>& items, Pieces<double>& bias_values,
                         Pieces<uint32_t>& masks) {
    DrawRequest request{};
    request.first_output = whole[0];
    request.position = whole[1];
    request.key = {static_cast<uint32_t>(whole[2]), static_cast<uint32_t>(whole[3])};
    request.top_k = whole[4];
    request.banned_until = whole[5];
    request.num_top = whole[6];
    request.temperature = real[0];
    request.top_p = real[1];
    request.min_p = real[2];
    request.repetition = real[3];
    request.frequency = real[4];
    request.presence = real[5];
    request.tree_tokens = items.take(whole[7]);
    request.tree_parents = items.take(whole[7]);
    request.bias_ids = items.take(whole[8]);
    request.bias_values = bias_values.take(whole[8]);
    const auto ids = items.take(whole[9]), counts = items.take(whole[9]);
    request.history.reserve(ids.size() + request.tree_tokens.size());
    for (size_t i = 0; i < ids.size(); ++i)
        request.history.push_back({ids[i], counts[i]});
    request.banned = items.take(whole[10]);
    request.masks = masks.take(whole[7] * whole[11]);
    return request;
}

void walk(const Logits& logits, DrawRequest& request, Drawer& drawer, int32_t* ids, double* logprobs, size_t width) {
    int64_t position = request.position;
    for (int node = 0; node >= 0; ++position) {
        const size_t output = static_cast<size_t>(request.first_output + node);
        const float* row = logits.data() + static_cast<int64_t>(output) * logits.stride(0);
        int32_t* row_ids = ids + output * width;
        double* row_logprobs = logprobs + output * width;
        const int32_t token = row_ids[0] = drawer.draw(row, request, node, position);
        if (token == kNotFinite) return;
        if (request.num_top >= 0)
            row_logprobs[0] = drawer.logprob(row, token, request.num_top, row_ids + 1, row_logprobs + 1);
        if (request.has_penalties()) request.remember(token);
        node = request.child(node, token);
    }
}

// One Drawer a thread.
class Drawers {
  public:
    Drawers(const std::string& table, ThreadPool& pool, int vocabulary) : pool_(pool), vocabulary_(vocabulary) {
        require(vocabulary >= 1, "a vocabulary must not be empty");
        const SamplingKernels& kernels = find_table(table).sampling;
        drawers_.reserve(static_cast<size_t>(pool.size()));
        for (int thread = 0; thread < pool.size(); ++thread)
            drawers_.emplace_back(kernels, vocabulary);
    }

    Drawers(const Drawers&) = delete;
    Drawers& operator=(const Drawers&) = delete;

    size_t bytes() const { return drawers_.size() * drawers_[0].bytes(); }

    void draw(Logits logits, Array<const int64_t, nb::ndim<1>> whole, Array<const double, nb::ndim<1>> real,
              Array<const int32_t, nb::ndim<1>> items, Array<const double, nb::ndim<1>> bias_values,
              Array<const uint32_t, nb::ndim<1>> masks, Array<int32_t, nb::ndim<2>> ids,
              Array<double, nb::ndim<2>> logprobs) {
        const size_t width = ids.shape(1);
        require(logits.shape(1) == static_cast<size_t>(vocabulary_) && logits.stride(1) == 1,
                "a row of logits must be contiguous and as long as the vocabulary");
        const size_t num_requests = whole.size() / kWholeColumns;
        require(whole.size() == num_requests * kWholeColumns && real.size() == num_requests * kRealColumns,
                "the request tables have the wrong size");
        require(ids.shape(0) == logits.shape(0) && logprobs.shape(0) == ids.shape(0) && logprobs.shape(1) == width,
                "the outputs must have one row for every row of logits");
        Pieces<int32_t> item_pieces({items.data(), items.size()});
        Pieces<double> bias_pieces({bias_values.data(), bias_values.size()});
        Pieces<uint32_t> mask_pieces({masks.data(), masks.size()});
        std::vector<DrawRequest> requests;
        for (size_t i = 0; i < num_requests; ++i) {
            requests.push_back(read_request(whole.data() + i * kWholeColumns, real.data() + i * kRealColumns,
                                            item_pieces, bias_pieces, mask_pieces));
            const DrawRequest& request = requests.back();
            require(request.first_output >= 0 && !request.tree_tokens.empty() &&
                        static_cast<size_t>(request.first_output) + request.tree_tokens.size() <= logits.shape(0),
                    "a draft tree needs a row of logits for each of its rows");
            require(request.num_top < static_cast<int64_t>(width),
                    "the outputs are too narrow for the alternatives asked for");
        }
        std::fill(ids.data(), ids.data() + ids.size(), kNotDrawn);
        std::fill(logprobs.data(), logprobs.data() + logprobs.size(), std::numeric_limits<double>::quiet_NaN());
        pool_.run(static_cast<int>(requests.size()), [&](int task, int thread) {
            walk(logits, requests[static_cast<size_t>(task)], drawers_[static_cast<size_t>(thread)], ids.data(),
                 logprobs.data(), width);
        });
    }

  private:
    ThreadPool& pool_;
    int vocabulary_;
    std::vector<Drawer> drawers_;
};

}  // namespace
}  // namespace forerun

void bind_draw(nb::module_& m) {
    using forerun::Drawers;
    nb::class_<Drawers>(m, "Drawers")
        .def(nb::init<const std::string&, forerun::ThreadPool&, int>(), "table"_a, "pool"_a, "vocabulary"_a,
             nb::keep_alive<1, 3>())
        .def_prop_ro("bytes", &Drawers::bytes)
        .def("draw", &Drawers::draw, "logits"_a, "whole"_a, "real"_a, "items"_a, "bias_values"_a, "masks"_a,
             "ids"_a.noconvert(), "logprobs"_a.noconvert(), nb::call_guard<nb::gil_scoped_release>(),
             "Walk every request's draft tree over logits [O, V]; writes ids and logprobs [O, 1 + N]: the drawn token, "
             "then the N most likely. See forerun.sampling.flatten.");
}
