// SPDX-License-Identifier: Apache-2.0

// The programs of the accounting at small sizes: the same result twice, no less for more uses or less separation, no
// less with fewer bits, an order of the declared separation is covered, and no error but those that are declared.

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <vector>

#include "dpftrl/accounting/hockey_stick.hpp"
#include "dpftrl/accounting/sensitivity.hpp"
#include "input.hpp"

using namespace dpftrl;
using fuzz::Input;
using fuzz::require;

namespace {

const Poll kNoPoll = [] {};
constexpr Effort kExact{0, 0, std::int64_t{1} << 22};

std::vector<EqualTrees> trees_of(Input& in) {
  std::vector<EqualTrees> runs;
  for (std::uint64_t i = 1 + in.below(3); i > 0; --i) {
    runs.push_back({1 + in.below(20), 1 + in.below(3), in.byte() % 2 == 0});
  }
  return runs;
}

std::int64_t steps_of(const std::vector<EqualTrees>& runs) {
  std::uint64_t steps = 0;
  for (const EqualTrees& run : runs) steps += run.steps * run.count;
  return static_cast<std::int64_t>(steps);
}

void separations(Input& in) {
  const std::vector<EqualTrees> runs = trees_of(in);
  const auto uses = static_cast<std::int64_t>(1 + in.below(12)), apart = static_cast<std::int64_t>(1 + in.below(30));
  const Statistic statistic = in.byte() % 2 == 0 ? Statistic::all_nodes : Statistic::even_nodes;
  const auto counts = [&](std::int64_t most, std::int64_t least, const Effort& effort) {
    return min_separation_counts(runs.data(), runs.size(), most, least, statistic, effort, kNoPoll);
  };
  const auto weights = [&](std::int64_t most, std::int64_t least, const Effort& effort) {
    return min_separation_weights(runs.data(), runs.size(), most, least, effort, kNoPoll);
  };
  const auto zeta = counts(uses, apart, kExact);
  const auto weight = weights(uses, apart, kExact);
  require(zeta == counts(uses, apart, kExact) && weight == weights(uses, apart, kExact), "the same result twice");
  const Effort coarse{static_cast<int>(1 + in.below(8)), static_cast<int>(8 + in.below(20)), kExact.work_limit};
  if (zeta) {
    require(*zeta >= 1, "a use counts");
    const auto more = counts(uses + 1, apart, kExact),
               closer = counts(uses, std::max<std::int64_t>(1, apart - 1), kExact);
    require(!more || *more >= *zeta, "more uses have no less");
    require(!closer || *closer >= *zeta, "less separation has no less");
    const auto rounded = counts(uses, apart, coarse);
    require(!rounded || *rounded >= *zeta, "fewer bits round up");
  }
  if (weight) {
    require(std::isfinite(*weight) && *weight > 0, "a use weighs");
    const auto rounded = weights(uses, apart, coarse);
    require(!rounded || *rounded >= *weight, "fewer bits round up");
  }

  // An order whose uses of each id are so far apart and so few, against the program.
  const std::int64_t steps = steps_of(runs), n_ids = 1 + static_cast<std::int64_t>(in.below(3));
  std::vector<std::int64_t> ids, offsets{0}, last(static_cast<std::size_t>(n_ids), -apart), used(last.size(), 0);
  for (std::int64_t t = 0; t < steps; ++t) {
    for (std::int64_t id = 0; id < n_ids; ++id) {
      const auto i = static_cast<std::size_t>(id);
      if (in.byte() % 2 == 0 || t - last[i] < apart || used[i] == uses) continue;
      ids.push_back(id);
      last[i] = t;
      ++used[i];
    }
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
  const Order order{ids.data(), offsets.data(), steps, n_ids};
  std::vector<std::int64_t> found(last.size()), again(last.size());
  order_counts(order, runs.data(), runs.size(), statistic, found.data(), kNoPoll);
  order_counts(order, runs.data(), runs.size(), statistic, again.data(), kNoPoll);
  require(found == again, "the same result twice");
  const std::int64_t largest = *std::max_element(found.begin(), found.end());
  require(!zeta || largest <= *zeta, "the program covers every order");
  if (statistic == Statistic::all_nodes) {
    require(largest <= order_level_bound(order, runs.data(), runs.size(), kNoPoll),
            "the bound by levels covers the order");
  }
  std::vector<double> of_ids(last.size());
  order_weights(order, runs.data(), runs.size(), of_ids.data(), kNoPoll);
  for (const double x : of_ids) {
    require(std::isfinite(x) && x >= 0, "weights are finite");
    require(!weight || x <= *weight * (1 + 1e-12), "the program covers the weights of every order");
  }
}

void curve(Input& in) {
  const double sigma = std::fabs(in.number()), zeta = std::fabs(in.number());
  const double epsilon = std::fabs(in.number()), delta = std::fabs(in.number());
  const auto positive = [](double x) { return x > 0 && std::isfinite(x); };
  if (!positive(sigma) || !positive(zeta) || !std::isfinite(epsilon) || !(delta > 0 && delta < 1)) return;
  const DoubleDouble z{zeta, 0.0};
  const auto same = [](const Certified& a, const Certified& b) {
    return a.certified == b.certified && std::memcmp(&a.value, &b.value, sizeof a.value) == 0;
  };
  const Certified d = smallest_delta(sigma, z, epsilon);
  require(same(d, smallest_delta(sigma, z, epsilon)), "the same delta twice");
  require(!d.certified || (d.value >= 0 && d.value <= 1), "a delta is a probability");
  const Certified e = smallest_epsilon(sigma, z, delta);
  require(same(e, smallest_epsilon(sigma, z, delta)), "the same epsilon twice");
  require(!e.certified || (e.value >= 0 && std::isfinite(e.value)), "an epsilon is a number");
  if (e.certified) {
    const Certified back = smallest_delta(sigma, z, e.value);
    require(!back.certified || back.value <= delta, "the curve and its inverse agree");
  }
  const Certified s = smallest_noise_multiplier(epsilon, delta, z);
  require(same(s, smallest_noise_multiplier(epsilon, delta, z)), "the same noise multiplier twice");
  if (s.certified && positive(s.value)) {
    const Certified back = smallest_delta(s.value, z, epsilon);
    require(!back.certified || back.value <= delta, "the noise multiplier holds its budget");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  try {
    if (in.byte() % 2 == 0) {
      separations(in);
    } else {
      curve(in);
    }
  } catch (const std::overflow_error&) {  // declared
  }
  return 0;
}
