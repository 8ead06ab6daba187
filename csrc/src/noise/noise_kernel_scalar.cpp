// SPDX-License-Identifier: Apache-2.0

// The specification in code: one block at a time, one pair at a time, no vector unit assumed.

#include <cstring>

#include "dpftrl/noise/chacha.hpp"
#include "dpftrl/noise/gaussian.hpp"
#include "dpftrl/noise/noise_kernel.hpp"
#include "noise/superblocks.hpp"
#include "noise/tile_arithmetic.hpp"

namespace dpftrl {

Pair32 pair_f32(const NodeStream& stream, std::uint32_t block, const std::uint32_t words[16],
                std::size_t row) noexcept {
  std::uint64_t radius = std::uint64_t{words[row]} << 32;
  if (words[row] < kRareRadius) {
    std::uint32_t extension[kBlockWords];
    chacha_block(stream.key.words, make_counter(stream, Kind::normal_f32_extension, block).words, stream.rounds,
                 extension);
    radius |= extension[row];
  }
  return normal_pair_f32(radius, words[row + 8]);
}

Pair32 pair_f32(const NodeStream& stream, std::uint32_t block, std::size_t row) noexcept {
  std::uint32_t words[kBlockWords];
  chacha_block(stream.key.words, make_counter(stream, Kind::normal_f32, block).words, stream.rounds, words);
  return pair_f32(stream, block, words, row);
}

Pair64 pair_f64(const NodeStream& stream, std::uint32_t even_block, std::uint64_t radius, std::uint64_t angle,
                std::size_t row) noexcept {
  std::uint64_t extension = 0;
  if (is_rare_f64(static_cast<std::uint32_t>(radius >> 32))) {
    std::uint32_t low[kBlockWords], high[kBlockWords];
    constexpr Kind kind = Kind::normal_f64_extension;
    chacha_block(stream.key.words, make_counter(stream, kind, even_block).words, stream.rounds, low);
    chacha_block(stream.key.words, make_counter(stream, kind, even_block + 1).words, stream.rounds, high);
    extension = low[row] | (std::uint64_t{high[row]} << 32);
  }
  return normal_pair_f64(radius, angle, extension);
}

namespace {

struct Words {
  std::uint32_t block[kBlocksPerSuperblock][kBlockWords];
};

Words superblock_words(const NodeStream& stream, Kind kind, std::uint32_t superblock) noexcept {
  Words w;
  for (std::uint32_t lane = 0; lane < 16; ++lane) {
    const Counter counter = make_counter(stream, kind, superblock * 16 + lane);
    chacha_block(stream.key.words, counter.words, stream.rounds, w.block[lane]);
  }
  return w;
}

void superblock_f32(const NodeStream& stream, std::uint32_t superblock, float scale, float* out) noexcept {
  const Words words = superblock_words(stream, Kind::normal_f32, superblock);
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t lane = 0; lane < 16; ++lane) {
      const auto block = static_cast<std::uint32_t>(superblock * kBlocksPerSuperblock + lane);
      const Pair32 z = pair_f32(stream, block, words.block[lane], row);
      out[row * 16 + lane] = z.first * scale;
      out[(row + 8) * 16 + lane] = z.second * scale;
    }
  }
}

void superblock_f64(const NodeStream& stream, std::uint32_t superblock, double scale, double* out) noexcept {
  const Words words = superblock_words(stream, Kind::normal_f64, superblock);
  const auto joined = [&](std::size_t lane, std::size_t row) {
    return words.block[2 * lane][row] | (std::uint64_t{words.block[2 * lane + 1][row]} << 32);
  };
  for (std::size_t row = 0; row < 8; ++row) {
    for (std::size_t lane = 0; lane < 8; ++lane) {
      const auto even_block = static_cast<std::uint32_t>(superblock * kBlocksPerSuperblock + 2 * lane);
      const Pair64 z = pair_f64(stream, even_block, joined(lane, row), joined(lane, row + 8), row);
      out[row * 8 + lane] = z.first * scale;
      out[(row + 8) * 8 + lane] = z.second * scale;
    }
  }
}

void fill_f32(const NodeStream& stream, std::uint64_t first, std::size_t n, float scale, float* out) {
  const auto make = [&](std::uint32_t s, float* to, auto...) { superblock_f32(stream, s, scale, to); };
  for_each_superblock<float, kNormals32>(first, n, out, make, make);
}

void fill_f64(const NodeStream& stream, std::uint64_t first, std::size_t n, double scale, double* out) {
  const auto make = [&](std::uint32_t s, double* to, auto...) { superblock_f64(stream, s, scale, to); };
  for_each_superblock<double, kNormals64>(first, n, out, make, make);
}

template <class T, void (*Fill)(const NodeStream&, std::uint64_t, std::size_t, T, T*)>
void fill_nodes(const NodeStream& stream, const std::uint64_t* nodes, std::size_t count, std::uint64_t first,
                std::size_t n, T scale, T* out) {
  NodeStream each = stream;
  for (std::size_t k = 0; k < count; ++k) {
    each.node = nodes[k];
    Fill(each, first, n, scale, out + k * n);
  }
}

void keystream16(const Key& key, const Counter& counter, int rounds, std::uint32_t* out) {
  Counter c = counter;
  for (std::size_t i = 0; i < kBlocksPerSuperblock; ++i, ++c.words[0]) {
    chacha_block(key.words, c.words, rounds, out + i * kBlockWords);
  }
}

}  // namespace

const NoiseKernels kScalarKernels = {
    "scalar", tile_kernels<float>(fill_f32, fill_nodes<float, fill_f32>, TileArithmetic<float>::weighted_sum),
    tile_kernels<double>(fill_f64, fill_nodes<double, fill_f64>, TileArithmetic<double>::weighted_sum), keystream16};

}  // namespace dpftrl
