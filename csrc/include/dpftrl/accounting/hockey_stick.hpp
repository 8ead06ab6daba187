// SPDX-License-Identifier: Apache-2.0
#pragma once

// The exact privacy curve of the Gaussian mechanism, mu = sqrt(zeta)/sigma:
//
//   delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)
//
// and its inverses, each rounded up to the next double and certified: the value returned is the smallest double that is
// not below the true one, or the answer is "not certified" and the caller has to find it with more digits.

#include "dpftrl/accounting/double_double.hpp"

namespace dpftrl {

// With a = eps/mu - mu/2: delta, or with `complement` 1 - delta, is phi(a) factor. The relative error of that is below
// `error`. Beyond |a| = 60, where it lies below 10^-780, `factor` is 0.
struct HockeyStick {
  DoubleDouble a, factor;
  bool complement;
  double error;
};

// mu in [2^-200, 2^20], eps = 0 or in [2^-300, 2^60].
HockeyStick hockey_stick(DoubleDouble mu, double eps) noexcept;

struct Certified {
  double value;    // or a guess, or NaN
  bool certified;  // value is the smallest double that is not below the true one
};

// 0 < sigma < inf, zeta > 0, eps >= 0 and finite, 0 < delta < 1. Certified results are those with mu in [2^-200, 2^20],
// eps = 0 or in [2^-300, 2^60] and a delta that is 0, 1 or above 2^-1020 to a double, but for the rare case (about one
// in 2^27) that a double lies too close to the true value to tell.
Certified smallest_delta(double sigma, DoubleDouble zeta, double eps) noexcept;
Certified smallest_epsilon(double sigma, DoubleDouble zeta, double delta) noexcept;
Certified smallest_noise_multiplier(double eps, double delta, DoubleDouble zeta) noexcept;

}  // namespace dpftrl
