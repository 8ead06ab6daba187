// SPDX-License-Identifier: Apache-2.0
#pragma once

// Mills' ratio R(x) = (1 - Phi(x))/phi(x) and its derivatives for x >= 0, in double (for guesses) and in DoubleDouble
// (with a proved error).
//
//   G_k(x) = integral over t >= 0 of t^k/k! e^(-x t - t^2/2),   R = G_0,   R^(k) = (-1)^k k! G_k
//   G_(k-1) = x G_k + (k + 1) G_(k+1),   G_(-1) = 1
//
// All G_k are positive, so the recurrence run downward (Miller's algorithm, the continued fraction of R in another
// dress) adds only positive terms and keeps the relative accuracy of every G_k; starting it at k = n with G_(n+1) = 0
// changes G_k/G_(-1) by at most
//
//   rho_n G_k(-x)/G_k(x),  rho_n = G_(n+1)(x)/G_(n+1)(-x),
//
// relatively, as (-1)^k G_k(-x) is the recurrence's other solution. An error e of G_(n+1)/G_n on the way does the same
// with e rho_n, so that the far part of the recurrence may run in plain double: three quarters of its steps. Below x =
// 2, where it would be long, R comes from R(x) = sqrt(pi/2) e^(x^2/2) - (x + x^3/3!! + x^5/5!! + ...), and the others
// from the recurrence run upward, which loses a few bits only. docs/internals/derivations/hockey_stick.md has the
// bounds.

#include <cmath>

#include "dpftrl/accounting/double_double.hpp"

namespace dpftrl {

// The highest k of G_k that is ever asked for.
inline constexpr int kMaxOrder = 31;
inline constexpr double kSeriesEnd = 2.0;

inline double leading(double x) noexcept { return x; }
inline double leading(DoubleDouble x) noexcept { return x.high; }

template <class Real>
Real constant(double high, double low) noexcept {
  if constexpr (sizeof(Real) == sizeof(double)) {
    return high + low;
  } else {
    return {high, low};
  }
}

// e^x = mantissa 2^exponent, |x| <= 2^12, with a relative error below 2^-99.
struct Exponential {
  DoubleDouble mantissa;
  int exponent;
};

inline Exponential exponential(DoubleDouble x) noexcept {
  constexpr double kLn2[] = {0x1.62e42fefa2000p-1, 0x1.9ef35793c6000p-41, 0x1.673007e5ed5e8p-81};
  constexpr DoubleDouble kInverseFactorial[] = {
      {0x1.ae7f3e733b81fp-41, 0x1.1d8656b0ee8cbp-97},  {0x1.93974a8c07c9dp-37, 0x1.05d6f8a2efd1fp-92},
      {0x1.6124613a86d09p-33, 0x1.f28e0cc748ebep-87},  {0x1.1eed8eff8d898p-29, -0x1.2aec959e14c06p-83},
      {0x1.ae64567f544e4p-26, -0x1.c062e06d1f209p-80}, {0x1.27e4fb7789f5cp-22, 0x1.cbbc05b4fa99ap-76},
      {0x1.71de3a556c734p-19, -0x1.c154f8ddc6c00p-73}, {0x1.a01a01a01a01ap-16, 0x1.a01a01a01a01ap-76},
      {0x1.a01a01a01a01ap-13, 0x1.a01a01a01a01ap-73},  {0x1.6c16c16c16c17p-10, -0x1.f49f49f49f49fp-65},
      {0x1.1111111111111p-7, 0x1.1111111111111p-63},   {0x1.5555555555555p-5, 0x1.5555555555555p-59},
      {0x1.5555555555555p-3, 0x1.5555555555555p-57},   {0.5, 0.0}};
  // The products with the first two parts of ln 2 (40 bits each) are exact.
  const double twos = std::nearbyint(x.high * 1.4426950408889634);
  const DoubleDouble rest = ((x - twos * kLn2[0]) - twos * kLn2[1]) - twos * kLn2[2];
  // e^(r/16) - 1 by its series up to r^15, |r/16| < 0.0217, squared four times as (1 + s)^2 - 1 = 2 s + s^2.
  const DoubleDouble r = scale(rest, -4);
  DoubleDouble sum = kInverseFactorial[0];
  for (int i = 1; i < 14; ++i) sum = sum * r + kInverseFactorial[i];
  sum = r + r * r * sum;
  for (int i = 0; i < 4; ++i) sum = scale(sum, 1) + sum * sum;
  return {sum + 1.0, static_cast<int>(twos)};
}

inline double exponential_of(double x) noexcept { return std::exp(x); }
inline DoubleDouble exponential_of(DoubleDouble x) noexcept {
  const Exponential e = exponential(x);
  return scale(e.mantissa, e.exponent);
}

// R(x) for 0 <= x < 2.
template <class Real>
Real mills_series(Real x) noexcept {
  const Real square = x * x;
  int terms = 1;  // what is left out is below 2^-116 of the sum
  for (double term = 1.0; term > 0x1p-117; ++terms) term *= leading(square) / (2 * terms + 1);
  Real sum = constant<Real>(1.0, 0.0);
  for (int n = terms; n > 0; --n) sum = sum * square / static_cast<double>(2 * n + 1) + 1.0;
  return constant<Real>(0x1.40d931ff62706p+0, -0x1.a6a0d6f814637p-54) * exponential_of(square * 0.5) - x * sum;
}

// Where Miller's algorithm starts in plain double, and where DoubleDouble takes over, for x >= 2: see the bounds.
inline int miller_start(double x) noexcept { return 34 + static_cast<int>(1660.0 / (x * x)); }
inline int miller_double_double(double x) noexcept { return 17 + static_cast<int>(500.0 / (x * x)); }

// g[k] = G_k(x) for k = 0..last, last <= 31. x >= 0.
template <class Real>
void mills_derivatives(Real x, int last, Real* g) noexcept {
  const double near = leading(x);
  if (near < kSeriesEnd) {
    g[0] = mills_series(x);
    if (last >= 1) g[1] = -(x * g[0]) + 1.0;
    for (int k = 1; k < last; ++k) g[k + 1] = (g[k - 1] - x * g[k]) / static_cast<double>(k + 1);
    return;
  }
  int k = miller_double_double(near);
  if (k <= last) k = last + 1;
  double far = 1.0, farther = 0.0;  // G_k and G_(k+1) up to a factor
  if constexpr (sizeof(Real) > sizeof(double)) {
    int start = miller_start(near);
    if (start <= k) start = k + 1;
    far = 0x1p-600;
    for (int n = start; n > k; --n) {
      const double next = near * far + (n + 1) * farther;
      farther = far;
      far = next;
    }
    farther /= far;
    far = 1.0;
  }
  Real above = constant<Real>(farther, 0.0), here = constant<Real>(far, 0.0);
  for (; k >= 0; --k) {
    if (k <= last) g[k] = here;
    const Real next = x * here + above * static_cast<double>(k + 1);
    above = here;
    here = next;
  }
  for (int i = 0; i <= last; ++i) g[i] = g[i] / here;
}

template <class Real>
Real mills_ratio(Real x) noexcept {
  Real ratio = constant<Real>(0.0, 0.0);
  mills_derivatives(x, 0, &ratio);
  return ratio;
}

}  // namespace dpftrl
