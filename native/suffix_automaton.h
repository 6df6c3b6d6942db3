// An online suffix automaton over token ids that counts what followed each context, and draft trees out of it. Used by
// forerun/speculation/drafters/suffix.py, which documents how its drafts are used. Binds into the Python module.
//
// A state stands for all contexts (token strings) that ended at the same places of the text, the longest of which has
// `length` tokens; the suffix links of a state lead to ever shorter contexts. An edge (state, token) counts how often
// the token followed the state's contexts. Source: the directed acyclic word graph of Blumer et al. (1985), here with
// several documents in one automaton and with counts. Counting walks up the suffix links, at most kMaxWalk of them: in
// text as repetitive as "a a a a ..." the counts of the shortest contexts lag behind, and nothing else does.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace forerun {

// The longest suffix of some text that the automaton knows: a state, and how many tokens of it match.
struct SuffixMatch {
    int32_t state = 0, length = 0;
};

// Row 0 is the root, whose token the caller knows: tokens[0] is -1. scores are conditional on the parent.
struct SuffixDraft {
    std::vector<int32_t> tokens, parents;
    std::vector<double> scores;
};

struct DraftLimits {
    int max_nodes, max_depth;
    int min_match;    // shortest context that predicts
    double min_prob;  // of a node being reached
};

class SuffixAutomaton {
  public:
    SuffixAutomaton();

    // Append tokens (none negative) to the current document. Amortised O(1) a token.
    void extend(std::span<const int32_t> tokens);
    // What comes next does not follow what came before.
    void end_document() { last_ = 0; }

    // The longest suffix of the current document that occurred before.
    SuffixMatch repeated_suffix() const;
    // Follow the longest match along text that is not in here. Amortised O(1) a token.
    void advance(SuffixMatch& match, std::span<const int32_t> tokens);
    // The most likely continuations of a match, best first; each node's parent comes before it.
    SuffixDraft draft(SuffixMatch match, const DraftLimits& limits);

    // (token, count) of everything that followed a context, for tests: any number of edges, most recent first.
    std::vector<std::pair<int32_t, int32_t>> successors(std::span<const int32_t> context) const;

    int64_t num_tokens() const { return num_tokens_; }
    size_t num_states() const { return states_.size(); }
    size_t num_edges() const { return edges_.size(); }
    size_t bytes() const;

  private:
    static constexpr int32_t kNone = -1;
    static constexpr int kMaxWalk = 64;  // links that a count walks up
    static constexpr int kLevels = 4;    // contexts, longest first, that a prediction blends
    static constexpr int kBranches = 8;  // successors looked at in each, the most recent ones
    static constexpr int kLengths = 10, kTotals = 3;

    struct State {
        int32_t length, link, first_edge, total;  // total: counted successors
    };
    // Edges of one state form a list, the one used last at its front.
    struct Edge {
        int32_t state, token, target, count, next, previous;
    };
    // How often the next token was among the known successors of a context: the share of its probability.
    struct Trust {
        float hits, trials;
    };
    struct Candidate {
        int32_t token, state, length;
        double probability;
    };
    using Candidates = std::array<Candidate, static_cast<size_t>(kLevels* kBranches)>;

    State& state(int32_t index) { return states_[static_cast<size_t>(index)]; }
    const State& state(int32_t index) const { return states_[static_cast<size_t>(index)]; }
    Edge& edge(int32_t index) { return edges_[static_cast<size_t>(index)]; }
    const Edge& edge(int32_t index) const { return edges_[static_cast<size_t>(index)]; }

    void append(int32_t token);
    int32_t add_state(int32_t length, int32_t link);
    int32_t clone(int32_t original, int32_t length);
    int32_t find_edge(int32_t from, int32_t token) const;
    int32_t add_edge(int32_t from, int32_t token, int32_t target, int32_t count);
    void push_front(int32_t index);
    void count(int32_t index);
    void grow_table();
    size_t slot_of(int32_t from, int32_t token) const;

    Trust& trust(int32_t length, int32_t total);
    void check(const SuffixMatch& match) const;
    SuffixMatch shorten(SuffixMatch match) const;
    void learn(SuffixMatch match, int32_t token);
    size_t predict(SuffixMatch match, int min_match, Candidates& found);

    std::vector<State> states_;
    std::vector<Edge> edges_;
    std::vector<int32_t> table_;  // open addressing, (state, token) -> edge
    std::array<Trust, static_cast<size_t>(kLengths* kTotals)> trust_;
    int32_t last_ = 0;
    int64_t num_tokens_ = 0;
};

}  // namespace forerun

void bind_suffix_automaton(nanobind::module_& m);
