// SPDX-License-Identifier: Apache-2.0
#pragma once

// A number as the unevaluated sum of two doubles, |low| <= ulp(high)/2: 106 bits, from IEEE double operations alone.
//
// Products are split as Dekker did instead of relying on a fused multiply-add, so that every target computes the same
// bits. With u = 2^-53 the relative errors are at most 3.1 u^2 for a sum, 5 u^2 for a product, 2 u^2 for a sum with a
// double, 3 u^2 for a product or quotient with a double, 15 u^2 for a quotient and 4 u^2 for a square root (Joldes,
// Muller and Popescu 2017, "Tight and rigorous error bounds for basic building blocks of double-word arithmetic", and
// the Newton step of Karp and Markstein for the root), as long as nothing overflows, underflows or, in a product,
// exceeds 2^996. Needs rounding to nearest: see float_environment.hpp.

#include <cmath>

namespace dpftrl {

struct DoubleDouble {
  double high, low;
};

// a + b = high + low exactly; fast_two_sum needs |a| >= |b| or a = 0.
inline DoubleDouble fast_two_sum(double a, double b) noexcept {
  const double sum = a + b;
  return {sum, b - (sum - a)};
}

inline DoubleDouble two_sum(double a, double b) noexcept {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// a b = high + low exactly.
inline DoubleDouble two_product(double a, double b) noexcept {
  constexpr double kSplit = 134217729.0;  // 2^27 + 1: halves of 26 bits, whose products are exact
  const double a_scaled = kSplit * a, b_scaled = kSplit * b;
  const double a_high = a_scaled - (a_scaled - a), b_high = b_scaled - (b_scaled - b);
  const double a_low = a - a_high, b_low = b - b_high;
  const double product = a * b;
  return {product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

inline DoubleDouble operator-(DoubleDouble x) noexcept { return {-x.high, -x.low}; }

inline DoubleDouble operator+(DoubleDouble x, DoubleDouble y) noexcept {
  const DoubleDouble high = two_sum(x.high, y.high);
  const DoubleDouble low = two_sum(x.low, y.low);
  const DoubleDouble sum = fast_two_sum(high.high, high.low + low.high);
  return fast_two_sum(sum.high, low.low + sum.low);
}

inline DoubleDouble operator+(DoubleDouble x, double y) noexcept {
  const DoubleDouble high = two_sum(x.high, y);
  return fast_two_sum(high.high, high.low + x.low);
}

inline DoubleDouble operator-(DoubleDouble x, DoubleDouble y) noexcept { return x + -y; }
inline DoubleDouble operator-(DoubleDouble x, double y) noexcept { return x + -y; }

inline DoubleDouble operator*(DoubleDouble x, DoubleDouble y) noexcept {
  const DoubleDouble high = two_product(x.high, y.high);
  return fast_two_sum(high.high, high.low + (x.high * y.low + x.low * y.high));
}

inline DoubleDouble operator*(DoubleDouble x, double y) noexcept {
  const DoubleDouble high = two_product(x.high, y);
  const DoubleDouble sum = fast_two_sum(high.high, x.low * y);
  return fast_two_sum(sum.high, sum.low + high.low);
}

inline DoubleDouble operator/(DoubleDouble x, double y) noexcept {
  const double quotient = x.high / y;
  const DoubleDouble product = two_product(quotient, y);
  const double rest = ((x.high - product.high) - product.low) + x.low;
  return fast_two_sum(quotient, rest / y);
}

inline DoubleDouble operator/(DoubleDouble x, DoubleDouble y) noexcept {
  const double quotient = x.high / y.high;
  const DoubleDouble product = y * quotient;
  const double rest = (x.high - product.high) + (x.low - product.low);
  return fast_two_sum(quotient, rest / y.high);
}

inline DoubleDouble square_root(DoubleDouble x) noexcept {
  const double root = std::sqrt(x.high);
  const DoubleDouble square = two_product(root, root);
  const double rest = ((x.high - square.high) - square.low) + x.low;
  return fast_two_sum(root, rest / (2.0 * root));
}

// x 2^exponent, exact unless it overflows or underflows.
inline DoubleDouble scale(DoubleDouble x, int exponent) noexcept {
  return {std::ldexp(x.high, exponent), std::ldexp(x.low, exponent)};
}

}  // namespace dpftrl
