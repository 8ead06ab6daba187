// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vector kernels, written once over a small vector type V that each target's file defines.
//
// Lane i of a vector holds the word of block i ("vertical" ChaCha): no shuffles in the rounds, and since a
// superblock's row j is word j of its 16 blocks, results go to memory without a transpose. The ChaCha rounds and
// the transform are two loops over a superblock with 1 KiB of stack between them: the rounds need every
// register for their 16 rows, the transform then has eight independent pairs of rows in flight to hide the
// latency of its polynomials. A radius word that needs the scalar path occurs in one superblock of 128; all
// eight rows are tested by one comparison of their minimum (float64: of the words moved by kRareRadius, so that both
// ends of the range lie below one bound).
//
// V gives: kLanes; U (uint32 lanes), F (float lanes), W (uint64 lanes), D (double lanes) and the operations
// used below. None of them may round in another way than IEEE nearest-even, or fuse.

#include <cstddef>
#include <cstdint>

#include "dpftrl/noise/chacha.hpp"
#include "dpftrl/noise/gaussian.hpp"
#include "dpftrl/noise/noise_kernel.hpp"
#include "noise/superblocks.hpp"
#include "noise/tile_arithmetic.hpp"

namespace dpftrl {
namespace {

template <class V>
struct PackedNodes;  // a few coordinates of many nodes (packed_nodes.hpp)

template <class V>
struct SimdKernels {
  using U = typename V::U;
  using F = typename V::F;
  using W = typename V::W;
  using D = typename V::D;
  static constexpr std::size_t kLanes = V::kLanes;
  static constexpr std::size_t kParts = kBlocksPerSuperblock / kLanes;

  template <int A, int B, int C, int E>
  static inline void quarter(U (&x)[16]) {
    x[A] = V::add(x[A], x[B]), x[E] = V::template rotl<16>(V::bit_xor(x[E], x[A]));
    x[C] = V::add(x[C], x[E]), x[B] = V::template rotl<12>(V::bit_xor(x[B], x[C]));
    x[A] = V::add(x[A], x[B]), x[E] = V::template rotl<8>(V::bit_xor(x[E], x[A]));
    x[C] = V::add(x[C], x[E]), x[B] = V::template rotl<7>(V::bit_xor(x[B], x[C]));
  }

  // rows[16 * j + lane] = word j of the block of a lane, for kLanes lanes; input(i) has word i of their states.
  template <class Input>
  static inline void chacha_part(const Input& input, int rounds, std::uint32_t* rows) {
    U x[16];
    for (int i = 0; i < 16; ++i) x[i] = input(i);
    for (int r = 0; r < rounds; r += 2) {
      quarter<0, 4, 8, 12>(x);
      quarter<1, 5, 9, 13>(x);
      quarter<2, 6, 10, 14>(x);
      quarter<3, 7, 11, 15>(x);
      quarter<0, 5, 10, 15>(x);
      quarter<1, 6, 11, 12>(x);
      quarter<2, 7, 8, 13>(x);
      quarter<3, 4, 9, 14>(x);
    }
    for (int i = 0; i < 16; ++i) V::store(rows + i * 16, V::add(x[i], input(i)));
  }

  // The same of blocks counter.words[0] + lane, for 16 lanes.
  static inline void chacha_rows(const Key& key, const Counter& counter, int rounds, std::uint32_t* rows) {
    std::uint32_t input[16];
    for (int i = 0; i < 4; ++i) input[i] = kChaChaConstants[i];
    for (int i = 0; i < 8; ++i) input[4 + i] = key.words[i];
    for (int i = 0; i < 4; ++i) input[12 + i] = counter.words[i];
    for (std::size_t part = 0; part < kParts; ++part) {
      const U blocks = V::add(V::splat(counter.words[0]), V::lane_numbers(static_cast<std::uint32_t>(part * kLanes)));
      chacha_part([&](int i) { return i == 12 ? blocks : V::splat(input[i]); }, rounds, rows + part * kLanes);
    }
  }

  static inline F horner32(const float* c, int degree, F y) {
    F p = V::splat(c[degree]);
    for (int i = degree - 1; i >= 0; --i) p = V::add(V::mul(p, y), V::splat(c[i]));
    return p;
  }

  static inline D horner64(const double* c, int degree, D y) {
    D p = V::splat(c[degree]);
    for (int i = degree - 1; i >= 0; --i) p = V::add(V::mul(p, y), V::splat(c[i]));
    return p;
  }

  // The recurrence of normal_pair_f32 (gaussian.hpp), lane by lane.
  static inline void transform32(U radius, U angle, F scale, F& first, F& second) {
    using namespace coefficients;
    U lz, word;
    V::normalise(radius, lz, word);
    const F f = V::mul(V::from_int(word), V::splat(0x1p-32f));
    const F f2 = V::mul(f, f);
    F even = V::splat(kLog32[8]);
    for (int i = 6; i >= 0; i -= 2) even = V::add(V::mul(even, f2), V::splat(kLog32[i]));
    F odd = V::splat(kLog32[7]);
    for (int i = 5; i >= 1; i -= 2) odd = V::add(V::mul(odd, f2), V::splat(kLog32[i]));
    const F log = V::mul(f, V::add(even, V::mul(f, odd)));
    const F r = V::sqrt(V::add(V::mul(V::from_int(lz), V::splat(kTwoLn2F32)), log));

    const F x = V::mul(V::from_int(V::bit_and(angle, V::splat(0x1fffffffu))), V::splat(0x1p-29f));
    const F y = V::mul(x, x);
    const F cosine = V::mul(r, horner32(kCos32, 3, y));
    const F sine = V::mul(r, V::mul(x, horner32(kSin32, 3, y)));
    F a, b;
    V::template swap_if_bit<29>(angle, cosine, sine, a, b);
    first = V::mul(V::template negate_if_bit<31>(angle, a), scale);
    second = V::mul(V::template negate_if_bit<30>(angle, b), scale);
  }

  static inline void transform64(W radius, W angle, D scale, D& first, D& second) {
    using namespace coefficients;
    D lz;
    W word;
    V::normalise(radius, lz, word);
    const D f = V::mul(V::from_int64(word), V::splat(0x1p-64));
    const D f2 = V::mul(f, f);
    D even = V::splat(kLog64[20]);
    for (int i = 18; i >= 0; i -= 2) even = V::add(V::mul(even, f2), V::splat(kLog64[i]));
    D odd = V::splat(kLog64[19]);
    for (int i = 17; i >= 1; i -= 2) odd = V::add(V::mul(odd, f2), V::splat(kLog64[i]));
    const D log = V::mul(f, V::add(even, V::mul(f, odd)));
    const D r = V::sqrt(V::add(V::mul(lz, V::splat(kTwoLn2F64)), log));

    const D x = V::unit_interval(angle);
    const D y = V::mul(x, x);
    const D cosine = V::mul(r, horner64(kCos64, 7, y));
    const D sine = V::mul(r, V::mul(x, horner64(kSin64, 6, y)));
    D a, b;
    V::template swap_if_bit<61>(angle, cosine, sine, a, b);
    first = V::mul(V::template negate_if_bit<63>(angle, a), scale);
    second = V::mul(V::template negate_if_bit<62>(angle, b), scale);
  }

  // The vectors of pairs that coordinates from .. to - 1 of a superblock of 2 * half need, by number: those of its
  // second half, then those of its first half that are not among them.
  struct Needed {
    Needed(std::size_t from, std::size_t to, std::size_t half, std::size_t pairs) {
      const std::size_t all = half / pairs;
      first = from < half ? from / pairs : all;
      std::size_t last = to < half ? (to + pairs - 1) / pairs : all;
      if (to > half) {
        first_of_second = from > half ? (from - half) / pairs : 0;
        const std::size_t end = (to - half + pairs - 1) / pairs;
        of_second = (end < first ? end : first) - first_of_second;
      }
      count = of_second + last - first;
    }
    std::size_t operator[](std::size_t k) const { return k < of_second ? first_of_second + k : first + k - of_second; }

    std::size_t first, first_of_second = 0, of_second = 0, count;
  };

  // All of it, or what coordinates from .. to - 1 need: the rounds make whole superblocks, the transform need not.
  template <bool Whole>
  static inline void superblock_f32(const NodeStream& stream, std::uint32_t superblock, float scale, float* out,
                                    std::size_t from = 0, std::size_t to = kNormals32) {
    alignas(64) std::uint32_t rows[kWordsPerSuperblock];
    const auto block = static_cast<std::uint32_t>(superblock * kBlocksPerSuperblock);
    chacha_rows(stream.key, make_counter(stream, Kind::normal_f32, block), stream.rounds, rows);
    const F s = V::splat(scale);
    U smallest = V::splat(0xffffffffu);
    const Needed needed(from, to, kNormals32 / 2, kLanes);
    for (std::size_t k = 0; k < (Whole ? 128 / kLanes : needed.count); ++k) {
      const std::size_t i = (Whole ? k : needed[k]) * kLanes;
      const U radius = V::load(rows + i);
      smallest = V::min(smallest, radius);
      F first, second;
      transform32(radius, V::load(rows + 128 + i), s, first, second);
      V::store(out + i, first);
      V::store(out + 128 + i, second);
    }
    if (V::any_below(smallest, kRareRadius)) patch_f32(stream, block, rows, scale, out);
  }

  template <bool Whole>
  static inline void superblock_f64(const NodeStream& stream, std::uint32_t superblock, double scale, double* out,
                                    std::size_t from = 0, std::size_t to = kNormals64) {
    alignas(64) std::uint32_t rows[kWordsPerSuperblock];
    const auto block = static_cast<std::uint32_t>(superblock * kBlocksPerSuperblock);
    chacha_rows(stream.key, make_counter(stream, Kind::normal_f64, block), stream.rounds, rows);
    const D s = V::splat(scale);
    U smallest = V::splat(0xffffffffu);
    const Needed needed(from, to, kNormals64 / 2, kLanes / 2);
    for (std::size_t k = 0; k < (Whole ? 128 / kLanes : needed.count); ++k) {
      const std::size_t i = (Whole ? k : needed[k]) * kLanes;
      const U radius = V::load(rows + i);
      // The high word of each 64-bit lane alone decides: is_rare_f64.
      smallest = V::min(smallest, V::or_low_halves(V::add(radius, V::splat(kRareRadius))));
      D first, second;
      transform64(V::as_words64(radius), V::as_words64(V::load(rows + 128 + i)), s, first, second);
      V::store(out + i / 2, first);
      V::store(out + 64 + i / 2, second);
    }
    if (V::any_below(smallest, 2 * kRareRadius)) patch_f64(stream, block, rows, scale, out);
  }

  static void patch_f32(const NodeStream& stream, std::uint32_t block, const std::uint32_t* rows, float scale,
                        float* out) {
    for (std::size_t i = 0; i < 128; ++i) {
      if (rows[i] >= kRareRadius) continue;
      const Pair32 z = pair_f32(stream, block + static_cast<std::uint32_t>(i % 16), i / 16);
      out[i] = z.first * scale;
      out[i + 128] = z.second * scale;
    }
  }

  static void patch_f64(const NodeStream& stream, std::uint32_t block, const std::uint32_t* rows, double scale,
                        double* out) {
    const auto joined = [&](std::size_t i) { return rows[i] | (std::uint64_t{rows[i + 1]} << 32); };
    for (std::size_t i = 0; i < 64; ++i) {
      if (!is_rare_f64(rows[2 * i + 1])) continue;
      const auto even_block = block + static_cast<std::uint32_t>(2 * (i % 8));
      const Pair64 z = pair_f64(stream, even_block, joined(2 * i), joined(128 + 2 * i), i / 8);
      out[i] = z.first * scale;
      out[i + 64] = z.second * scale;
    }
  }

  static void fill_f32(const NodeStream& stream, std::uint64_t first, std::size_t n, float scale, float* out) {
    for_each_superblock<float, kNormals32>(
        first, n, out, [&](std::uint32_t s, float* to) { superblock_f32<true>(stream, s, scale, to); },
        [&](std::uint32_t s, float* to, std::size_t begin, std::size_t end) {
          superblock_f32<false>(stream, s, scale, to, begin, end);
        });
  }

  static void fill_f64(const NodeStream& stream, std::uint64_t first, std::size_t n, double scale, double* out) {
    for_each_superblock<double, kNormals64>(
        first, n, out, [&](std::uint32_t s, double* to) { superblock_f64<true>(stream, s, scale, to); },
        [&](std::uint32_t s, double* to, std::size_t begin, std::size_t end) {
          superblock_f64<false>(stream, s, scale, to, begin, end);
        });
  }

  static void keystream16(const Key& key, const Counter& counter, int rounds, std::uint32_t* out) {
    alignas(64) std::uint32_t rows[kWordsPerSuperblock];
    chacha_rows(key, counter, rounds, rows);
    for (std::size_t block = 0; block < kBlocksPerSuperblock; ++block) {
      for (std::size_t word = 0; word < kBlockWords; ++word) out[block * 16 + word] = rows[word * 16 + block];
    }
  }

  // Four vectors of the sum in registers, so that it is not written and read again at each term.
  template <class Vec, class T>
  static void weighted_sum(std::size_t n, const T* base, std::size_t count, const T* const* x, const T* w, T* out) {
    constexpr std::size_t lanes = sizeof(Vec) / sizeof(T);
    std::size_t i = 0;
    for (; i + 4 * lanes <= n; i += 4 * lanes) {
      Vec sum[4];
      for (std::size_t u = 0; u < 4; ++u) {
        sum[u] = V::mul(V::load(x[0] + i + u * lanes), V::splat(w[0]));
        if (base != nullptr) sum[u] = V::add(V::load(base + i + u * lanes), sum[u]);
      }
      for (std::size_t j = 1; j < count; ++j) {
        const T* xj = x[j] + i;
        const Vec wj = V::splat(w[j]);
        for (std::size_t u = 0; u < 4; ++u) sum[u] = V::add(sum[u], V::mul(V::load(xj + u * lanes), wj));
      }
      for (std::size_t u = 0; u < 4; ++u) V::store(out + i + u * lanes, sum[u]);
    }
    if (i == n) return;
    const T* rest[kMaxLevel + 1];
    for (std::size_t j = 0; j < count; ++j) rest[j] = x[j] + i;
    TileArithmetic<T>::weighted_sum(n - i, base != nullptr ? base + i : nullptr, count, rest, w, out + i);
  }

  static constexpr NoiseKernels table(const char* name) {
    return {name, tile_kernels<float>(fill_f32, PackedNodes<V>::fill_f32, weighted_sum<F, float>),
            tile_kernels<double>(fill_f64, PackedNodes<V>::fill_f64, weighted_sum<D, double>), keystream16};
  }
};

}  // namespace
}  // namespace dpftrl

#include "noise/packed_nodes.hpp"
