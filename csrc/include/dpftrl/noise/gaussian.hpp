// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random words -> N(0, 1): the scalar specification, and the path that vector kernels take for rare words.
//
// Box-Muller, since it needs no table, no branch and no rejection, so that a coordinate's normal is a pure
// function of its own words and the same code runs on any vector unit. Only IEEE add, subtract, multiply
// and square root, in the order written here, and integer arithmetic: no fused multiply-add, no libm. So
// every machine gives the same bits. docs/stream.md derives the layout:
//
//   radius word, read as U / 2^64 = (1 + f) * 2^-lz with f in [-1/2, 0]; r = sqrt(lz * 2 ln 2 - 2 ln(1 + f))
//   angle word: two signs, a swap, and x in [0, 1); the pair is r cos(pi/4 x) and r sin(pi/4 x), or swapped
//
// Taking f from the integer keeps full relative precision at both ends: at small r no bits are lost to
// 1 - u, and at large r there are 64 bits (tail to 9.4 sigma). For float32 the low 32 of them matter only
// when the high word is below kRareRadius; then they come from a second block of its own kind.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "dpftrl/noise/gaussian_coefficients.hpp"

namespace dpftrl {

// A float32 radius word below this bound (probability 2^-14) takes its low half from the extension block.
inline constexpr std::uint32_t kRareRadius = std::uint32_t{1} << 18;

struct Pair32 {
  float first, second;
};
struct Pair64 {
  double first, second;
};

namespace detail {

inline int leading_zeros64(std::uint64_t x) noexcept {
  int n = 0;
  for (int shift = 32; shift > 0; shift /= 2) {
    if ((x >> (64 - shift)) == 0) {
      n += shift;
      x <<= shift;
    }
  }
  return n;
}

// The leading bit of the radius word at the top, and how far it moved. U = 0 is read as 1/2.
struct Normalised {
  std::uint64_t word;
  int leading_zeros;
};

inline Normalised normalise(std::uint64_t u) noexcept {
  if (u == 0) return {std::uint64_t{1} << 63, 64};
  const int lz = leading_zeros64(u);
  return {u << lz, lz};
}

}  // namespace detail

// radius: 64 bits of which the low 32 are zero unless the high 32 are below kRareRadius.
inline Pair32 normal_pair_f32(std::uint64_t radius, std::uint32_t angle) noexcept {
  using namespace coefficients;
  const auto [word, lz] = detail::normalise(radius);
  const float f = static_cast<float>(static_cast<std::int32_t>(word >> 32)) * 0x1p-32f;
  const float f2 = f * f;
  const float even = (((kLog32[8] * f2 + kLog32[6]) * f2 + kLog32[4]) * f2 + kLog32[2]) * f2 + kLog32[0];
  const float odd = ((kLog32[7] * f2 + kLog32[5]) * f2 + kLog32[3]) * f2 + kLog32[1];
  const float r = std::sqrt(static_cast<float>(lz) * kTwoLn2F32 + f * (even + f * odd));

  const float x = static_cast<float>(static_cast<std::int32_t>(angle & 0x1fffffffu)) * 0x1p-29f;
  const float y = x * x;
  const float cosine = r * (((kCos32[3] * y + kCos32[2]) * y + kCos32[1]) * y + kCos32[0]);
  const float sine = r * (x * (((kSin32[3] * y + kSin32[2]) * y + kSin32[1]) * y + kSin32[0]));
  const bool swap = ((angle >> 29) & 1u) != 0;
  const float first = swap ? sine : cosine;
  const float second = swap ? cosine : sine;
  return {(angle >> 31) != 0 ? -first : first, ((angle >> 30) & 1u) != 0 ? -second : second};
}

inline Pair64 normal_pair_f64(std::uint64_t radius, std::uint64_t angle) noexcept {
  using namespace coefficients;
  const auto [word, lz] = detail::normalise(radius);
  const double f = static_cast<double>(static_cast<std::int64_t>(word)) * 0x1p-64;
  const double f2 = f * f;
  double even = kLog64[20];
  for (int i = 18; i >= 0; i -= 2) even = even * f2 + kLog64[i];
  double odd = kLog64[19];
  for (int i = 17; i >= 1; i -= 2) odd = odd * f2 + kLog64[i];
  const double r = std::sqrt(static_cast<double>(lz) * kTwoLn2F64 + f * (even + f * odd));

  const std::uint64_t bits = ((angle << 3) >> 12) | (std::uint64_t{0x3ff} << 52);
  double x;
  std::memcpy(&x, &bits, sizeof x);
  x = x - 1.0;
  const double y = x * x;
  double c = kCos64[7];
  for (int i = 6; i >= 0; --i) c = c * y + kCos64[i];
  double s = kSin64[6];
  for (int i = 5; i >= 0; --i) s = s * y + kSin64[i];
  const double cosine = r * c;
  const double sine = r * (x * s);
  const bool swap = ((angle >> 61) & 1u) != 0;
  const double first = swap ? sine : cosine;
  const double second = swap ? cosine : sine;
  return {(angle >> 63) != 0 ? -first : first, ((angle >> 62) & 1u) != 0 ? -second : second};
}

}  // namespace dpftrl
