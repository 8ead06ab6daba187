// SPDX-License-Identifier: Apache-2.0
#pragma once

// What identifies a random number: a 256-bit key, a purpose, a tree, a node and a global coordinate.
// docs/guarantees/stream.md is the specification; a change of anything here is a new kStreamVersion.

#include <cstddef>
#include <cstdint>

namespace dpftrl {

// Functions here are static: each file under csrc/src is compiled for its own processor, and a copy with external
// linkage that was compiled for AVX-512 could be the one the linker keeps.

inline constexpr int kStreamVersion = 2;

// ChaCha blocks are consumed in groups of 16 (a "superblock"), one block per 32-bit lane of the widest
// vector unit. Row j of a superblock is word j of its 16 blocks.
inline constexpr std::size_t kBlockWords = 16;
inline constexpr std::size_t kBlocksPerSuperblock = 16;
inline constexpr std::size_t kWordsPerSuperblock = kBlockWords * kBlocksPerSuperblock;

// Normals in one superblock.
inline constexpr std::size_t kNormals32 = kWordsPerSuperblock;
inline constexpr std::size_t kNormals64 = kWordsPerSuperblock / 2;

// The block index has 32 bits.
inline constexpr std::uint64_t kMaxCoordinates32 = std::uint64_t{1} << 36;
inline constexpr std::uint64_t kMaxCoordinates64 = std::uint64_t{1} << 35;

// Node ids have 48 bits: levels 0..46 over at most 2^46 steps.
inline constexpr int kMaxLevel = 46;
inline constexpr std::uint64_t kMaxSteps = std::uint64_t{1} << kMaxLevel;

// Tree numbers have 32 bits; each restart is remembered, so their number is bounded.
inline constexpr std::size_t kMaxRestarts = std::size_t{1} << 24;

// What the words are used for. Two purposes never share a block.
enum class Purpose : std::uint8_t {
  tree = 0,
  covariance_tree = 1,
  clip_norm_estimate = 2,
  toeplitz = 3,
  toeplitz_covariance = 4,
  toeplitz_clip_norm = 5,
  bit_generator = 255,
};

// What the words become. The extensions hold the low halves of rare radius words (gaussian.hpp).
enum class Kind : std::uint8_t {
  normal_f32 = 1,
  normal_f32_extension = 2,
  normal_f64 = 3,
  words = 4,
  normal_f64_extension = 5,
};

struct Key {
  std::uint32_t words[8];
};

// The stream of one node: everything but the block index.
struct NodeStream {
  Key key;
  int rounds;
  Purpose purpose;
  std::uint32_t tree;
  std::uint64_t node;
};

// In-order number of node (level, index) of an infinite binary tree: distinct for distinct nodes.
static constexpr std::uint64_t node_id(int level, std::uint64_t index) noexcept { return ((index << 1) | 1u) << level; }

// ChaCha state words 12..15.
struct Counter {
  std::uint32_t words[4];
};

static constexpr Counter make_counter(const NodeStream& s, Kind kind, std::uint32_t block) noexcept {
  const auto domain = (static_cast<std::uint32_t>(s.purpose) << 8) | static_cast<std::uint32_t>(kind);
  return Counter{{block, static_cast<std::uint32_t>(s.node),
                  static_cast<std::uint32_t>(s.node >> 32) | ((s.tree >> 16) << 16),
                  (s.tree & 0xffffu) | (domain << 16)}};
}

}  // namespace dpftrl
