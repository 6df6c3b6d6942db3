// Drawer: draws the token of one row of logits. forerun/sampling/{noise,processors}.py define what is drawn; this takes
// the same decisions with less work:
//   greedy          one pass over float32 that finds the maximum and any NaN, one that finds its first place
//   top-k           a heap of k, fed only from blocks that hold something larger than its worst
//   top-p           the last token of the prefix is closed in by sums above thresholds, several a pass; only the band
//   in
//                   which it lies is sorted
//   noise           a bound from the upper half of a token's noise rules out nearly all tokens without a logarithm
// A row is read as it is, in float32, unless the request adjusts it. A result depends on the row, the request and the
// position only.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "row_passes.h"

namespace forerun {

constexpr int32_t kNotFinite = -2;

// The fields of batch.py's DrawRequest; spans are borrowed.
struct DrawRequest {
    int64_t first_output, position;
    NoiseKey key;
    int64_t top_k, banned_until, num_top;
    double temperature, top_p, min_p, repetition, frequency, presence;
    std::span<const int32_t> tree_tokens, tree_parents, bias_ids, banned;
    std::span<const double> bias_values;
    std::span<const uint32_t> masks;                   // a mask for each row of the tree, one behind the other; or none
    std::vector<std::pair<int32_t, int32_t>> history;  // (token, count in the output), grows along the walk

    bool has_penalties() const { return repetition != 1.0 || frequency != 0.0 || presence != 0.0; }
    void remember(int32_t token);
    // Bits of the tokens that may be drawn on a row of the tree; empty where all may.
    std::span<const uint32_t> mask(int node) const;
    // Row of the child of `node` that holds `token`, -1 when there is none.
    int child(int node, int32_t token) const;
};

class Drawer {
  public:
    Drawer(const SamplingKernels& kernels, int vocabulary);

    // The token, or kNotFinite. node  of the request's tree, to which `row` belongs
    int32_t draw(const float* row, const DrawRequest& request, int node, int64_t position);
    // Log-softmax of the unprocessed row at `token`, and the num_top most likely tokens; unused places stay as they
    // are.
    double logprob(const float* row, int32_t token, int64_t num_top, int32_t* top_ids, double* top_logprobs);

    size_t bytes() const { return static_cast<size_t>(n_) * (2 * sizeof(double) + sizeof(Candidate)); }

  private:
    struct Candidate {
        double z;
        int32_t id;
    };
    // Value and id of the last token, in order of value and then id, that may be drawn.
    struct Last {
        double z = -std::numeric_limits<double>::infinity();
        int32_t id = std::numeric_limits<int32_t>::max();
    };
    struct Winner;
    template <class T>
    class Row;

    static bool comes_before(const Candidate& a, const Candidate& b) {
        return a.z > b.z || (a.z == b.z && a.id < b.id);
    }
    void adjust(const DrawRequest& request, bool is_banning, std::span<const uint32_t> mask);

    const SamplingKernels& kernels_;
    int n_;
    // Of an adjusted row, and of the weights of a row. Pages that are never written cost nothing.
    std::unique_ptr<double[]> z_, weights_;
    std::vector<Candidate> list_;
};

}  // namespace forerun
