// SPDX-License-Identifier: Apache-2.0
#pragma once

// Nodes of the binary tree over steps 1, 2, ...: which are live at t, and Honaker's weights.

#include <cmath>
#include <cstdint>

#include "dpftrl/noise/stream.hpp"

namespace dpftrl {

// Node (level l, index k) covers leaves k * 2^l + 1 .. (k + 1) * 2^l. The live nodes at t are the set bits l of t,
// each with index (t >> l) - 1: disjoint, and together they cover 1 .. t.
struct Node {
  int level;
  std::uint64_t index;
};

constexpr bool operator==(const Node& a, const Node& b) noexcept { return a.level == b.level && a.index == b.index; }

constexpr Node live_node(std::uint64_t t, int level) noexcept { return {level, (t >> level) - 1}; }

constexpr int highest_bit(std::uint64_t t) noexcept {
  int bit = -1;
  for (; t != 0; t >>= 1) ++bit;
  return bit;
}

constexpr int lowest_bit(std::uint64_t t) noexcept {
  int bit = 0;
  while ((t & 1) == 0) t >>= 1, ++bit;
  return bit;
}

// Set bits in order from high to low make b_t a chain of sums: b_at is a head of b_t when t's high bits are at's
// and the rest of t lies below at's lowest bit. The steps that at is a head of are at .. head_end(at) - 1.
constexpr std::uint64_t head_end(std::uint64_t at) noexcept { return at + (at & (~at + 1)); }

constexpr bool is_head_of(std::uint64_t at, std::uint64_t t) noexcept { return at <= t && t < head_end(at); }

// The smallest power of two >= t.
constexpr std::uint64_t next_power_of_two(std::uint64_t t) noexcept {
  std::uint64_t p = 1;
  while (p < t) p <<= 1;
  return p;
}

// Honaker's weight of a live node: 1 / (2 - 2^-level), the inverse of the variance of its average r (in units of
// one node's variance), rounded once to the dtype.
template <class T>
inline T honaker_weight(int level) noexcept {
  return static_cast<T>(1.0 / (2.0 - std::ldexp(1.0, -level)));
}

}  // namespace dpftrl
