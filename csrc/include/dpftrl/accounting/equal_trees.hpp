// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace dpftrl {

// `count` trees in a row, each of `steps` >= 1 steps and, with `completed`, advanced to the next power of two before
// the next one starts. A run is a list of these.
struct EqualTrees {
  std::uint64_t steps;
  std::uint64_t count;
  bool completed;
};

}  // namespace dpftrl
