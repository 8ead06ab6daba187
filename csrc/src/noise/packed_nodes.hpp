// SPDX-License-Identifier: Apache-2.0
#pragma once

// A few coordinates of many nodes. A coordinate needs one ChaCha block (float64: two), and a vector of the rounds has
// 16: where the coordinates of a node need at most half of them, the blocks of several nodes fill the lanes. The words
// of one node's coordinates then lie in the lanes and rows of its own blocks; they are gathered for the transform.
// Included by noise_kernel_simd.hpp.

#include <cstddef>
#include <cstdint>

#include "noise/noise_kernel_simd.hpp"

namespace dpftrl {
namespace {

template <class V>
struct PackedNodes {
  using Kernels = SimdKernels<V>;
  static constexpr std::size_t kLanes = V::kLanes;

  // Words 12 .. 14 of the states of 16 lanes; word 15 is that of the tree.
  struct Lanes {
    alignas(64) std::uint32_t words[3][16];
    std::uint32_t last;

    void set(std::size_t lane, const NodeStream& stream, Kind kind, std::uint32_t block) {
      const Counter counter = make_counter(stream, kind, block);
      for (std::size_t i = 0; i < 3; ++i) words[i][lane] = counter.words[i];
      last = counter.words[3];
    }
  };

  // A slot is a lane, or two for float64. Which node of its group it is for, and where the words of its coordinate lie.
  template <std::size_t Slots>
  struct Places {
    Places(std::size_t skip, std::size_t n) {
      constexpr std::size_t lanes = Slots, half = lanes * 8;  // pairs of a superblock: 8 rows
      for (std::size_t slot = 0; slot < Slots; ++slot) {
        const std::size_t i = skip + slot % n;
        node[slot] = slot / n;
        lane[slot] = i % lanes;
        row[slot] = i % half / lanes;
        is_first[slot] = i < half;
      }
    }
    std::size_t node[Slots], lane[Slots], row[Slots];
    bool is_first[Slots];
  };

  // rows[16 * j + lane] = word j of the block of each lane.
  static inline void chacha_lanes(const NodeStream& stream, const Lanes& lanes, std::uint32_t* rows) {
    for (std::size_t part = 0; part < kBlocksPerSuperblock; part += kLanes) {
      const auto input = [&](int i) {
        return i < 4     ? V::splat(kChaChaConstants[i])
               : i < 12  ? V::splat(stream.key.words[i - 4])
               : i == 15 ? V::splat(lanes.last)
                         : V::load(lanes.words[i - 12] + part);
      };
      Kernels::chacha_part(input, stream.rounds, rows + part);
    }
  }

  // Calls make(node streams, number of them, out) for groups of nodes that fill the lanes.
  template <std::size_t Slots, class T, class Make>
  static inline void for_each_group(const NodeStream& stream, const std::uint64_t* nodes, std::size_t count,
                                    std::size_t n, T* out, Make&& make) {
    NodeStream group[Slots];
    for (std::size_t k = 0; k < count;) {
      std::size_t size = 0;
      for (; size < Slots / n && k < count; ++size, ++k) {
        group[size] = stream;
        group[size].node = nodes[k];
      }
      make(group, size, out);
      out += size * n;
    }
  }

  static void fill_f32(const NodeStream& stream, const std::uint64_t* nodes, std::size_t count, std::uint64_t first,
                       std::size_t n, float scale, float* out) {
    const auto skip = static_cast<std::size_t>(first % kNormals32);
    if (n > DtypeTraits<float>::packed || skip + n > kNormals32)
      return fill_each(Kernels::fill_f32, stream, nodes, count, first, n, scale, out);
    const auto superblock = static_cast<std::uint32_t>(first / kNormals32 * kBlocksPerSuperblock);
    const Places<16> at(skip, n);
    const auto make = [&](const NodeStream* group, std::size_t size, float* to) {
      Lanes lanes;
      alignas(64) std::uint32_t rows[kWordsPerSuperblock], radius[16], angle[16];
      alignas(64) float one[16], other[16];
      const auto block = [&](std::size_t slot) { return superblock + static_cast<std::uint32_t>(at.lane[slot]); };
      for (std::size_t slot = 0; slot < 16; ++slot) {
        const std::size_t k = at.node[slot] < size ? at.node[slot] : 0;  // slots to spare repeat the first node
        lanes.set(slot, group[k], Kind::normal_f32, block(slot));
      }
      chacha_lanes(stream, lanes, rows);
      for (std::size_t slot = 0; slot < 16; ++slot) {
        radius[slot] = rows[at.row[slot] * 16 + slot];
        angle[slot] = rows[(at.row[slot] + 8) * 16 + slot];
      }
      for (std::size_t i = 0; i < 16; i += kLanes) {
        typename V::F a, b;
        Kernels::transform32(V::load(radius + i), V::load(angle + i), V::splat(scale), a, b);
        V::store(one + i, a), V::store(other + i, b);
      }
      for (std::size_t slot = 0; slot < size * n; ++slot) {
        to[slot] = at.is_first[slot] ? one[slot] : other[slot];
        if (radius[slot] >= kRareRadius) continue;
        const Pair32 z = pair_f32(group[at.node[slot]], block(slot), at.row[slot]);
        to[slot] = (at.is_first[slot] ? z.first : z.second) * scale;
      }
    };
    for_each_group<16>(stream, nodes, count, n, out, make);
  }

  static void fill_f64(const NodeStream& stream, const std::uint64_t* nodes, std::size_t count, std::uint64_t first,
                       std::size_t n, double scale, double* out) {
    const auto skip = static_cast<std::size_t>(first % kNormals64);
    if (n > DtypeTraits<double>::packed || skip + n > kNormals64)
      return fill_each(Kernels::fill_f64, stream, nodes, count, first, n, scale, out);
    const auto superblock = static_cast<std::uint32_t>(first / kNormals64 * kBlocksPerSuperblock);
    const Places<8> at(skip, n);
    const auto make = [&](const NodeStream* group, std::size_t size, double* to) {
      Lanes lanes;
      alignas(64) std::uint32_t rows[kWordsPerSuperblock], radius[16], angle[16];
      alignas(64) double one[8], other[8];
      const auto block = [&](std::size_t slot) { return superblock + static_cast<std::uint32_t>(2 * at.lane[slot]); };
      for (std::size_t slot = 0; slot < 8; ++slot) {
        const std::size_t k = at.node[slot] < size ? at.node[slot] : 0;  // slots to spare repeat the first node
        lanes.set(2 * slot, group[k], Kind::normal_f64, block(slot));
        lanes.set(2 * slot + 1, group[k], Kind::normal_f64, block(slot) + 1);
      }
      chacha_lanes(stream, lanes, rows);
      for (std::size_t lane = 0; lane < 16; ++lane) {
        radius[lane] = rows[at.row[lane / 2] * 16 + lane];
        angle[lane] = rows[(at.row[lane / 2] + 8) * 16 + lane];
      }
      for (std::size_t i = 0; i < 16; i += kLanes) {
        typename V::D a, b;
        Kernels::transform64(V::as_words64(V::load(radius + i)), V::as_words64(V::load(angle + i)), V::splat(scale), a,
                             b);
        V::store(one + i / 2, a), V::store(other + i / 2, b);
      }
      for (std::size_t slot = 0; slot < size * n; ++slot) {
        to[slot] = at.is_first[slot] ? one[slot] : other[slot];
        if (!is_rare_f64(radius[2 * slot + 1])) continue;
        const auto joined = [&](const std::uint32_t* words) {
          return words[2 * slot] | (std::uint64_t{words[2 * slot + 1]} << 32);
        };
        const Pair64 z = pair_f64(group[at.node[slot]], block(slot), joined(radius), joined(angle), at.row[slot]);
        to[slot] = (at.is_first[slot] ? z.first : z.second) * scale;
      }
    };
    for_each_group<8>(stream, nodes, count, n, out, make);
  }

  template <class T, class Fill>
  static void fill_each(const Fill& fill, const NodeStream& stream, const std::uint64_t* nodes, std::size_t count,
                        std::uint64_t first, std::size_t n, T scale, T* out) {
    NodeStream each = stream;
    for (std::size_t k = 0; k < count; ++k) {
      each.node = nodes[k];
      fill(each, first, n, scale, out + k * n);
    }
  }
};

}  // namespace
}  // namespace dpftrl
