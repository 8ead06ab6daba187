// SPDX-License-Identifier: Apache-2.0
#pragma once

// Random words -> N(0, 1): the scalar specification, and the path that vector kernels take for rare words.
//
// Box-Muller, since it needs no table, no branch and no rejection, so that a coordinate's normal is a pure
// function of its own words and the same code runs on any vector unit. Only IEEE add, subtract, multiply
// and square root, in the order written here, and integer arithmetic: no fused multiply-add, no libm. So
// every machine gives the same bits. docs/guarantees/stream.md derives the layout:
//
//   radius word, read as u = (1 + f) * 2^-lz with f in [-1/2, 0); r = sqrt(lz * 2 ln 2 - 2 ln(1 + f))
//   angle word: two signs, a swap, and x in [0, 1); the pair is r cos(pi/4 x) and r sin(pi/4 x), or swapped
//
// f is taken from the integer, so that no bits are lost to 1 - u at small r. A word near an end of its range has few
// random bits left for f: it is rare, and is extended by as many low bits again, from blocks of a kind of their own.
// For float32 these are radius words of 32 bits below kRareRadius (large r). For float64 they are those of 64 bits
// whose high half is within kRareRadius of either end (large r and small r).

#include <cmath>
#include <cstdint>
#include <cstring>

#include "dpftrl/noise/gaussian_coefficients.hpp"

namespace dpftrl {

// A float32 radius word below this bound (probability 2^-14) takes its low half from the extension block.
inline constexpr std::uint32_t kRareRadius = std::uint32_t{1} << 18;

// Whether the high half of a float64 radius word is within kRareRadius of either end: one comparison, since the sum
// wraps (probability 2^-13). Static, like the functions of stream.hpp.
static constexpr bool is_rare_f64(std::uint32_t high) noexcept {
  return static_cast<std::uint32_t>(high + kRareRadius) < 2 * kRareRadius;
}

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

// The same of the 128 bits high * 2^64 + low: the top 64 of them, and how far they moved.
inline Normalised normalise(std::uint64_t high, std::uint64_t low) noexcept {
  if (high == 0) {
    const auto [word, lz] = normalise(low);
    return {word, 64 + lz};
  }
  const int lz = leading_zeros64(high);
  return {lz == 0 ? high : (high << lz) | (low >> (64 - lz)), lz};
}

// u = (1 + f) * 2^-leading_zeros for a radius.
struct Radius64 {
  double f;
  int leading_zeros;
};

inline Radius64 radius_f64(std::uint64_t radius, std::uint64_t extension) noexcept {
  const auto high = static_cast<std::uint32_t>(radius >> 32);
  if (is_rare_f64(high) && high >= kRareRadius) {
    // 1 - u, times 2^128, which is at least 1 and has 13 leading zeros or more.
    const std::uint64_t low = 0 - extension;
    const auto [word, lz] = normalise(~radius + (extension == 0 ? 1u : 0u), low);
    // The conversion is of an int64, so of 63 bits; 2^-(63 + lz) makes the product exact.
    const std::uint64_t bits = (std::uint64_t{1023} - 63 - static_cast<unsigned>(lz)) << 52;
    double unit;
    std::memcpy(&unit, &bits, sizeof unit);
    return {-(static_cast<double>(static_cast<std::int64_t>(word >> 1)) * unit), 0};
  }
  const auto [word, lz] = is_rare_f64(high) ? normalise(radius, extension) : normalise(radius);
  return {static_cast<double>(static_cast<std::int64_t>(word)) * 0x1p-64, lz};
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

// extension: the 64 low bits that count where radius is rare.
inline Pair64 normal_pair_f64(std::uint64_t radius, std::uint64_t angle, std::uint64_t extension) noexcept {
  using namespace coefficients;
  const auto [f, lz] = detail::radius_f64(radius, extension);
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
