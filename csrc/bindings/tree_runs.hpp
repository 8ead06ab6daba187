// SPDX-License-Identifier: Apache-2.0
#pragma once

// The trees of a run as Python gives them: a list of (steps, count, completed).

#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "dpftrl/accounting/equal_trees.hpp"

namespace dpftrl::bindings {

using TreeRuns = std::vector<std::tuple<std::uint64_t, std::uint64_t, bool>>;

inline std::vector<EqualTrees> checked_trees(const TreeRuns& trees) {
  std::vector<EqualTrees> runs;
  std::uint64_t left = std::uint64_t{1} << 40;
  for (const auto& [steps, count, completed] : trees) {
    if (!(steps >= 1 && count >= 1 && count <= left / steps)) {
      throw pybind11::value_error("trees must be (steps >= 1, count >= 1, completed), of at most 2^40 steps together");
    }
    left -= steps * count;
    runs.push_back({steps, count, completed});
  }
  if (runs.empty()) throw pybind11::value_error("trees must hold at least one tree, got none");
  return runs;
}

inline std::uint64_t steps_of(const std::vector<EqualTrees>& runs) {
  std::uint64_t steps = 0;
  for (const EqualTrees& run : runs) steps += run.steps * run.count;
  return steps;
}

}  // namespace dpftrl::bindings
