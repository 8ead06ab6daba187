// SPDX-License-Identifier: Apache-2.0

#include "dpftrl/noise/source.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "dpftrl/noise/chacha.hpp"
#include "dpftrl/noise/node.hpp"

namespace dpftrl {

template <class T>
void check_source(const SourceConfig& c) {
  const std::uint64_t limit = DtypeTraits<T>::max_coordinates;
  if (c.size == 0) throw std::invalid_argument("size must be an integer >= 1, got 0");
  if (c.offset >= limit || c.size > limit - c.offset) {
    throw std::invalid_argument("offset + size must be at most 2**" + std::to_string(highest_bit(limit)) + " for " +
                                DtypeTraits<T>::name + ", got offset " + std::to_string(c.offset) + " and size " +
                                std::to_string(c.size));
  }
  if (!valid_rounds(c.rounds)) {
    throw std::invalid_argument("rounds must be 8, 12 or 20, got " + std::to_string(c.rounds));
  }
  if (c.threads == 0) throw std::invalid_argument("threads must be an integer >= 1, got 0");
  if (!(c.std >= 0.0) || !std::isfinite(static_cast<T>(c.std))) {
    throw std::invalid_argument("std must be a finite number >= 0 in the dtype, got " + std::to_string(c.std));
  }
}

template void check_source<float>(const SourceConfig& config);
template void check_source<double>(const SourceConfig& config);

void check_position(const SourcePosition& p) {
  const auto bad = [](std::uint64_t t) { return t == 0 || t > kMaxSteps; };
  const auto trees = static_cast<std::int64_t>(p.ends.size());
  if (p.t > kMaxSteps || std::any_of(p.ends.begin(), p.ends.end(), bad)) {
    throw std::invalid_argument("a saved position has steps outside [1, 2**46]");
  }
  if (p.last.tree > trees || (p.last.tree >= 0 && bad(p.last.t)) || (p.last.tree == trees && p.last.t > p.t) ||
      (p.last.tree >= 0 && p.last.tree < trees && p.last.t > p.ends[static_cast<std::size_t>(p.last.tree)])) {
    throw std::invalid_argument("a saved position has its last returned step after its present one");
  }
}

}  // namespace dpftrl
