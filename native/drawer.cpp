#include "drawer.h"

#include <algorithm>
#include <cmath>

namespace forerun {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kMaxNoise = 37.0;  // no noise is above 36.8
constexpr double kDeepest = 48.0;   // nats below the heaviest token: a whole vocabulary down there weighs nothing
constexpr int kFewTokens = 2048;    // that are sorted rather than divided further
constexpr int kMaxDivisions = 8;
constexpr double kSlack = 1e-9;  // relative, far more than sums in another order differ

// The largest T that is at most `bound`; the smallest finite one instead of anything below it.
template <class T>
T at_most(double bound) {
    constexpr T lowest = std::numeric_limits<T>::lowest();
    if (!(bound > static_cast<double>(lowest))) return lowest;
    const T nearest = static_cast<T>(bound);
    return static_cast<double>(nearest) > bound ? std::nextafter(nearest, lowest) : nearest;
}

}  // namespace

void DrawRequest::remember(int32_t token) {
    for (auto& [id, count] : history)
        if (id == token) {
            ++count;
            return;
        }
    history.push_back({token, 1});
}

std::span<const uint32_t> DrawRequest::mask(int node) const {
    const size_t words = masks.size() / tree_tokens.size();
    return masks.subspan(static_cast<size_t>(node) * words, words);
}

int DrawRequest::child(int node, int32_t token) const {
    for (size_t row = static_cast<size_t>(node) + 1; row < tree_tokens.size(); ++row)
        if (tree_parents[row] == node && tree_tokens[row] == token) return static_cast<int>(row);
    return -1;
}

// The largest score so far. Scores of equal size go to the lower id.
struct Drawer::Winner {
    NoiseKey key;
    uint32_t position;
    double score = -kInfinity;
    int32_t token = -1;

    void consider(int32_t id, double log_weight) {
        const Noise noise(key, position, static_cast<uint32_t>(id));
        if (static_cast<float>(log_weight) + gumbel_bound(noise.upper()) < floor()) return;
        const double value = log_weight + noise.gumbel();
        if (value > score || (value == score && id < token)) {
            score = value;
            token = id;
        }
    }
    // A bound below this cannot win. Log weights that still can are above -50, where bounds are off by less than 1e-3.
    float floor() const { return static_cast<float>(score) - 1e-3f; }
};

// ---- one row ----

template <class T>
class Drawer::Row {
  public:
    Row(Drawer& drawer, const RowPasses<T>& passes, const T* z, double max)
        : n_(drawer.n_),
          passes_(passes),
          kernels_(drawer.kernels_),
          z_(z),
          max_(max),
          weights_(drawer.weights_.get()),
          list_(drawer.list_) {}

    int32_t sample(const DrawRequest& request, Winner winner) {
        const double temperature = request.temperature;
        const double smallest = request.min_p > 0.0 ? std::log(request.min_p) : -kInfinity;  // log weight
        if (request.top_k > 0 && request.top_k < n_) {
            select_top(static_cast<int>(request.top_k));
            if (request.top_p < 1.0) cut_list(request.top_p, temperature);
            race_list(temperature, smallest, winner);
            return winner.token;
        }
        const Last last = request.top_p < 1.0 ? last_of_prefix(request.top_p, temperature) : Last{};
        // A little below what min-p admits, which the race applies to the log weights.
        const double lowest = max_ + temperature * smallest - kSlack * (std::abs(max_) - temperature * smallest);
        const T bound = at_most<T>(std::max(last.z, request.min_p > 0.0 ? lowest : -kInfinity));
        const bool is_filtered = request.top_p < 1.0 || request.min_p > 0.0;
        if (is_filtered && collect(bound, n_ / 32)) {
            std::erase_if(list_, [&](const Candidate& c) { return comes_before({last.z, last.id}, c); });
            race_list(temperature, smallest, winner);
        } else {
            race_all(temperature, bound, last, smallest, winner);
        }
        return winner.token;
    }

    // The k tokens that come first, in no particular order, in the list.
    void select_top(int k) {
        list_.clear();
        if (k >= n_ / 8) {  // a heap would churn
            for (int i = 0; i < n_; ++i)
                list_.push_back({z_[i], i});
            if (k < n_) std::nth_element(list_.begin(), list_.begin() + k, list_.end(), comes_before);
            list_.resize(static_cast<size_t>(std::min(k, n_)));
            return;
        }
        for (int i = 0; i < k; ++i)
            list_.push_back({z_[i], i});
        std::make_heap(list_.begin(), list_.end(), comes_before);  // its front comes last
        if (k == 0) return;
        const auto next = [&](int i) { return passes_.find(z_, i, n_, static_cast<T>(list_.front().z)); };
        for (int i = next(k); i < n_; i = next(i + 1)) {
            if (z_[i] == list_.front().z) continue;  // all ids in the heap are lower
            std::pop_heap(list_.begin(), list_.end(), comes_before);
            list_.back() = {z_[i], i};
            std::push_heap(list_.begin(), list_.end(), comes_before);
        }
    }

    double total_weight(double temperature) { return passes_.exponentiate(z_, n_, max_, temperature, weights_); }

  private:
    // Tokens with values of at least `bound`, in order of id, in the list; false when there are more than `limit`.
    bool collect(T bound, int limit) {
        list_.clear();
        for (int i = passes_.find(z_, 0, n_, bound); i < n_; i = passes_.find(z_, i + 1, n_, bound)) {
            if (static_cast<int>(list_.size()) == limit) return false;
            list_.push_back({z_[i], i});
        }
        return true;
    }

    // Keep of the list, in order, the shortest prefix whose weight reaches top_p of the weight of all.
    void cut_list(double top_p, double temperature) {
        std::sort(list_.begin(), list_.end(), comes_before);
        double total = 0.0;
        for (Candidate& c : list_)
            total += weights_[c.id] = weight(c.z, temperature);
        list_.resize(prefix_length(0.0, top_p * total));
    }

    double weight(double z, double temperature) const {
        const T value = static_cast<T>(z);
        double result;
        passes_.exponentiate(&value, 1, max_, temperature, &result);
        return result;
    }

    // How many of the sorted list it takes until their weights, added to `sum`, reach `target`; all when they do not.
    size_t prefix_length(double sum, double target) const {
        for (size_t i = 0; i < list_.size(); ++i)
            if ((sum += weights_[list_[i].id]) >= target) return i + 1;
        return list_.size();
    }

    // The last token of the shortest prefix of the whole vocabulary, in order, whose weight reaches top_p of all.
    //
    // Every pass divides the band of values in which it must lie: tokens with `inside` or more are surely in the prefix
    // and do not fill it, those with `outside` or more surely do.
    Last last_of_prefix(double top_p, double temperature) {
        const double target = top_p * total_weight(temperature);
        double inside = kInfinity, outside = max_ - kDeepest * temperature, mass = 0.0;
        int64_t num_inside = 0, num_outside = n_;
        bool is_closed = top_p < 1 - 2 * kSlack;
        if (!is_closed) outside = std::numeric_limits<double>::lowest();
        for (int pass = 0; is_closed && pass < kMaxDivisions && num_outside - num_inside > kFewTokens; ++pass) {
            double bounds[kCuts], sums[kCuts];
            int64_t counts[kCuts];
            const double top = std::min(inside, max_), step = (top - outside) / (kCuts + 1);
            for (int cut = 0; cut < kCuts; ++cut)
                bounds[cut] = top - (cut + 1) * step;
            passes_.masses(z_, weights_, n_, bounds, sums, counts);
            for (int cut = 0; cut < kCuts; ++cut) {  // from the largest values down
                if (sums[cut] < target * (1 - kSlack)) {
                    inside = bounds[cut];
                    mass = sums[cut];
                    num_inside = counts[cut];
                } else if (sums[cut] >= target * (1 + kSlack)) {
                    outside = bounds[cut];
                    num_outside = counts[cut];
                    break;
                }
            }
        }
        collect(at_most<T>(outside), n_);
        std::erase_if(list_, [&](const Candidate& c) { return c.z >= inside; });
        std::sort(list_.begin(), list_.end(), comes_before);
        if (list_.empty()) return {};
        const Candidate& last = list_[prefix_length(mass, target) - 1];
        return {last.z, last.id};
    }

    void race_list(double temperature, double smallest, Winner& winner) {
        for (const Candidate& c : list_) {
            const double log_weight = (c.z - max_) / temperature;
            if (log_weight >= smallest && log_weight > -kInfinity) winner.consider(c.id, log_weight);
        }
    }

    // Among tokens with at least `bound`, up to `last`, with log weights of at least `smallest`.
    void race_all(double temperature, T bound, const Last& last, double smallest, Winner& winner) {
        // Not above 1 / temperature, and finite, so that the bound of the heaviest token is never 0 * inf.
        const float inverse = static_cast<float>(std::min(1.0 / temperature, 1e30));
        uint32_t upper[kNoiseBlock];
        float bounds[kNoiseBlock];
        const int heaviest = passes_.find(z_, 0, n_, static_cast<T>(max_));
        winner.consider(heaviest, 0.0);  // a high score early rules out most others
        // The next block with a token that can still win.
        const auto next_block = [&](int i) {
            i = passes_.find(z_, i, n_, std::max(bound, at_most<T>(max_ + (winner.score - kMaxNoise) * temperature)));
            return i < n_ ? i / kNoiseBlock * kNoiseBlock : n_;
        };
        for (int first = next_block(0); first < n_; first = next_block(first + kNoiseBlock)) {
            const int count = std::min(kNoiseBlock, n_ - first);
            kernels_.upper_noise(winner.key, winner.position, static_cast<uint32_t>(first), upper);
            if (passes_.bound_scores(z_ + first, count, max_, inverse, upper, bounds) < winner.floor()) continue;
            for (int i = 0; i < count; ++i) {
                if (bounds[i] < winner.floor() || comes_before({last.z, last.id}, {z_[first + i], first + i})) continue;
                const double log_weight = (z_[first + i] - max_) / temperature;
                if (log_weight >= smallest) winner.consider(first + i, log_weight);
            }
        }
    }

    int n_;
    const RowPasses<T>& passes_;
    const SamplingKernels& kernels_;
    const T* z_;
    double max_;  // of z_
    double* weights_;
    std::vector<Candidate>& list_;
};

// ---- requests ----

Drawer::Drawer(const SamplingKernels& kernels, int vocabulary)
    : kernels_(kernels),
      n_(vocabulary),
      z_(new double[static_cast<size_t>(vocabulary)]),
      weights_(new double[static_cast<size_t>(vocabulary)]) {
    list_.reserve(static_cast<size_t>(vocabulary));
}

int32_t Drawer::draw(const float* row, const DrawRequest& request, int node, int64_t position) {
    const float largest = kernels_.plain.max(row, n_);
    if (std::isnan(largest)) return kNotFinite;
    const Winner nobody{request.key, static_cast<uint32_t>(position)};
    const bool is_banning = position < request.banned_until && !request.banned.empty();
    const auto mask = request.mask(node);
    if (!request.has_penalties() && request.bias_ids.empty() && !is_banning && mask.empty()) {
        if (request.temperature == 0.0) return kernels_.plain.find(row, 0, n_, largest);
        return Row<float>(*this, kernels_.plain, row, largest).sample(request, nobody);
    }
    kernels_.widen(row, n_, z_.get());
    adjust(request, is_banning, mask);
    const double adjusted = kernels_.adjusted.max(z_.get(), n_);
    if (std::isnan(adjusted)) return kNotFinite;
    if (request.temperature == 0.0) return kernels_.adjusted.find(z_.get(), 0, n_, adjusted);
    return Row<double>(*this, kernels_.adjusted, z_.get(), adjusted).sample(request, nobody);
}

double Drawer::logprob(const float* row, int32_t token, int64_t num_top, int32_t* top_ids, double* top_logprobs) {
    const double max = kernels_.plain.max(row, n_);
    Row<float> plain(*this, kernels_.plain, row, max);
    const double log_total = max + std::log(plain.total_weight(1.0));
    plain.select_top(static_cast<int>(std::min<int64_t>(num_top, n_)));
    std::sort(list_.begin(), list_.end(), comes_before);
    for (size_t i = 0; i < list_.size() && list_[i].z > -kInfinity; ++i) {
        top_ids[i] = list_[i].id;
        top_logprobs[i] = list_[i].z - log_total;
    }
    return row[token] - log_total;
}

// Penalties, bias, bans and mask, in the order of processors.py.
void Drawer::adjust(const DrawRequest& request, bool is_banning, std::span<const uint32_t> mask) {
    const auto is_known = [this](int32_t id) { return 0 <= id && id < n_; };
    if (request.has_penalties()) {
        for (const auto& [id, count] : request.history) {
            if (!is_known(id)) continue;
            double& z = z_[static_cast<size_t>(id)];
            z = z > 0 ? z / request.repetition : z * request.repetition;
            z -= request.frequency * count + request.presence * (count > 0);
        }
    }
    for (size_t i = 0; i < request.bias_ids.size(); ++i)
        if (is_known(request.bias_ids[i])) z_[static_cast<size_t>(request.bias_ids[i])] += request.bias_values[i];
    if (is_banning)
        for (const int32_t id : request.banned)
            if (is_known(id)) z_[static_cast<size_t>(id)] = -kInfinity;
    if (mask.empty()) return;
    const size_t n = static_cast<size_t>(n_), covered = std::min(n, 32 * mask.size());
    for (size_t id = 0; id < covered; ++id)
        if (!(mask[id / 32] >> (id % 32) & 1)) z_[id] = -kInfinity;
    std::fill(z_.get() + covered, z_.get() + n, -kInfinity);
}

}  // namespace forerun
