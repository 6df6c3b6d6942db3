// The walk over draft trees on the CPU. forerun/sampling/{noise,processors,walk}.py define what is drawn; this file
// takes the same decisions with less work:
//   greedy          one pass over float32 that finds the maximum and any NaN, one that finds its first place
//   top-k           a heap of k, fed only from blocks that hold something larger than its worst
//   top-p           weights summed above a few thresholds; only the band in which the prefix ends is sorted
//   noise           a bound from the upper half of a token's noise rules out nearly all tokens without a logarithm
// A result depends on the row, the request and the position only.
#include "draw.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "row_passes.h"

namespace nb = nanobind;

namespace {

constexpr int32_t kNotFinite = -2;

// The largest score so far. Scores of equal size go to the lower id.
struct Winner {
    Key key;
    uint32_t position;
    double score = -kInfinity;
    int32_t token = -1;

    void consider(int32_t id, double log_weight) {
        const Noise noise(key, position, uint32_t(id));
        if (float(log_weight) + gumbel_bound(noise.upper()) < floor()) return;
        const double value = log_weight + noise.gumbel();
        if (value > score || (value == score && id < token)) {
            score = value;
            token = id;
        }
    }
    // A bound below this cannot win. Log weights that still can are above -50, where float32 rounds by less than 1e-3.
    float floor() const { return float(score) - 1e-3f; }
};

// ---- candidates ----

struct Candidate {
    double z;
    int32_t id;
};

inline bool comes_before(const Candidate& a, const Candidate& b) {
    return a.z > b.z || (a.z == b.z && a.id < b.id);
}

// The k tokens that come first, in no particular order.
void select_top(const double* z, int n, int k, std::vector<Candidate>& out) {
    out.clear();
    if (k >= n / 8) {  // a heap would churn
        for (int i = 0; i < n; ++i)
            out.push_back({z[i], i});
        if (k < n) std::nth_element(out.begin(), out.begin() + k, out.end(), comes_before);
        out.resize(size_t(std::min(k, n)));
        return;
    }
    for (int i = 0; i < k; ++i)
        out.push_back({z[i], i});
    std::make_heap(out.begin(), out.end(), comes_before);  // its front comes last
    if (k == 0) return;
    for (int i = find(z, k, n, out.front().z); i < n; i = find(z, i + 1, n, out.front().z)) {
        if (z[i] == out.front().z) continue;  // all ids in the heap are lower
        std::pop_heap(out.begin(), out.end(), comes_before);
        out.back() = {z[i], i};
        std::push_heap(out.begin(), out.end(), comes_before);
    }
}

// Keep the shortest prefix of the sorted candidates from `first` on whose weight, `sum` included, reaches `target`.
void cut_prefix(std::vector<Candidate>& list, size_t first, double sum, double target, double max, double temperature) {
    for (size_t i = first; i < list.size(); ++i) {
        sum += exp_nonpositive((list[i].z - max) / temperature);
        if (sum >= target) {
            list.resize(i + 1);
            return;
        }
    }
}

// ---- one request ----

struct Request {
    int64_t first_output, position;
    Key key;
    int64_t top_k, banned_until, num_top;
    double temperature, top_p, min_p, repetition, frequency, presence;
    std::span<const int32_t> tree_tokens, tree_parents, bias_ids, banned;
    std::span<const double> bias_values;
    std::vector<std::pair<int32_t, int32_t>> history;  // (token, count in the output), grows along the walk

    bool has_penalties() const { return repetition != 1.0 || frequency != 0.0 || presence != 0.0; }

    void remember(int32_t token) {
        for (auto& [id, count] : history)
            if (id == token) {
                ++count;
                return;
            }
        history.push_back({token, 1});
    }

    int child(int node, int32_t token) const {
        for (size_t row = size_t(node) + 1; row < tree_tokens.size(); ++row)
            if (tree_parents[row] == node && tree_tokens[row] == token) return int(row);
        return -1;
    }
};

class Drawer {
  public:
    explicit Drawer(int vocabulary) : n_(vocabulary), z_(size_t(vocabulary)), weights_(size_t(vocabulary)) {}

    int32_t draw(const float* row, const Request& request, int64_t position) {
        const float largest = max_of(row, n_);
        if (std::isnan(largest)) return kNotFinite;
        const bool is_banning = position < request.banned_until && !request.banned.empty();
        const bool is_adjusted = request.has_penalties() || !request.bias_ids.empty() || is_banning;
        if (!is_adjusted && request.temperature == 0.0) return find(row, 0, n_, largest);
        widen(row, n_, z_.data());
        max_ = largest;
        if (is_adjusted) {
            adjust(request, is_banning);
            max_ = max_of(z_.data(), n_);
            if (std::isnan(max_)) return kNotFinite;
        }
        if (request.temperature == 0.0) return find(z_.data(), 0, n_, max_);
        return sample(request, {request.key, uint32_t(position)});
    }

    // Log-softmax of the unprocessed row at `token`, and the num_top most likely tokens; unused places stay as they
    // are.
    double logprob(const float* row, int32_t token, int64_t num_top, int32_t* top_ids, double* top_logprobs) {
        widen(row, n_, z_.data());
        const double max = max_of(z_.data(), n_);
        const double log_total = max + std::log(exponentiate(z_.data(), n_, max, 1.0, weights_.data()));
        select_top(z_.data(), n_, int(std::min<int64_t>(num_top, n_)), list_);
        std::sort(list_.begin(), list_.end(), comes_before);
        for (size_t i = 0; i < list_.size() && list_[i].z > -kInfinity; ++i) {
            top_ids[i] = list_[i].id;
            top_logprobs[i] = list_[i].z - log_total;
        }
        return z_[size_t(token)] - log_total;
    }

  private:
    // Penalties, bias and bans, in the order of processors.py.
    void adjust(const Request& request, bool is_banning) {
        const auto is_known = [this](int32_t id) { return 0 <= id && id < n_; };
        if (request.has_penalties()) {
            for (const auto& [id, count] : request.history) {
                if (!is_known(id)) continue;
                double& z = z_[size_t(id)];
                z = z > 0 ? z / request.repetition : z * request.repetition;
                z -= request.frequency * count + request.presence * (count > 0);
            }
        }
        for (size_t i = 0; i < request.bias_ids.size(); ++i)
            if (is_known(request.bias_ids[i])) z_[size_t(request.bias_ids[i])] += request.bias_values[i];
        if (!is_banning) return;
        for (const int32_t id : request.banned)
            if (is_known(id)) z_[size_t(id)] = -kInfinity;
    }

    int32_t sample(const Request& request, Winner winner) {
        const double temperature = request.temperature;
        if (request.top_k > 0 && request.top_k < n_) {
            select_top(z_.data(), n_, int(request.top_k), list_);
            if (request.top_p < 1.0) {
                std::sort(list_.begin(), list_.end(), comes_before);
                double total = 0.0;
                for (const Candidate& c : list_)
                    total += exp_nonpositive((c.z - max_) / temperature);
                cut_prefix(list_, 0, 0.0, request.top_p * total, max_, temperature);
            }
        } else if (request.top_p < 1.0) {
            select_nucleus(request.top_p, temperature);
        } else if (request.min_p > 0.0) {  // a little below the exact bound, which race_list applies
            const double depth = temperature * std::log(request.min_p);
            collect(max_ + depth - 1e-9 * (std::abs(max_) - depth));
        } else {
            race_all(temperature, winner);
            return winner.token;
        }
        race_list(temperature, request.min_p, winner);
        return winner.token;
    }

    void collect(double bound) {
        list_.clear();
        for (int i = find(z_.data(), 0, n_, bound); i < n_; i = find(z_.data(), i + 1, n_, bound))
            list_.push_back({z_[size_t(i)], i});
    }

    // Tokens of top-p over the whole vocabulary. Thresholds are half a nat apart: everything above `inner` is surely
    // in, everything below `outer` surely out, and the tokens between them are sorted.
    void select_nucleus(double top_p, double temperature) {
        const double target = top_p * exponentiate(z_.data(), n_, max_, temperature, weights_.data());
        const auto bound_at = [&](int step) { return max_ - 0.5 * step * temperature; };
        const auto mass_at = [&](int step) { return mass_above(z_.data(), weights_.data(), n_, bound_at(step)); };
        int low = 0, high = 96;  // high: enough mass, or as good as everything
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            (mass_at(middle) >= target * (1 + 1e-9) ? high : low) = middle;
        }
        collect(high == 96 ? std::numeric_limits<double>::lowest() : bound_at(high));
        const double inner_mass = low > 0 ? mass_at(low) : 0.0;
        const bool has_inner = low > 0 && inner_mass < target * (1 - 1e-9);
        const double inner = has_inner ? bound_at(low) : kInfinity;
        const auto band = std::partition(list_.begin(), list_.end(), [&](const Candidate& c) { return c.z >= inner; });
        std::sort(band, list_.end(), comes_before);
        const size_t first = size_t(band - list_.begin());
        cut_prefix(list_, first, has_inner ? inner_mass : 0.0, target, max_, temperature);
    }

    void race_list(double temperature, double min_p, Winner& winner) {
        const double smallest = min_p > 0.0 ? std::log(min_p) : -kInfinity;
        for (const Candidate& c : list_) {
            const double log_weight = (c.z - max_) / temperature;
            if (log_weight >= smallest && log_weight > -kInfinity) winner.consider(c.id, log_weight);
        }
    }

    void race_all(double temperature, Winner& winner) {
        // Not above 1 / temperature, and finite, so that the bound of the heaviest token is never 0 * inf.
        const float inverse = float(std::min(1.0 / temperature, 1e30));
        uint32_t upper[kNoiseBlock];
        float bounds[kNoiseBlock];
        winner.consider(find(z_.data(), 0, n_, max_), 0.0);  // a high score early rules out most others
        // The next block with a token that can still win: no noise is above 36.8.
        const auto next_block = [&](int i) {
            i = find(z_.data(), i, n_, max_ + (winner.score - 37.0) * temperature);
            return i < n_ ? i / kNoiseBlock * kNoiseBlock : n_;
        };
        for (int first = next_block(0); first < n_; first = next_block(first + kNoiseBlock)) {
            const int count = std::min(kNoiseBlock, n_ - first);
            const double* z = z_.data() + first;
            upper_noise(winner.key, winner.position, uint32_t(first), upper);
            if (bound_scores(z, count, max_, inverse, upper, bounds) < winner.floor()) continue;
            for (int i = 0; i < count; ++i)
                if (bounds[i] >= winner.floor()) winner.consider(first + i, (z[i] - max_) / temperature);
        }
    }

    int n_;
    double max_ = 0.0;  // of z_
    std::vector<double> z_, weights_;
    std::vector<Candidate> list_;
};

// ---- one step: the flat arrays of sampling/flatten.py ----

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
        require(0 <= count && size_t(count) <= rest_.size(), "the flat arrays are shorter than their counts say");
        const auto piece = rest_.first(size_t(count));
        rest_ = rest_.subspan(size_t(count));
        return piece;
    }

  private:
    std::span<const T> rest_;
};

// Columns of `whole` and `real`, items in `items`: see sampling/flatten.py, which writes them.
constexpr size_t kWholeColumns = 11, kRealColumns = 6;

Request read_request(const int64_t* whole, const double* real, Pieces<int32_t>& items, Pieces<double>& bias_values) {
    Request request{};
    request.first_output = whole[0];
    request.position = whole[1];
    request.key = {uint32_t(whole[2]), uint32_t(whole[3])};
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
    for (size_t i = 0; i < ids.size(); ++i)
        request.history.push_back({ids[i], counts[i]});
    request.banned = items.take(whole[10]);
    return request;
}

void walk(const Logits& logits, Request& request, Drawer& drawer, int32_t* ids, double* logprobs, size_t width) {
    int64_t position = request.position;
    for (int node = 0; node >= 0; ++position) {
        const size_t output = size_t(request.first_output + node);
        const float* row = logits.data() + int64_t(output) * logits.stride(0);
        int32_t* row_ids = ids + output * width;
        double* row_logprobs = logprobs + output * width;
        const int32_t token = row_ids[0] = drawer.draw(row, request, position);
        if (token == kNotFinite) return;
        if (request.num_top >= 0)
            row_logprobs[0] = drawer.logprob(row, token, request.num_top, row_ids + 1, row_logprobs + 1);
        if (request.has_penalties()) request.remember(token);
        node = request.child(node, token);
    }
}

void draw(Logits logits, Array<const int64_t, nb::ndim<2>> whole, Array<const double, nb::ndim<2>> real,
          Array<const int32_t, nb::ndim<1>> items, Array<const double, nb::ndim<1>> bias_values,
          Array<int32_t, nb::ndim<2>> ids, Array<double, nb::ndim<2>> logprobs) {
    const size_t width = ids.shape(1);
    require(logits.shape(1) > 0 && logits.stride(1) == 1, "a row of logits must be contiguous and not empty");
    require(whole.shape(1) == kWholeColumns && real.shape(1) == kRealColumns && whole.shape(0) == real.shape(0),
            "the request tables have the wrong shape");
    require(ids.shape(0) == logits.shape(0) && logprobs.shape(0) == ids.shape(0) && logprobs.shape(1) == width,
            "the outputs must have one row for every row of logits");
    Pieces<int32_t> item_pieces({items.data(), items.size()});
    Pieces<double> bias_pieces({bias_values.data(), bias_values.size()});
    Drawer drawer(int(logits.shape(1)));
    for (size_t i = 0; i < whole.shape(0); ++i) {
        Request request =
            read_request(whole.data() + i * kWholeColumns, real.data() + i * kRealColumns, item_pieces, bias_pieces);
        require(request.first_output >= 0 && !request.tree_tokens.empty() &&
                    size_t(request.first_output) + request.tree_tokens.size() <= logits.shape(0),
                "a draft tree needs a row of logits for each of its rows");
        require(request.num_top < int64_t(width), "the outputs are too narrow for the alternatives asked for");
        walk(logits, request, drawer, ids.data(), logprobs.data(), width);
    }
}

}  // namespace

void bind_draw(nb::module_& m) {
    m.def(
        "draw", &draw, nb::arg("logits"), nb::arg("whole"), nb::arg("real"), nb::arg("items"), nb::arg("bias_values"),
        nb::arg("ids").noconvert(), nb::arg("logprobs").noconvert(), nb::call_guard<nb::gil_scoped_release>(),
        "Walk every request's draft tree over logits [O, V]; writes ids and logprobs [O, 1 + N]: the drawn token, then "
        "the N most likely. See forerun.sampling.flatten.");
}
