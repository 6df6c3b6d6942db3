// See suffix_automaton.h.
#include "suffix_automaton.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <tuple>

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

constexpr size_t kFirstTable = 64;
constexpr float kTrustWindow = 256;   // trials after which old ones begin to fade
constexpr float kPriorTrials = 6;     // weight of the priors below
constexpr double kMaxScore = 0.999;   // a score is never a certainty
constexpr double kMinWeight = 0.005;  // shorter contexts are left out when so little is left for them

// Upper ends of the classes of match lengths, and what is expected of each before anything is known: the longer the
// match and the fewer ways it went on, the more likely it is copied.
constexpr std::array<int32_t, 9> kLengthEnds = {1, 2, 3, 4, 6, 8, 12, 16, 32};
constexpr std::array<float, 10> kLengthPriors = {.25f, .35f, .45f, .55f, .65f, .7f, .78f, .83f, .9f, .95f};

}  // namespace

SuffixAutomaton::SuffixAutomaton() : table_(kFirstTable, kNone) {
    for (size_t length = 0; length < kLengths; ++length) {
        for (size_t total = 0; total < kTotals; ++total) {
            // Contexts seen often have more known successors, so the next token is more often among them.
            const float miss = (1 - kLengthPriors[length]) / static_cast<float>(1 + total);
            trust_[length * kTotals + total] = {kPriorTrials * (1 - miss), kPriorTrials};
        }
    }
    add_state(0, kNone);
}

size_t SuffixAutomaton::bytes() const {
    return sizeof(*this) + states_.capacity() * sizeof(State) + edges_.capacity() * sizeof(Edge) +
           table_.capacity() * sizeof(int32_t);
}

// ---- edges ----

size_t SuffixAutomaton::slot_of(int32_t from, int32_t token) const {
    uint64_t hash =
        (static_cast<uint64_t>(static_cast<uint32_t>(from)) << 32 | static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
    const size_t mask = table_.size() - 1;
    size_t slot = static_cast<size_t>(hash) & mask;
    while (table_[slot] != kNone && (edge(table_[slot]).state != from || edge(table_[slot]).token != token))
        slot = (slot + 1) & mask;
    return slot;
}

int32_t SuffixAutomaton::find_edge(int32_t from, int32_t token) const {
    return table_[slot_of(from, token)];
}

void SuffixAutomaton::grow_table() {
    table_.assign(table_.size() * 2, kNone);
    for (size_t i = 0; i < edges_.size(); ++i)
        table_[slot_of(edges_[i].state, edges_[i].token)] = static_cast<int32_t>(i);
}

int32_t SuffixAutomaton::add_edge(int32_t from, int32_t token, int32_t target, int32_t count) {
    if (edges_.size() * 10 >= table_.size() * 7) grow_table();
    const int32_t index = static_cast<int32_t>(edges_.size());
    table_[slot_of(from, token)] = index;
    edges_.push_back({from, token, target, count, kNone, kNone});
    push_front(index);
    state(from).total += count;
    return index;
}

void SuffixAutomaton::push_front(int32_t index) {
    State& owner = state(edge(index).state);
    edge(index).next = owner.first_edge;
    edge(index).previous = kNone;
    if (owner.first_edge != kNone) edge(owner.first_edge).previous = index;
    owner.first_edge = index;
}

// One more occurrence of an edge, which becomes the most recent one of its state.
void SuffixAutomaton::count(int32_t index) {
    Edge& used = edge(index);
    ++used.count;
    ++state(used.state).total;
    if (used.previous == kNone) return;
    edge(used.previous).next = used.next;
    if (used.next != kNone) edge(used.next).previous = used.previous;
    push_front(index);
}

// ---- states ----

int32_t SuffixAutomaton::add_state(int32_t length, int32_t link) {
    states_.push_back({length, link, kNone, 0});
    return static_cast<int32_t>(states_.size() - 1);
}

// Split the contexts of at most `length` tokens off a state; they keep its successors and counts.
int32_t SuffixAutomaton::clone(int32_t original, int32_t length) {
    const int32_t copy = add_state(length, state(original).link);
    int32_t from = state(original).first_edge, before = kNone;
    while (from != kNone) {  // each goes to the back, so that the order stays
        const Edge source = edge(from);
        const int32_t added = add_edge(copy, source.token, source.target, source.count);
        if (before != kNone) {
            state(copy).first_edge = edge(added).next;
            edge(edge(added).next).previous = kNone;
            edge(added).next = kNone;
            edge(added).previous = before;
            edge(before).next = added;
        }
        before = added;
        from = source.next;
    }
    state(original).link = copy;
    return copy;
}

void SuffixAutomaton::append(int32_t token) {
    learn(repeated_suffix(), token);
    int32_t from = last_, found = find_edge(from, token), added = kNone;
    if (found == kNone) {  // otherwise a new document goes on as one before it did
        added = add_state(state(last_).length + 1, 0);
        while (from != kNone && (found = find_edge(from, token)) == kNone) {
            add_edge(from, token, added, 1);
            from = state(from).link;
        }
    }
    int32_t shared = 0;  // the state of the longest context, ended by the token, that is known already
    if (found != kNone) {
        shared = edge(found).target;
        if (state(shared).length != state(from).length + 1) {
            const int32_t whole = shared;
            shared = clone(whole, state(from).length + 1);
            for (int32_t up = from; up != kNone; up = state(up).link) {
                const int32_t redirected = find_edge(up, token);
                if (redirected == kNone || edge(redirected).target != whole) break;
                edge(redirected).target = shared;
            }
        }
    }
    if (added != kNone) state(added).link = shared;
    last_ = added != kNone ? added : shared;
    for (int step = 0; step < kMaxWalk && from != kNone; ++step, from = state(from).link)
        count(find_edge(from, token));
    ++num_tokens_;
}

void SuffixAutomaton::extend(std::span<const int32_t> tokens) {
    // A token adds at most two states and three edges; their numbers must fit.
    const size_t limit = static_cast<size_t>(std::numeric_limits<int32_t>::max()) / 8;
    if (tokens.size() > limit || edges_.size() > limit) throw std::length_error("a suffix automaton is full");
    for (const int32_t token : tokens)
        if (token < 0) throw std::invalid_argument("token ids must not be negative");
    for (const int32_t token : tokens)
        append(token);
}

// ---- matching ----

SuffixMatch SuffixAutomaton::repeated_suffix() const {
    // With one document the last state has no successor yet, and its link is the longest suffix that has one.
    return state(last_).total > 0 || last_ == 0 ? SuffixMatch{last_, state(last_).length}
                                                : SuffixMatch{state(last_).link, state(state(last_).link).length};
}

// A state that was cloned since the match was made now stands for longer contexts only.
SuffixMatch SuffixAutomaton::shorten(SuffixMatch match) const {
    while (match.state != 0 && state(state(match.state).link).length >= match.length)
        match.state = state(match.state).link;
    return match;
}

void SuffixAutomaton::check(const SuffixMatch& match) const {
    if (match.state < 0 || static_cast<size_t>(match.state) >= states_.size() || match.length < 0 ||
        match.length > state(match.state).length)
        throw std::invalid_argument("the match belongs to another automaton");
}

void SuffixAutomaton::advance(SuffixMatch& match, std::span<const int32_t> tokens) {
    check(match);
    for (const int32_t token : tokens) {
        match = shorten(match);
        learn(match, token);
        int32_t found;
        while ((found = find_edge(match.state, token)) == kNone && match.state != 0) {
            match.state = state(match.state).link;
            match.length = state(match.state).length;
        }
        if (found != kNone) match = {edge(found).target, match.length + 1};
    }
    match = shorten(match);
}

// ---- predicting ----

SuffixAutomaton::Trust& SuffixAutomaton::trust(int32_t length, int32_t total) {
    const auto end = std::lower_bound(kLengthEnds.begin(), kLengthEnds.end(), length);
    const size_t row = static_cast<size_t>(end - kLengthEnds.begin());
    const size_t column = total <= 1 ? 0 : total <= 3 ? 1 : 2;
    return trust_[row * kTotals + column];
}

// Was the next token among the known successors? Asked of the contexts, longest first, until one says yes.
void SuffixAutomaton::learn(SuffixMatch match, int32_t token) {
    for (int level = 0; level < kLevels && match.length > 0;) {
        const State& here = state(match.state);
        if (here.total > 0) {
            ++level;
            Trust& counted = trust(match.length, here.total);
            const bool hit = find_edge(match.state, token) != kNone;
            if (counted.trials > kTrustWindow) counted = {counted.hits / 2, counted.trials / 2};
            counted.trials += 1;
            counted.hits += hit;
            if (hit) return;
        }
        match = {here.link, here.link == kNone ? 0 : state(here.link).length};
    }
}

// Blend what followed the match's contexts, longest first: each gets the share that its trust leaves of the rest.
size_t SuffixAutomaton::predict(SuffixMatch match, int min_match, Candidates& found) {
    size_t size = 0;
    double rest = 1;
    match = shorten(match);
    for (int level = 0; level < kLevels && match.length >= min_match && rest > kMinWeight;) {
        const State& here = state(match.state);
        if (here.total > 0) {
            ++level;
            const Trust& counted = trust(match.length, here.total);
            const double share = rest * static_cast<double>(counted.hits / counted.trials);
            rest -= share;
            int seen = 0;
            for (int32_t e = here.first_edge; e != kNone && seen < kBranches; e = edge(e).next, ++seen) {
                const Edge& branch = edge(e);
                const double probability = share * branch.count / here.total;
                const auto known = std::find_if(found.begin(), found.begin() + size,
                                                [&](const Candidate& c) { return c.token == branch.token; });
                if (known != found.begin() + size)
                    known->probability += probability;
                else
                    found[size++] = {branch.token, branch.target, match.length + 1, probability};
            }
        }
        match = {here.link, here.link == kNone ? 0 : state(here.link).length};
    }
    return size;
}

SuffixDraft SuffixAutomaton::draft(SuffixMatch match, const DraftLimits& limits) {
    struct Node {
        double reached, score;
        int order, parent, depth;  // order: older first among equals, so that a tree is always the same
        int32_t token;
        SuffixMatch at;
    };
    const auto less = [](const Node& a, const Node& b) {
        return a.reached != b.reached ? a.reached < b.reached : a.order > b.order;
    };
    check(match);
    std::vector<Node> heap;
    SuffixDraft draft{{-1}, {-1}, {1.0}};
    int order = 0;
    const auto expand = [&](SuffixMatch at, double reached, int row, int depth) {
        Candidates found;
        const size_t size = predict(at, std::max(limits.min_match, 1), found);
        for (size_t i = 0; i < size; ++i) {
            const Candidate& next = found[i];
            const double score = std::min(next.probability, kMaxScore);
            if (reached * score < limits.min_prob) continue;
            heap.push_back({reached * score, score, order++, row, depth, next.token, {next.state, next.length}});
            std::push_heap(heap.begin(), heap.end(), less);
        }
    };
    if (limits.max_depth >= 1) expand(match, 1, 0, 1);
    while (!heap.empty() && static_cast<int>(draft.tokens.size()) <= limits.max_nodes) {
        std::pop_heap(heap.begin(), heap.end(), less);
        const Node node = heap.back();
        heap.pop_back();
        const int row = static_cast<int>(draft.tokens.size());
        draft.tokens.push_back(node.token);
        draft.parents.push_back(node.parent);
        draft.scores.push_back(node.score);
        if (node.depth < limits.max_depth) expand(node.at, node.reached, row, node.depth + 1);
    }
    return draft;
}

std::vector<std::pair<int32_t, int32_t>> SuffixAutomaton::successors(std::span<const int32_t> context) const {
    int32_t at = 0;
    for (const int32_t token : context) {
        const int32_t found = find_edge(at, token);
        if (found == kNone) return {};
        at = edge(found).target;
    }
    std::vector<std::pair<int32_t, int32_t>> found;
    for (int32_t e = state(at).first_edge; e != kNone; e = edge(e).next)
        found.push_back({edge(e).token, edge(e).count});
    return found;
}

}  // namespace forerun

void bind_suffix_automaton(nb::module_& m) {
    using namespace forerun;
    using Tokens = std::vector<int32_t>;
    nb::class_<SuffixMatch>(m, "SuffixMatch", "The longest suffix of some text that an automaton knows.")
        .def(nb::init<>())
        .def_ro("length", &SuffixMatch::length);
    nb::class_<SuffixAutomaton>(m, "SuffixAutomaton")
        .def(nb::init<>())
        .def(
            "extend", [](SuffixAutomaton& self, const Tokens& tokens) { self.extend(tokens); }, "tokens"_a)
        .def("end_document", &SuffixAutomaton::end_document)
        .def("repeated_suffix", &SuffixAutomaton::repeated_suffix)
        .def(
            "advance",
            [](SuffixAutomaton& self, SuffixMatch& match, const Tokens& tokens) { self.advance(match, tokens); },
            "match"_a, "tokens"_a)
        .def(
            "draft",
            [](SuffixAutomaton& self, const SuffixMatch& match, int max_nodes, int max_depth, int min_match,
               double min_prob) {
                SuffixDraft draft = self.draft(match, {max_nodes, max_depth, min_match, min_prob});
                return std::tuple(std::move(draft.tokens), std::move(draft.parents), std::move(draft.scores));
            },
            "match"_a, "max_nodes"_a, "max_depth"_a, "min_match"_a, "min_prob"_a,
            "(tokens, parents, scores) of the most likely continuations; row 0 is the root, with token -1.")
        .def(
            "successors", [](const SuffixAutomaton& self, const Tokens& context) { return self.successors(context); },
            "context"_a, "(token, count) of all that followed a context, the most recent first; for tests.")
        .def_prop_ro("num_tokens", &SuffixAutomaton::num_tokens)
        .def_prop_ro("num_states", &SuffixAutomaton::num_states)
        .def_prop_ro("num_edges", &SuffixAutomaton::num_edges)
        .def_prop_ro("bytes", &SuffixAutomaton::bytes);
}
