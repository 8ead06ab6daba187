// SPDX-License-Identifier: Apache-2.0
#pragma once

// Participation -> squared sensitivity zeta. Knows nothing of noise.
//
// A record adds a contribution of at most 1 (in clip norms) to the leaf of each step it takes part in. What is
// counted, per tree, and why it bounds what the tree releases, is derived in docs/plan/accounting.md:
//
//   all_nodes         sum over readable nodes of (contributions under the node)^2
//   even_nodes        the same over the nodes that vanilla prefixes read
//   honaker_prefixes  sum over the same nodes of W^2 / v_l, W the weighted contributions under the node
//
// Readable are the nodes whose last leaf is at most the tree's end: its last step, or the next power of two where
// the tree is completed. Prefixes read those of even index that end with a step that was taken, and the root of a
// completed tree.

#include <cstddef>
#include <cstdint>
#include <optional>

#include "dpftrl/accounting/equal_trees.hpp"
#include "dpftrl/infra/poll.hpp"

namespace dpftrl {

enum class Statistic { all_nodes, even_nodes, honaker_prefixes };

// v_l, the variance of what a Honaker prefix adds to those before it at an even node of level l, per unit of one
// node's variance: sum over j <= l of 4^-j.
double honaker_increment_variance(int level) noexcept;

// The same at the root, of level `level`, of a completed tree of `steps` steps, none of them a power of two.
double honaker_root_variance(int level, std::uint64_t steps) noexcept;

// How exact the program for a minimum separation is, and how long it may take. With 0 bits it is exact; else the places
// of uses are rounded to so many bits of the separation and weights to so many bits, both to the safe side.
struct Effort {
  int place_bits;
  int weight_bits;
  std::int64_t work_limit;  // comparisons
};

// The largest zeta of a record with at most `most_uses` uses, any two of them at least `separation` steps apart,
// over trees in a row. A use is in one step; trees hand the separation and the count on to the next. Nothing is
// returned if it would take more work than the limit. For all_nodes the work hardly depends on the separation; it is
// largest where most_uses * separation is close to the number of steps. Throws std::overflow_error if zeta could pass
// 2^63, or for more than 2^20 uses. `statistic` is all_nodes or even_nodes.
std::optional<std::int64_t> min_separation_counts(const EqualTrees* runs, std::size_t n_runs, std::int64_t most_uses,
                                                  std::int64_t separation, Statistic statistic, const Effort& effort,
                                                  const Poll& poll);

// The same for honaker_prefixes, rounded up.
std::optional<double> min_separation_weights(const EqualTrees* runs, std::size_t n_runs, std::int64_t most_uses,
                                             std::int64_t separation, const Effort& effort, const Poll& poll);

// Who takes part when: step t (from 0) has ids[offsets[t]] .. ids[offsets[t + 1] - 1], each in 0 .. n_ids - 1.
struct Order {
  const std::int64_t* ids;
  const std::int64_t* offsets;
  std::int64_t steps;
  std::int64_t n_ids;
};

// zeta of every id. `out` has n_ids elements. Integers are exact.
void order_counts(const Order& order, const EqualTrees* runs, std::size_t n_runs, Statistic statistic,
                  std::int64_t* out, const Poll& poll);
void order_weights(const Order& order, const EqualTrees* runs, std::size_t n_runs, double* out, const Poll& poll);

// The maximum over ids of the sum over the nodes of each level, summed over the levels.
std::int64_t order_level_bound(const Order& order, const EqualTrees* runs, std::size_t n_runs, const Poll& poll);

}  // namespace dpftrl
