// SPDX-License-Identifier: Apache-2.0
#pragma once

// Sources of every kind, for tests that run through all of them.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dpftrl/noise/toeplitz.hpp"
#include "dpftrl/noise/tree.hpp"

namespace sources {

using namespace dpftrl;

inline constexpr std::size_t kMemories[] = {Memory::kStored, Memory::kRegenerate, 1, 3};

template <class Config>
Config base(std::size_t size, std::uint64_t offset, std::size_t memory) {
  Config c;
  for (std::uint32_t i = 0; i < 8; ++i) c.key.words[i] = 37 * (i + 1);
  c.std = 0.7;
  c.rounds = 8;
  c.size = size, c.offset = offset, c.memory.vectors = memory;
  return c;
}

inline std::vector<TreeConfig> trees(std::size_t size, std::uint64_t offset, std::size_t memory) {
  std::vector<TreeConfig> found;
  for (const Variant variant : {Variant::vanilla, Variant::honaker}) {
    found.push_back(base<TreeConfig>(size, offset, memory));
    found.back().variant = variant;
  }
  return found;
}

inline std::vector<ToeplitzConfig> mechanisms(std::size_t size, std::uint64_t offset, std::size_t memory) {
  std::vector<ToeplitzConfig> found;
  const auto add = [&](ToeplitzKind kind, std::vector<double> first, std::vector<double> second) {
    ToeplitzConfig c = base<ToeplitzConfig>(size, offset, memory);
    c.kind = kind, c.first = std::move(first), c.second = std::move(second);
    found.push_back(c);
  };
  add(ToeplitzKind::taps, {1.0}, {});
  add(ToeplitzKind::taps, {1.0, -0.5, 0.25, 0.0, -0.125}, {});
  add(ToeplitzKind::buffers, {0.984375, 0.75, 0.5}, {0.125, 0.25, 0.0625});
  add(ToeplitzKind::bands, {3.0, -0.5, 0.25, 0.125}, {});
  return found;
}

inline void restart(Tree<float>& x) { x.restart(true, {}); }
inline void restart(Tree<double>& x) { x.restart(true, {}); }
inline void restart(Toeplitz<float>& x) { x.restart(); }
inline void restart(Toeplitz<double>& x) { x.restart(); }

}  // namespace sources
