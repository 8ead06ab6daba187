// SPDX-License-Identifier: Apache-2.0

// zeta of every id of a known order, one pass over the uses for a few levels of the tree at a time.
//
// With c uses so far under a node, one more adds (c + 1)^2 - c^2 = 2c + 1; with weights, (S + w)^2 - S^2 = w(2S + w).
// An id keeps, for each level of the pass, the count under the node of its last use: 64 bytes, one cache line. So a
// pass costs one line a use, whatever the levels.

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <vector>

#include "dpftrl/accounting/sensitivity.hpp"
#include "dpftrl/noise/node.hpp"

#if defined(__GNUC__) || defined(__clang__)
#define DPFTRL_PREFETCH_WRITE(address) __builtin_prefetch(address, 1)
#else
#define DPFTRL_PREFETCH_WRITE(address) static_cast<void>(address)
#endif

namespace dpftrl {
namespace {

constexpr std::int64_t kAhead = 16;            // uses between a prefetch and the use
constexpr std::int64_t kPollEvery = 1 << 18;   // steps
constexpr std::int64_t kMostUses = 1LL << 28;  // their square times 41 levels stays below 2^63
constexpr int kMostLevels = 42;

// What one tree's leaves and nodes are, for one use.
struct Place {
  std::uint64_t leaf;   // from 0, in its tree
  std::uint64_t steps;  // of the tree
  std::uint64_t end;    // last leaf + 1 that nodes may cover
  bool rooted;          // completed, with a root beyond its last step
  int root_level;
};

template <class Count, int kLevels>
struct alignas(64) Id {
  std::int64_t last = -1;  // step of the last use
  Count value = 0;
  Count under[kLevels] = {};  // by level of the pass
};

using CountId = Id<std::int64_t, 6>;
using WeightId = Id<double, 6>;

// Walk over all uses, telling `use(id, step, tree_start, place)`.
template <class State, class Use>
void walk(const Order& order, const EqualTrees* runs, std::size_t n_runs, std::vector<State>& states, const Poll& poll,
          const Use& use) {
  const std::int64_t n_uses = order.offsets[order.steps];
  std::int64_t step = 0;
  for (std::size_t i = 0; i < n_runs; ++i) {
    const std::uint64_t steps = runs[i].steps;
    const std::uint64_t top = next_power_of_two(steps);
    const bool rooted = runs[i].completed && top != steps;
    const Place shape{0, steps, runs[i].completed ? top : steps, rooted, highest_bit(top)};
    for (std::uint64_t tree = 0; tree < runs[i].count; ++tree) {
      const std::int64_t start = step;
      for (std::uint64_t leaf = 0; leaf < steps; ++leaf, ++step) {
        Place place = shape;
        place.leaf = leaf;
        for (std::int64_t at = order.offsets[step]; at < order.offsets[step + 1]; ++at) {
          if (at + kAhead < n_uses) {
            DPFTRL_PREFETCH_WRITE(&states[static_cast<std::size_t>(order.ids[at + kAhead])]);
          }
          State& id = states[static_cast<std::size_t>(order.ids[at])];
          use(id, start, place);
          id.last = step;
        }
        if (step % kPollEvery == 0) poll();
      }
    }
  }
}

int levels_of(const EqualTrees* runs, std::size_t n_runs) {
  int levels = 0;
  for (std::size_t i = 0; i < n_runs; ++i) {
    levels = std::max(levels, highest_bit(next_power_of_two(runs[i].steps)) + 1);
  }
  return levels;
}

void check_uses(const Order& order) {
  if (order.offsets[order.steps] > kMostUses) throw std::overflow_error("zeta of more than 2^28 uses could pass 2^63");
}

// The levels at which the last use, if any, was under another node than this one: those below the one returned.
int first_shared_level(std::int64_t last, std::int64_t start, std::uint64_t leaf) {
  if (last < start) return kMostLevels;
  return highest_bit(static_cast<std::uint64_t>(last - start) ^ leaf) + 1;
}

bool ends_by(std::uint64_t end, std::uint64_t leaf, int level) { return ((leaf >> level) + 1) << level <= end; }

bool is_read(const Place& place, int level) {
  if (place.rooted && level == place.root_level) return true;
  return (place.leaf >> level & 1) == 0 && ends_by(place.steps, place.leaf, level);
}

template <class State>
void forget(State& id, int first_level, int shared, int n_levels) {
  for (int j = 0; j < n_levels && first_level + j < shared; ++j) id.under[j] = 0;
}

template <class State, class Out>
void collect(const std::vector<State>& states, Out* out) {
  for (std::size_t i = 0; i < states.size(); ++i) out[i] += states[i].value;
}

void count_levels(const Order& order, const EqualTrees* runs, std::size_t n_runs, Statistic statistic, int first_level,
                  int n_levels, std::vector<CountId>& states, const Poll& poll) {
  std::fill(states.begin(), states.end(), CountId{});
  const bool all = statistic == Statistic::all_nodes;
  walk(order, runs, n_runs, states, poll, [=](CountId& id, std::int64_t start, const Place& place) {
    forget(id, first_level, first_shared_level(id.last, start, place.leaf), n_levels);
    for (int j = 0; j < n_levels; ++j) {
      const int level = first_level + j;
      if (!(all ? ends_by(place.end, place.leaf, level) : is_read(place, level))) continue;
      id.value += 2 * id.under[j] + 1;
      ++id.under[j];
    }
  });
}

}  // namespace

void order_counts(const Order& order, const EqualTrees* runs, std::size_t n_runs, Statistic statistic,
                  std::int64_t* out, const Poll& poll) {
  check_uses(order);
  std::fill(out, out + order.n_ids, std::int64_t{0});
  std::vector<CountId> states(static_cast<std::size_t>(order.n_ids));
  const int levels = levels_of(runs, n_runs);
  for (int first = 0; first < levels; first += 6) {
    count_levels(order, runs, n_runs, statistic, first, std::min(6, levels - first), states, poll);
    collect(states, out);
  }
}

std::int64_t order_level_bound(const Order& order, const EqualTrees* runs, std::size_t n_runs, const Poll& poll) {
  check_uses(order);
  std::vector<CountId> states(static_cast<std::size_t>(order.n_ids));
  const int levels = levels_of(runs, n_runs);
  std::int64_t bound = 0;
  for (int level = 0; level < levels; ++level) {
    count_levels(order, runs, n_runs, Statistic::all_nodes, level, 1, states, poll);
    std::int64_t most = 0;
    for (const CountId& id : states) most = std::max(most, id.value);
    bound += most;
  }
  return bound;
}

void order_weights(const Order& order, const EqualTrees* runs, std::size_t n_runs, double* out, const Poll& poll) {
  check_uses(order);
  std::fill(out, out + order.n_ids, 0.0);
  double variance[kMostLevels];
  for (int level = 0; level < kMostLevels; ++level) variance[level] = honaker_increment_variance(level);
  std::vector<WeightId> states(static_cast<std::size_t>(order.n_ids));
  const int levels = levels_of(runs, n_runs);
  for (int first = 0; first < levels; first += 6) {
    const int n_levels = std::min(6, levels - first);
    std::fill(states.begin(), states.end(), WeightId{});
    std::uint64_t root_steps = 0;
    double root_variance = 1;
    walk(order, runs, n_runs, states, poll, [&](WeightId& id, std::int64_t start, const Place& place) {
      forget(id, first, first_shared_level(id.last, start, place.leaf), n_levels);
      if (place.rooted && place.steps != root_steps) {
        root_steps = place.steps;
        root_variance = honaker_root_variance(place.root_level, place.steps);
      }
      // w = 2 - 2^-j under the node of each level, j the steps to the right on the way down before the first to the
      // left.
      double w = 1;
      for (int level = 1; level <= first; ++level) w = (place.leaf >> (level - 1) & 1) != 0 ? 1 + w / 2 : 1;
      for (int j = 0; j < n_levels; ++j) {
        const int level = first + j;
        if (j > 0) w = (place.leaf >> (level - 1) & 1) != 0 ? 1 + w / 2 : 1;
        if (!is_read(place, level)) continue;
        const bool at_root = place.rooted && level == place.root_level;
        // The root's right side is known down to the block of full nodes that holds the leaf.
        const double weight =
            at_root ? 2 - std::ldexp(1.0, 1 - (place.root_level - highest_bit(place.leaf ^ place.steps))) : w;
        id.value += weight * (2 * id.under[j] + weight) / (at_root ? root_variance : variance[level]);
        id.under[j] += weight;
      }
    });
    collect(states, out);
  }
  // Each is a sum of positive terms, a few operations a use and level: rounded up.
  std::vector<double> uses(static_cast<std::size_t>(order.n_ids), 0.0);
  for (std::int64_t at = 0; at < order.offsets[order.steps]; ++at) uses[static_cast<std::size_t>(order.ids[at])] += 1;
  for (std::int64_t i = 0; i < order.n_ids; ++i) {
    const double operations = 64.0 + 8.0 * kMostLevels * uses[static_cast<std::size_t>(i)];
    out[i] *= 1.0 + operations * std::numeric_limits<double>::epsilon();
  }
}

}  // namespace dpftrl
