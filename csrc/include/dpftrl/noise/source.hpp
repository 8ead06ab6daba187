// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every source of noise is made with: the stream, the range of coordinates, the vectors that it may keep.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dpftrl/noise/noise_kernel.hpp"
#include "dpftrl/noise/stream.hpp"

namespace dpftrl {

// At most `vectors` are kept to save work (a carry and a value last returned come on top).
struct Memory {
  static constexpr std::size_t kStored = static_cast<std::size_t>(-1);
  static constexpr std::size_t kRegenerate = 0;
  std::size_t vectors = kStored;
};

struct SourceConfig {
  Key key{};
  int rounds = 12;
  Purpose purpose = Purpose::tree;
  std::uint64_t offset = 0;  // global coordinate of element 0
  std::size_t size = 0;
  double std = 1.0;
  Memory memory{};
  std::size_t threads = 1;
  const NoiseKernels* kernels = nullptr;  // null: the active ones
};

// Throws std::invalid_argument for a size, offset, number of rounds or threads, or a std that cannot be.
template <class T>
void check_source(const SourceConfig& config);

extern template void check_source<float>(const SourceConfig& config);
extern template void check_source<double>(const SourceConfig& config);

// Steps of one part of a call for many steps: what an interruption may throw away.
constexpr std::uint64_t steps_at_once(std::size_t size) noexcept {
  constexpr std::size_t elements = std::size_t{1} << 20;
  return size < elements / 4096 ? 4096 : size < elements ? elements / size : 1;
}

// Where a value was taken: step t of a tree (or block). tree < 0 means nowhere yet.
struct Position {
  std::int64_t tree = -1;
  std::uint64_t t = 0;
};

constexpr bool operator==(const Position& a, const Position& b) noexcept { return a.tree == b.tree && a.t == b.t; }

// What a source is saved as. `ends` are the steps at which each earlier tree (or block) was left.
struct SourcePosition {
  std::uint64_t t = 0;
  std::vector<std::uint64_t> ends;
  Position last;
};

// Throws std::invalid_argument for a position that no source can be at.
void check_position(const SourcePosition& position);

}  // namespace dpftrl
