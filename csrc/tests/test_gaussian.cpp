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

// sqrt(-2 ln(U / 2^64)) times cosine and sine of pi/4 x, where U = 0 stands for 1/2 (docs/stream.md).
Exact box_muller(std::uint64_t radius, long double x, unsigned flags) {
  const long double u = radius == 0 ? 0.5L : static_cast<long double>(radius);
  // ln(u / 2^64) without the cancellation near u = 2^64.
  const long double distance = radius == 0 ? 0.0L : static_cast<long double>(0 - radius) * 0x1p-64L;
  const long double log = radius >> 63 != 0 ? std::log1p(-distance) : std::log(u) - 64 * std::log(2.0L);
  const long double r = std::sqrt(-2 * log), angle = std::acos(-1.0L) / 4 * x;
  long double first = r * std::cos(angle), second = r * std::sin(angle);
  if ((flags & 1) != 0) std::swap(first, second);
  return {(flags & 4) != 0 ? -first : first, (flags & 2) != 0 ? -second : second};
}

void check_pair(std::uint64_t radius, std::uint64_t angle) {
  const auto radius32 = (radius >> 32) < kRareRadius ? radius : radius & ~std::uint64_t{0xffffffff};
  const auto a32 = static_cast<std::uint32_t>(angle >> 32);
  const Exact e32 = box_muller(radius32, static_cast<long double>(a32 & 0x1fffffff) * 0x1p-29L, a32 >> 29);
  const Pair32 z32 = normal_pair_f32(radius32, a32);
  const double tolerance32 = 4e-7 * static_cast<double>(std::hypot(e32.first, e32.second));
  CHECK_NEAR(static_cast<double>(z32.first), static_cast<double>(e32.first), tolerance32);
  CHECK_NEAR(static_cast<double>(z32.second), static_cast<double>(e32.second), tolerance32);

  const auto x64 = static_cast<long double>((angle & 0x1fffffffffffffff) >> 9) * 0x1p-52L;
  const Exact e64 = box_muller(radius, x64, static_cast<unsigned>(angle >> 61));
  const Pair64 z64 = normal_pair_f64(radius, angle);
  const double tolerance64 = 1e-15 * static_cast<double>(std::hypot(e64.first, e64.second));
  CHECK_NEAR(z64.first, static_cast<double>(e64.first), tolerance64);
  CHECK_NEAR(z64.second, static_cast<double>(e64.second), tolerance64);
}

void against_long_double() {
  std::uint64_t state = 1;
  for (int i = 0; i < 20000; ++i) check_pair(next_word(state), next_word(state));
  // Every exponent of the radius, at its ends and inside; every angle flag, with x at 0, at its largest, inside.
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    for (const std::uint64_t radius :
         {power, power + (power >> 1), 2 * power - 1, power | (next_word(state) % power)}) {
      for (std::uint64_t flags = 0; flags < 8; ++flags) {
        for (const std::uint64_t x : {std::uint64_t{0}, ~std::uint64_t{0} >> 3, next_word(state) >> 3}) {
          check_pair(radius, flags << 61 | x);
        }
      }
    }
  }
}

void extreme_radii() {
  // U = 0 is the farthest: 65 ln 2.
  const double farthest = std::sqrt(2 * 65 * std::log(2.0));
  CHECK_NEAR(normal_pair_f32(0, 0).first, farthest, 2e-6);
  CHECK_NEAR(normal_pair_f64(0, 0).first, farthest, 4e-15);
  CHECK_NEAR(farthest, 9.49, 0.005);
  CHECK(normal_pair_f64(1, 0).first < normal_pair_f64(0, 0).first);
  // U = 2^64 - 1 is the nearest; float32 keeps full relative precision there.
  const std::uint64_t top32 = std::uint64_t{0xffffffff} << 32;
  CHECK_NEAR(normal_pair_f32(top32, 0).first / std::sqrt(0x1p-31), 1.0, 1e-6);
  CHECK_NEAR(normal_pair_f64(~std::uint64_t{0}, 0).first / std::sqrt(0x1p-63), 1.0, 1e-15);
  // All 64 bits of a rare radius count.
  CHECK(normal_pair_f32(0x00000001ffffffff, 0).first < normal_pair_f32(0x0000000100000000, 0).first);
  CHECK(normal_pair_f32(1, 0).first > normal_pair_f32(0xffff, 0).first);
}

void radius_falls_with_the_word() {
  // Also where the exponent changes: no step upwards between neighbours but by rounding.
  for (int bit = 1; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit, unit32 = std::uint64_t{1} << 32;
    CHECK(normal_pair_f64(power, 0).first <= normal_pair_f64(power - 1, 0).first * (1 + 1e-15));
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
  CHECK(std::signbit(normal_pair_f64(radius, std::uint64_t{1} << 62).second));
  CHECK(!std::signbit(normal_pair_f64(radius, 0).second));
}

void leading_zeros() {
  CHECK_EQ(detail::normalise(0).leading_zeros, 64);
  CHECK_EQ(detail::normalise(0).word, std::uint64_t{1} << 63);
  for (int bit = 0; bit < 64; ++bit) {
    const std::uint64_t power = std::uint64_t{1} << bit;
    CHECK_EQ(detail::normalise(power).leading_zeros, 63 - bit);
    CHECK_EQ(detail::normalise(2 * power - 1).leading_zeros, 63 - bit);
    CHECK_EQ(detail::normalise(2 * power - 1).word, (2 * power - 1) << (63 - bit));
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
