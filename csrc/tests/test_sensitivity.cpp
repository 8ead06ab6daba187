// SPDX-License-Identifier: Apache-2.0

// The squared sensitivities against their definition: every set of uses, every node of every tree, written out.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "dpftrl/accounting/sensitivity.hpp"

using namespace dpftrl;

namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
const Poll kNoPoll = [] {};

using Uses = std::vector<std::int64_t>;  // steps of the run, in order
using Trees = std::vector<EqualTrees>;

std::int64_t steps_of(const Trees& trees) {
  std::int64_t steps = 0;
  for (const EqualTrees& run : trees) steps += static_cast<std::int64_t>(run.steps * run.count);
  return steps;
}

std::int64_t end_of(const EqualTrees& run) {
  std::int64_t end = static_cast<std::int64_t>(run.steps);
  while (run.completed && (end & (end - 1)) != 0) ++end;
  return end;
}

// Of the nodes (level, index) of one tree, those that can be read, or those that prefixes read.
bool is_counted(const EqualTrees& run, int level, std::int64_t index, Statistic statistic) {
  const std::int64_t last = (index + 1) << level;
  if (last > end_of(run)) return false;
  if (statistic == Statistic::all_nodes) return true;
  return index % 2 == 0 && (last <= static_cast<std::int64_t>(run.steps) || (index == 0 && last == end_of(run)));
}

std::int64_t enumerated(const Trees& trees, const Uses& uses, Statistic statistic) {
  std::int64_t zeta = 0, start = 0;
  for (const EqualTrees& run : trees) {
    for (std::uint64_t i = 0; i < run.count; ++i) {
      for (int level = 0; (std::int64_t{1} << level) <= end_of(run); ++level) {
        for (std::int64_t index = 0; (index + 1) << level <= end_of(run); ++index) {
          if (!is_counted(run, level, index, statistic)) continue;
          std::int64_t under = 0;
          for (const std::int64_t use : uses) {
            const std::int64_t leaf = use - start;
            if (leaf >= 0 && leaf < static_cast<std::int64_t>(run.steps) && leaf >> level == index) ++under;
          }
          zeta += under * under;
        }
      }
      start += static_cast<std::int64_t>(run.steps);
    }
  }
  return zeta;
}

std::int64_t largest(const Trees& trees, std::size_t most, std::int64_t separation, Statistic statistic, Uses& uses) {
  std::int64_t best = enumerated(trees, uses, statistic);
  if (uses.size() == most) return best;
  const std::int64_t steps = steps_of(trees);
  for (std::int64_t next = uses.empty() ? 0 : uses.back() + separation; next < steps; ++next) {
    uses.push_back(next);
    best = std::max(best, largest(trees, most, separation, statistic, uses));
    uses.pop_back();
  }
  return best;
}

std::int64_t counts(const Trees& trees, std::int64_t most, std::int64_t separation, Statistic statistic,
                    int place_bits = 0) {
  const auto value = min_separation_counts(trees.data(), trees.size(), most, separation, statistic,
                                           {place_bits, 0, kNoLimit}, kNoPoll);
  return value.value_or(-1);
}

double weights(const Trees& trees, std::int64_t most, std::int64_t separation, int place_bits = 0,
               int weight_bits = 0) {
  const auto value = min_separation_weights(trees.data(), trees.size(), most, separation,
                                            {place_bits, weight_bits, kNoLimit}, kNoPoll);
  return value.value_or(-1.0);
}

// The order in which one id has these uses and nobody else takes part.
struct Single {
  std::vector<std::int64_t> ids, offsets;
  Order order;

  Single(std::int64_t steps, const Uses& uses) : ids(uses.size(), 0) {
    offsets.push_back(0);
    for (std::int64_t t = 0; t < steps; ++t) {
      offsets.push_back(offsets.back() + std::count(uses.begin(), uses.end(), t));
    }
    order = {ids.data(), offsets.data(), steps, 1};
  }
};

double largest_of_orders(const Trees& trees, std::size_t most, std::int64_t separation, Uses& uses) {
  double best = 0;
  if (!uses.empty()) {
    const Single single(steps_of(trees), uses);
    order_weights(single.order, trees.data(), trees.size(), &best, kNoPoll);
    for (const Statistic statistic : {Statistic::all_nodes, Statistic::even_nodes}) {
      std::int64_t count = -1;
      order_counts(single.order, trees.data(), trees.size(), statistic, &count, kNoPoll);
      CHECK_EQ(count, enumerated(trees, uses, statistic));
      if (statistic == Statistic::all_nodes) {
        CHECK(best <= static_cast<double>(count) * (1 + 1e-12));
        CHECK(order_level_bound(single.order, trees.data(), trees.size(), kNoPoll) >= count);
      }
    }
  }
  if (uses.size() == most) return best;
  for (std::int64_t next = uses.empty() ? 0 : uses.back() + separation; next < steps_of(trees); ++next) {
    uses.push_back(next);
    best = std::max(best, largest_of_orders(trees, most, separation, uses));
    uses.pop_back();
  }
  return best;
}

void compare(const Trees& trees) {
  for (const std::int64_t most : {1, 2, 3}) {
    for (const std::int64_t separation : {1, 2, 3, 5, 8}) {
      Uses uses;
      for (const Statistic statistic : {Statistic::all_nodes, Statistic::even_nodes}) {
        const std::int64_t exact = counts(trees, most, separation, statistic);
        CHECK_EQ(exact, largest(trees, static_cast<std::size_t>(most), separation, statistic, uses));
        for (const int bits : {1, 2, 3, 40}) CHECK(counts(trees, most, separation, statistic, bits) >= exact);
      }
      const double exact = weights(trees, most, separation);
      const double wanted = largest_of_orders(trees, static_cast<std::size_t>(most), separation, uses);
      CHECK_NEAR(exact, wanted, 1e-11 * wanted);
      for (const int bits : {1, 4, 10}) {
        CHECK(weights(trees, most, separation, 0, bits) >= exact * (1 - 1e-12));
        CHECK(weights(trees, most, separation, bits, bits) >= exact * (1 - 1e-12));
      }
    }
  }
}

void test_small_runs() {
  for (const bool completed : {false, true}) {
    for (std::uint64_t steps = 1; steps <= 12; ++steps) compare({{steps, 1, completed}});
    compare({{3, 4, completed}});
    compare({{1, 9, completed}});
    compare({{5, 1, completed}, {1, 1, false}, {6, 1, true}});
    compare({{3, 2, !completed}, {7, 1, completed}});
  }
}

void test_repeated_ids() {
  const Trees trees{{5, 2, true}};
  const Uses uses{0, 0, 3, 4, 4, 4, 5, 9, 9};
  const Single single(10, uses);
  for (const Statistic statistic : {Statistic::all_nodes, Statistic::even_nodes}) {
    std::int64_t count = -1;
    order_counts(single.order, trees.data(), trees.size(), statistic, &count, kNoPoll);
    CHECK_EQ(count, enumerated(trees, uses, statistic));
  }
}

void test_large_runs() {
  const std::uint64_t longest = std::uint64_t{1} << 40;
  const auto half = static_cast<std::int64_t>(longest / 2);
  CHECK_EQ(counts({{longest, 1, false}}, 1, 1, Statistic::all_nodes), 41);
  CHECK_EQ(counts({{longest, 1, false}}, kNoLimit, half, Statistic::all_nodes), 84);
  CHECK_EQ(counts({{longest / 2 + 1, 1, true}}, 2, half, Statistic::all_nodes), 84);
  CHECK_EQ(counts({{1, longest, true}}, 1000, 1, Statistic::all_nodes), 1000);
  CHECK_EQ(counts({{3, longest / 4, true}, {longest / 4, 1, false}}, 1000, half, Statistic::all_nodes), 41 - 2 + 3);
  const double single = weights({{longest, 1, true}}, 1, 1);
  CHECK(single > 34.7 && single < 34.8);
  CHECK_NEAR(weights({{longest, 1, true}}, 1, 1, 0, 40), single, 1e-9);
  CHECK_EQ(counts({{10000, 1, false}}, 100, 100, Statistic::all_nodes), 14351);
  CHECK_EQ(counts({{69750, 1, false}}, 50, 1395, Statistic::all_nodes), 4926);

  const Poll poll = kNoPoll;
  const Trees all{{longest, 1, false}};
  CHECK_THROWS(min_separation_counts(all.data(), 1, kNoLimit, 1, Statistic::all_nodes, {0, 0, kNoLimit}, poll),
               std::overflow_error, "2^63");
  CHECK_THROWS(min_separation_weights(all.data(), 1, kNoLimit, 1, {0, 0, kNoLimit}, poll), std::overflow_error, "2^63");
}

void test_stopping() {
  const Trees trees{{2000, 1, false}};
  CHECK(!min_separation_counts(trees.data(), 1, 20, 100, Statistic::even_nodes, {0, 0, 1000}, kNoPoll).has_value());
  CHECK(!min_separation_weights(trees.data(), 1, 20, 100, {0, 0, 1000}, kNoPoll).has_value());
  const Poll stop = [] { throw std::runtime_error("stopped"); };
  CHECK_THROWS(min_separation_counts(trees.data(), 1, 20, 100, Statistic::all_nodes, {0, 0, kNoLimit}, stop),
               std::runtime_error, "stopped");
  CHECK_THROWS(min_separation_weights(trees.data(), 1, 20, 100, {0, 0, kNoLimit}, stop), std::runtime_error, "stopped");
  const Single single(2000, {0});
  std::int64_t value = 0;
  CHECK_THROWS(order_counts(single.order, trees.data(), 1, Statistic::all_nodes, &value, stop), std::runtime_error,
               "stopped");
}

// 4 - 1 of the series 1 + 1/4 + ...; the root of 3 + 1 steps by hand: b_4 given b_1, b_2, b_3.
void test_variances() {
  CHECK_EQ(honaker_increment_variance(0), 1.0);
  CHECK_EQ(honaker_increment_variance(1), 1.25);
  CHECK_EQ(honaker_increment_variance(2), 1.3125);
  CHECK_NEAR(honaker_increment_variance(40), 4.0 / 3.0, 1e-15);
  // Root (level 2), its right child (level 1) over leaves 3 and 4, of which leaf 3 is known and leaf 4 fresh.
  CHECK_EQ(honaker_root_variance(2, 3), 1.0 + (1.0 + 1.0 / 4) / 4);
}

}  // namespace

int main() {
  test_small_runs();
  test_repeated_ids();
  test_large_runs();
  test_stopping();
  test_variances();
  return check::report();
}
