// SPDX-License-Identifier: Apache-2.0

// The transform of one pair: against long double Box-Muller, at the extreme words, and its symmetries.

#include <cmath>
#include <cstdint>
#include <utility>

#include "check.hpp"
#include "dpftrl/noise/gaussian.hpp"

using namespace dpftrl;

namespace {

// A small generator of its own (splitmix64), so that the words do not come from the code under test.
std::uint64_t next_word(std::uint64_t& state) {
  std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

struct Exact {
  long double first, second;
};

Exact turned(long double log, long double x, unsigned flags) {
  const long double r = std::sqrt(-2 * log), angle = std::acos(-1.0L) / 4 * x;
  long double first = r * std::cos(angle), second = r * std::sin(angle);
  if ((flags & 1) != 0) std::swap(first, second);
  return {(flags & 4) != 0 ? -first : first, (flags & 2) != 0 ? -second : second};
}

// sqrt(-2 ln(U / 2^64)) times cosine and sine of pi/4 x, where U = 0 stands for 1/2 (docs/guarantees/stream.md).
Exact box_muller(std::uint64_t radius, long double x, unsigned flags) {
  const long double u = radius == 0 ? 0.5L : static_cast<long double>(radius);
  // ln(u / 2^64) without the cancellation near u = 2^64.
  const long double distance = radius == 0 ? 0.0L : static_cast<long double>(0 - radius) * 0x1p-64L;
  const long double log = radius >> 63 != 0 ? std::log1p(-distance) : std::log(u) - 64 * std::log(2.0L);
  return turned(log, x, flags);
}

// The same of the 128 bits X of a rare radius word, where X = 0 stands for 1/2.
Exact box_muller_extended(std::uint64_t radius, std::uint64_t extension, long double x, unsigned flags) {
  if (radius >> 63 == 0) {
    const long double u = static_cast<long double>(radius) * 0x1p64L + static_cast<long double>(extension);
    return turned(std::log(u == 0 ? 0.5L : u) - 128 * std::log(2.0L), x, flags);
  }
  const std::uint64_t low = 0 - extension, high = ~radius + (extension == 0 ? 1 : 0);  // 2^128 - X
  const long double distance = static_cast<long double>(high) * 0x1p-64L + static_cast<long double>(low) * 0x1p-128L;
  return turned(std::log1p(-distance), x, flags);
}

void check_pair(std::uint64_t radius, std::uint64_t angle, std::uint64_t extension) {
  const auto radius32 = (radius >> 32) < kRareRadius ? radius : radius & ~std::uint64_t{0xffffffff};
  const auto a32 = static_cast<std::uint32_t>(angle >> 32);
  const Exact e32 = box_muller(radius32, static_cast<long double>(a32 & 0x1fffffff) * 0x1p-29L, a32 >> 29);
  const Pair32 z32 = normal_pair_f32(radius32, a32);
  const double tolerance32 = 4e-7 * static_cast<double>(std::hypot(e32.first, e32.second));
  CHECK_NEAR(static_cast<double>(z32.first), static_cast<double>(e32.first), tolerance32);
  CHECK_NEAR(static_cast<double>(z32.second), static_cast<double>(e32.second), tolerance32);

  const auto x64 = static_cast<long double>((angle & 0x1fffffffffffffff) >> 9) * 0x1p-52L;
  const std::uint64_t high = radius >> 32;
  const bool rare = high < 1u << 18 || high >= 0xfffc0000u;
  const auto flags64 = static_cast<unsigned>(angle >> 61);
  const Exact e64 = rare ? box_muller_extended(radius, extension, x64, flags64) : box_muller(radius, x64, flags64);
  const Pair64 z64 = normal_pair_f64(radius, angle, extension);
  const double tolerance64 = 1e-15 * static_cast<double>(std::hypot(e64.first, e64.second));
  CHECK_NEAR(z64.first, static_cast<double>(e64.first), tolerance64);
  CHECK_NEAR(z64.second, static_cast<double>(e64.second), tolerance64);
}

void against_long_double() {
  std::uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) check_pair(next_word(state), next_word(state), next_word(state));
  // Every exponent of the radius, at its ends and inside; every angle flag, with x at 0, at its largest, inside.
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    for (const std::uint64_t radius : {power, power + (power >> 1), 2 * power - 1, power | (next_word(state) % power),
                                       0 - power, ~power - (next_word(state) % power)}) {
      for (std::uint64_t flags = 0; flags < 8; ++flags) {
        for (const std::uint64_t x : {std::uint64_t{0}, ~std::uint64_t{0} >> 3, next_word(state) >> 3}) {
          check_pair(radius, flags << 61 | x, next_word(state));
        }
      }
    }
    // Every exponent of the extension too, at both ends.
    for (const std::uint64_t extension : {power, 2 * power - 1, power | (next_word(state) % power), 0 - power}) {
      for (const std::uint64_t radius : {std::uint64_t{0}, std::uint64_t{1}, ~std::uint64_t{0}, ~std::uint64_t{1}}) {
        check_pair(radius, next_word(state), extension);
      }
    }
  }
}

void extreme_radii() {
  // Words of zeros are the farthest: 65 ln 2 of 64 bits, 129 ln 2 of 128.
  const double farthest32 = std::sqrt(2 * 65 * std::log(2.0)), farthest64 = std::sqrt(2 * 129 * std::log(2.0));
  CHECK_NEAR(normal_pair_f32(0, 0).first, farthest32, 2e-6);
  CHECK_NEAR(normal_pair_f64(0, 0, 0).first, farthest64, 8e-15);
  CHECK_NEAR(farthest32, 9.49, 0.005);
  CHECK_NEAR(farthest64, 13.37, 0.005);
  CHECK(normal_pair_f64(0, 0, 1).first < normal_pair_f64(0, 0, 0).first);
  CHECK_NEAR(normal_pair_f64(0, 0, 1).first, std::sqrt(256 * std::log(2.0)), 8e-15);
  // Words of ones are the nearest, with full relative precision.
  const std::uint64_t top32 = std::uint64_t{0xffffffff} << 32;
  CHECK_NEAR(normal_pair_f32(top32, 0).first / std::sqrt(0x1p-31), 1.0, 1e-6);
  CHECK_NEAR(normal_pair_f64(~std::uint64_t{0}, 0, ~std::uint64_t{0}).first / std::sqrt(0x1p-127), 1.0, 1e-15);
  CHECK_NEAR(normal_pair_f64(~std::uint64_t{0}, 0, 0).first / std::sqrt(0x1p-63), 1.0, 1e-15);
  // All 64 bits of a rare radius count.
  CHECK(normal_pair_f32(0x00000001ffffffff, 0).first < normal_pair_f32(0x0000000100000000, 0).first);
  CHECK(normal_pair_f32(1, 0).first > normal_pair_f32(0xffff, 0).first);
}

void radius_falls_with_the_word() {
  // Also where the exponent changes: no step upwards between neighbours but by rounding.
  for (int bit = 1; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit, unit32 = std::uint64_t{1} << 32;
    const std::uint64_t ones = ~std::uint64_t{0};
    CHECK(normal_pair_f64(power, 0, 0).first <= normal_pair_f64(power - 1, 0, ones).first * (1 + 1e-15));
    CHECK(normal_pair_f64(0 - power, 0, 0).first <= normal_pair_f64(~power, 0, ones).first * (1 + 1e-15));
    if (power >= unit32) {
      CHECK(normal_pair_f32(power, 0).first <= normal_pair_f32(power - unit32, 0).first * (1 + 5e-7f));
    }
  }
}

void signs_and_swap() {
  const std::uint64_t radius = 0x3456789abcdef012;
  const std::uint32_t x = 0x0badcafe;
  const Pair32 plain = normal_pair_f32(radius, x);
  const Pair32 both = normal_pair_f32(radius, x | 0xc0000000u), swapped = normal_pair_f32(radius, x | 0x20000000u);
  CHECK_EQ(both.first, -plain.first);
  CHECK_EQ(both.second, -plain.second);
  CHECK_EQ(swapped.first, plain.second);
  CHECK_EQ(swapped.second, plain.first);
  CHECK_EQ(normal_pair_f32(radius, x | 0x80000000u).first, -plain.first);
  CHECK_EQ(normal_pair_f32(radius, x | 0x80000000u).second, plain.second);
  // The sign of a zero is a bit like any other.
  CHECK(std::signbit(normal_pair_f32(radius, 0x40000000u).second));
  CHECK(std::signbit(normal_pair_f64(radius, std::uint64_t{1} << 62, 0).second));
  CHECK(!std::signbit(normal_pair_f64(radius, 0, 0).second));
}

void leading_zeros() {
  CHECK_EQ(detail::normalise(0).leading_zeros, 64);
  CHECK_EQ(detail::normalise(0).word, std::uint64_t{1} << 63);
  CHECK_EQ(detail::normalise(0, 0).leading_zeros, 128);
  CHECK_EQ(detail::normalise(0, 0).word, std::uint64_t{1} << 63);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    CHECK_EQ(detail::normalise(power).leading_zeros, 63 - bit);
    CHECK_EQ(detail::normalise(2 * power - 1).leading_zeros, 63 - bit);
    CHECK_EQ(detail::normalise(2 * power - 1).word, (2 * power - 1) << (63 - bit));
    const std::uint64_t ones = ~std::uint64_t{0};
    CHECK_EQ(detail::normalise(power, ones).leading_zeros, 63 - bit);
    CHECK_EQ(detail::normalise(power, ones).word, (power << (63 - bit)) + ((ones >> 1) >> bit));
    CHECK_EQ(detail::normalise(0, power).leading_zeros, 127 - bit);
    CHECK_EQ(detail::normalise(0, power).word, std::uint64_t{1} << 63);
  }
}

}  // namespace

int main() {
  leading_zeros();
  against_long_double();
  extreme_radii();
  radius_falls_with_the_word();
  signs_and_swap();
  return check::report();
}
