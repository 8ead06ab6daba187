// SPDX-License-Identifier: Apache-2.0

// The carried covariances against the noise itself, written out: every n_t and v_t as the coefficients of the
// independent normals of all nodes, whose squares add up to the variance.

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "check.hpp"
#include "dpftrl/accounting/prefix_error.hpp"

using namespace dpftrl;

namespace {

using Node = std::tuple<std::uint64_t, int, std::uint64_t>;  // tree, level, index
using Noise = std::map<Node, double>;

void add(Noise& to, const Noise& from, double weight) {
  for (const auto& [node, coefficient] : from) to[node] += weight * coefficient;
}

double variance(const Noise& noise) {
  double sum = 0.0;
  for (const auto& entry : noise) sum += entry.second * entry.second;
  return sum;
}

Noise brought(std::uint64_t tree, int level, std::uint64_t index, bool honaker) {
  Noise noise{{{tree, level, index}, 1.0}};
  if (honaker && level > 0) {
    add(noise, brought(tree, level - 1, 2 * index, true), 0.5);
    add(noise, brought(tree, level - 1, 2 * index + 1, true), 0.5);
  }
  return noise;
}

Noise prefix(std::uint64_t tree, std::uint64_t t, bool honaker) {
  Noise noise;
  for (int level = 0; (t >> level) != 0; ++level) {
    if (((t >> level) & 1) == 0) continue;
    const double leaves = static_cast<double>(std::uint64_t{1} << level);
    add(noise, brought(tree, level, (t >> level) - 1, honaker), honaker ? leaves / (2.0 * leaves - 1.0) : 1.0);
  }
  return noise;
}

void compare(const std::vector<EqualTrees>& trees, bool honaker, double momentum) {
  std::vector<double> wanted, wanted_smoothed;
  Noise carry, v;
  std::uint64_t tree = 0;
  for (const EqualTrees& run : trees) {
    for (std::uint64_t i = 0; i < run.count; ++i, ++tree) {
      for (std::uint64_t t = 1; t <= run.steps; ++t) {
        Noise n = carry;
        add(n, prefix(tree, t, honaker), 1.0);
        for (auto& entry : v) entry.second *= momentum;
        add(v, n, 1.0);
        wanted.push_back(variance(n));
        wanted_smoothed.push_back((1.0 - momentum) * (1.0 - momentum) * variance(v));
      }
      std::uint64_t end = 1;
      while (end < run.steps) end *= 2;
      add(carry, prefix(tree, run.completed ? end : run.steps, honaker), 1.0);
    }
  }
  std::vector<double> got(wanted.size(), -1.0), got_smoothed(wanted.size(), -1.0);
  prefix_error(trees.data(), trees.size(), honaker, momentum, got.data(), got_smoothed.data());
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    CHECK_NEAR(got[i], wanted[i], 1e-13 * wanted[i]);
    CHECK_NEAR(got_smoothed[i], wanted_smoothed[i], 1e-13 * wanted_smoothed[i]);
  }
}

}  // namespace

int main() {
  for (const bool honaker : {false, true}) {
    for (const double momentum : {0.0, 0.5, 0.9}) {
      for (const bool completed : {false, true}) {
        for (std::uint64_t steps = 1; steps <= 17; ++steps) {
          compare({{steps, 1, completed}, {steps, 1, false}}, honaker, momentum);
        }
        compare({{1, 9, completed}}, honaker, momentum);
        compare({{5, 3, completed}, {12, 1, true}, {7, 2, false}, {1, 1, false}}, honaker, momentum);
      }
      compare({{70, 1, false}}, honaker, momentum);
    }
  }
  return check::report();
}
