// SPDX-License-Identifier: Apache-2.0

// The curve as one factor that may be tiny times one that is not (a = eps/mu - mu/2, b = eps/mu + mu/2):
//
//   delta = phi(a) (R(a) - R(b))          for a >= 0
//   1 - delta = phi(a) (R(-a) + R(b))     for a < 0
//   delta = phi(a) 2 sum over odd k of (mu/2)^k G_k(eps/mu)     for small mu
//
// The last is the Taylor series of R(a) - R(b) about the midpoint eps/mu: all terms are positive, so that a small mu
// costs no digits. e^(-a^2/2) keeps its power of two beside it, so that a small delta costs none either. Everything is
// written once for double, which finds a guess by Newton's iteration, and for DoubleDouble, which improves it by one
// more step and then decides between neighbouring doubles with a proved error bound
// (docs/internals/derivations/hockey_stick.md). So a search needs about three evaluations in DoubleDouble. Nothing is
// ever decided by a guess.

#include "dpftrl/accounting/hockey_stick.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "accounting/mills_ratio.hpp"
#include "dpftrl/infra/float_environment.hpp"

namespace dpftrl {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLogRootTwoPi = 0.91893853320467274;
enum class Comparison { at_most, above, undecided };

constexpr double kFar = 60.0;
constexpr int kNewtonSteps = 60;
constexpr int kNeighbours = 4;

template <class Real>
struct Shape {
  Real a, factor;
  bool complement;
};

// R(m - half) - R(m + half) for half <= 1/4 and half m <= 4.
template <class Real>
Real difference(Real m, Real half) noexcept {
  const Real square = half * half;
  // term_(k+2)/term_k <= half^2/(k + 2), since (k + 2) G_(k+2) <= G_k.
  int last = 1;
  for (double term = 1.0; term > 0x1p-112 && last < kMaxOrder; last += 2) term *= leading(square) / (last + 2);
  Real g[kMaxOrder + 1];
  mills_derivatives(m, last, g);
  Real sum = g[last];
  for (int k = last - 2; k > 0; k -= 2) sum = sum * square + g[k];
  return half * sum * 2.0;
}

template <class Real>
Shape<Real> shape(Real mu, Real eps) noexcept {
  const Real m = eps / mu, half = mu * 0.5;
  const Real a = m - half;
  const double near = leading(a);
  if (!(std::fabs(near) <= kFar)) return {a, constant<Real>(0.0, 0.0), near < 0.0};
  if (leading(half) <= 0.25 && leading(half) * leading(m) <= 4.0) return {a, difference(m, half), false};
  const Real b = m + half;
  if (near >= 0.0) return {a, mills_ratio(a) - mills_ratio(b), false};
  return {a, mills_ratio(-a) + mills_ratio(b), true};
}

// root 2^exponent = sqrt(zeta), 1/2 <= root < 1.
struct ScaledRoot {
  DoubleDouble root;
  int exponent;
};

ScaledRoot scaled_root(DoubleDouble zeta) noexcept {
  int exponent = 0;
  std::frexp(zeta.high, &exponent);
  exponent += exponent & 1;
  return {square_root(scale(zeta, -exponent)), exponent / 2};
}

// a / b 2^exponent where that is within [2^-200, 2^20], else NaN.
DoubleDouble mean_shift(double sigma, const ScaledRoot& root) noexcept {
  int exponent = 0;
  const double mantissa = std::frexp(sigma, &exponent);
  const int power = root.exponent - exponent;
  if (!(power >= -199 && power <= 18)) return {std::numeric_limits<double>::quiet_NaN(), 0.0};
  return scale(root.root / mantissa, power);
}

bool in_range(DoubleDouble mu, double eps) noexcept {
  return mu.high >= 0x1p-200 && mu.high <= 0x1p20 && (eps == 0.0 || (eps >= 0x1p-300 && eps <= 0x1p60));
}

// phi(a) factor = mantissa 2^exponent.
Exponential value(const HockeyStick& at) noexcept {
  constexpr DoubleDouble kInverseRootTwoPi = {0x1.9884533d43651p-2, -0x1.cbc0d30ebfd15p-56};
  Exponential v = exponential(-(at.a * at.a * 0.5));
  v.mantissa = v.mantissa * at.factor * kInverseRootTwoPi;
  return v;
}

// value/target - 1, or -1 or infinity where they are more than 2^100 apart.
double excess(const Exponential& v, DoubleDouble target) noexcept {
  const int power = std::ilogb(v.mantissa.high) + v.exponent - std::ilogb(target.high);
  if (power < -100) return -1.0;
  if (power > 100) return kInfinity;
  const int normal = -std::ilogb(target.high);
  const DoubleDouble t = scale(target, normal);
  return (scale(v.mantissa, v.exponent + normal) - t).high / t.high;
}

struct Excess {
  double relative;  // of delta over the target, or of 1 - delta over 1 - target
  Comparison comparison;
};

Excess compare(const HockeyStick& at, double target) noexcept {
  if (at.factor.high == 0.0) return {-1.0, at.complement ? Comparison::above : Comparison::at_most};
  const double relative = excess(value(at), at.complement ? two_sum(1.0, -target) : DoubleDouble{target, 0.0});
  // Twice the error: the target stands in the denominator here.
  if (!(std::fabs(relative) > 2.0 * at.error)) return {relative, Comparison::undecided};
  return {relative, (relative > 0.0) == at.complement ? Comparison::at_most : Comparison::above};
}

// The logarithms of (delta, target) or, near 1, of (1 - delta, 1 - target).
struct Distance {
  double log_ratio;
  bool complement;
};

Distance distance(const Shape<double>& at, double target) noexcept {
  const double log_value = -0.5 * at.a * at.a - kLogRootTwoPi + std::log(at.factor);
  if (!at.complement) return {log_value - std::log(target), false};
  if (target > 0.5) return {log_value - std::log1p(-target), true};
  return {std::log1p(-std::exp(log_value)) - std::log(target), false};
}

// d ln delta / d eps = -rate R(b) and d ln delta / d mu = rate, or, of 1 - delta, the same with the other sign.
double rate(const Shape<double>& at, bool complement) noexcept {
  if (at.complement == complement) return 1.0 / at.factor;
  const double density = std::exp(-0.5 * at.a * at.a - kLogRootTwoPi);
  return density / (1.0 - density * at.factor);
}

double newton_epsilon(double mu, double target) noexcept {
  // ln delta is concave in eps, and the zCDP bound lies right of the root.
  double eps = mu * mu / 2 + mu * std::sqrt(-2.0 * std::log(target));
  for (int i = 0; i < kNewtonSteps; ++i) {
    const Shape<double> at = shape(mu, eps);
    if (at.factor == 0.0) break;
    const Distance d = distance(at, target);
    const double step = d.log_ratio / (rate(at, d.complement) * mills_ratio(eps / mu + mu / 2));
    const double next = std::max(eps + (d.complement ? -step : step), 0.0);
    const bool converged = next == eps || std::fabs(step) <= 1e-9 * next;
    eps = next;
    if (converged) break;
  }
  return eps;
}

double newton_mean_shift(double eps, double target) noexcept {
  // Both lower bounds of mu: the zCDP bound turned round, and delta(mu, eps) <= delta(mu, 0) <= mu/sqrt(2 pi).
  const double log_inverse = -std::log(target);
  double mu = std::max(std::sqrt(2.0) * eps / (std::sqrt(eps + log_inverse) + std::sqrt(log_inverse)),
                       target * 2.5066282746310002);
  for (int i = 0; i < kNewtonSteps; ++i) {
    const Shape<double> at = shape(mu, eps);
    if (at.factor == 0.0) break;
    const Distance d = distance(at, target);
    const double step = -d.log_ratio / rate(at, d.complement);
    mu += std::max(d.complement ? -step : step, -mu / 2);
    if (std::fabs(step) <= 1e-9 * mu) break;
  }
  return mu;
}

double round_up(DoubleDouble x) noexcept { return x.low > 0.0 ? std::nextafter(x.high, kInfinity) : x.high; }

double round_down_to_integer(DoubleDouble x) noexcept {
  const double floor = std::floor(x.high);
  return floor == x.high && x.low < 0.0 ? floor - 1.0 : floor;
}

// The smallest double at which `holds` says at_most, if it lies within a few places of the guess.
template <class Holds>
Certified certify(double guess, const Holds& holds) noexcept {
  double at = guess;
  bool known_above = false, known_holds = false;
  for (int i = 0; i < kNeighbours; ++i) {
    if (!(at >= std::numeric_limits<double>::min() && at < kInfinity)) break;
    const Comparison comparison = holds(at);
    if (comparison == Comparison::undecided) break;
    if (comparison == Comparison::at_most) {
      if (known_above) return {at, true};
      known_holds = true;
      at = std::nextafter(at, 0.0);
    } else {
      at = std::nextafter(at, kInfinity);
      if (known_holds) return {at, true};
      known_above = true;
    }
  }
  return {guess, false};
}

}  // namespace

HockeyStick hockey_stick(DoubleDouble mu, double eps) noexcept {
  const Shape<DoubleDouble> at = shape(mu, DoubleDouble{eps, 0.0});
  const double a = std::fabs(at.a.high);
  const double error = 0x1p-84 + 0x1p-100 * (a + 4.0) * (eps / mu.high + mu.high + 4.0);
  return {at.a, at.factor, at.complement, error};
}

Certified smallest_delta(double sigma, DoubleDouble zeta, double eps) noexcept {
  const FloatEnvironment guard;
  const Certified unknown{std::numeric_limits<double>::quiet_NaN(), false};
  const DoubleDouble mu = mean_shift(sigma, scaled_root(zeta));
  if (!in_range(mu, eps)) return unknown;
  const HockeyStick at = hockey_stick(mu, eps);
  if (at.factor.high == 0.0) return {at.complement ? 1.0 : std::numeric_limits<double>::denorm_min(), true};
  const Exponential v = value(at);
  const int size = std::ilogb(v.mantissa.high) + v.exponent;
  if (at.complement) {
    if (size < -60) return {1.0, true};
    const DoubleDouble rest = scale(v.mantissa, v.exponent);
    const double error = rest.high * at.error;
    if (rest.high > 0.5) {
      const double low = round_up(-rest + 1.0 - error), high = round_up(-rest + 1.0 + error);
      return {high, low == high};
    }
    // The doubles from 1/2 to 1 are the multiples of 2^-53.
    const double low = round_down_to_integer(scale(rest - error, 53));
    const double high = round_down_to_integer(scale(rest + error, 53));
    return {1.0 - low * 0x1p-53, low == high};
  }
  if (size < -1020) return unknown;
  const double error = v.mantissa.high * at.error;
  const double low = round_up(v.mantissa - error), high = round_up(v.mantissa + error);
  return {std::min(std::ldexp(high, v.exponent), 1.0), low == high};
}

Certified smallest_epsilon(double sigma, DoubleDouble zeta, double delta) noexcept {
  const FloatEnvironment guard;
  const DoubleDouble mu = mean_shift(sigma, scaled_root(zeta));
  if (!in_range(mu, 0.0)) return {std::numeric_limits<double>::quiet_NaN(), false};
  double guess = newton_epsilon(mu.high, delta);
  if (guess > mu.high * 0x1p-60 && in_range(mu, guess)) {
    const HockeyStick at = hockey_stick(mu, guess);
    const double relative = compare(at, delta).relative;
    const double step = std::log1p(relative) * at.factor.high / mills_ratio(guess / mu.high + mu.high / 2);
    guess = round_up(two_sum(guess, at.complement ? -step : step));
  }
  if (!(guess > mu.high * 0x1p-60)) {
    const Comparison zero = compare(hockey_stick(mu, 0.0), delta).comparison;
    return {zero == Comparison::at_most ? 0.0 : guess, zero == Comparison::at_most};
  }
  return certify(guess, [&](double eps) {
    return in_range(mu, eps) ? compare(hockey_stick(mu, eps), delta).comparison : Comparison::undecided;
  });
}

Certified smallest_noise_multiplier(double eps, double delta, DoubleDouble zeta) noexcept {
  const FloatEnvironment guard;
  const ScaledRoot root = scaled_root(zeta);
  const DoubleDouble guess = {newton_mean_shift(eps, delta), 0.0};
  if (!in_range(guess, eps)) return {std::numeric_limits<double>::quiet_NaN(), false};
  const HockeyStick at = hockey_stick(guess, eps);
  const double relative = compare(at, delta).relative;
  const double step = std::log1p(relative) * at.factor.high;
  const DoubleDouble sigma = scale(root.root / (guess + (at.complement ? step : -step)), root.exponent);
  return certify(round_up(sigma), [&](double candidate) {
    const DoubleDouble mu = mean_shift(candidate, root);
    return in_range(mu, eps) ? compare(hockey_stick(mu, eps), delta).comparison : Comparison::undecided;
  });
}

}  // namespace dpftrl
