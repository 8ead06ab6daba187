// SPDX-License-Identifier: Apache-2.0
#pragma once

// What every target's kernels share: the walk over the superblocks of a coordinate range, and the scalar
// path for rare radius words.
//
// Nothing here is inline with external linkage: a function compiled for AVX-512 must never be the copy that the
// linker keeps for an older processor.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "dpftrl/noise/gaussian.hpp"
#include "dpftrl/noise/stream.hpp"

namespace dpftrl {
namespace {

// Calls make(superblock, destination) so that out[i] is coordinate first + i. A superblock that the range covers only
// in part goes through a buffer on the stack: make_part(superblock, buffer, from, to) is to write elements from .. to
// - 1.
template <class T, std::size_t Size, class Make, class MakePart>
inline void for_each_superblock(std::uint64_t first, std::size_t n, T* out, Make&& make, MakePart&& make_part) {
  auto superblock = static_cast<std::uint32_t>(first / Size);
  std::size_t skip = static_cast<std::size_t>(first % Size);
  while (n > 0) {
    if (skip == 0 && n >= Size) {
      make(superblock, out);
      out += Size;
      n -= Size;
    } else {
      alignas(64) T whole[Size];
      const std::size_t take = n < Size - skip ? n : Size - skip;
      make_part(superblock, whole, skip, skip + take);
      std::memcpy(out, whole + skip, take * sizeof(T));
      out += take;
      n -= take;
      skip = 0;
    }
    ++superblock;
  }
}

}  // namespace

// The pair of (row, row + 8) from one block's words; a rare radius word is completed by the extension block.
// Defined in noise_kernel_scalar.cpp, compiled for any processor.
Pair32 pair_f32(const NodeStream& stream, std::uint32_t block, const std::uint32_t words[16], std::size_t row) noexcept;

// The same from nothing: the pair's block is made again.
Pair32 pair_f32(const NodeStream& stream, std::uint32_t block, std::size_t row) noexcept;

// The pair of (row, row + 8) from its words, which are of the blocks even_block and even_block + 1.
Pair64 pair_f64(const NodeStream& stream, std::uint32_t even_block, std::uint64_t radius, std::uint64_t angle,
                std::size_t row) noexcept;

}  // namespace dpftrl
