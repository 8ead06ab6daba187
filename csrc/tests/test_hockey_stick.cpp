// SPDX-License-Identifier: Apache-2.0

// The curve against values that mpmath gave with 2000 digits, and the searches against the curve.

#include <cmath>
#include <cstdint>

#include "accounting/mills_ratio.hpp"
#include "check.hpp"
#include "dpftrl/accounting/hockey_stick.hpp"

using namespace dpftrl;

namespace {

// delta or, with `complement`, 1 - delta = value 2^exponent.
struct Reference {
  double mu, eps;
  bool complement;
  DoubleDouble value;
  int exponent;
};

constexpr Reference kReferences[] = {
    {0x1.0p+0, 0x0.0p+0, true, {0x1.3bf143b9aa712p-1, 0x1.0cbf1c37bd636p-55}, 0},
    {0x1.0p+0, 0x1.0p+0, false, {0x1.03f76882040a1p-1, 0x1.a467350b2bf0ap-57}, -2},
    {0x1.0p-1, 0x1.0624dd2f1a9fcp-10, false, {0x1.937ac9cdca2bcp-1, -0x1.439f84cc90fd1p-58}, -2},
    {0x1.0p-1, 0x1.280000p+3, false, {0x1.fc354cacb3bf1p-1, 0x1.5ea73bdd1512fp-55}, -251},
    {0x1.e00000p-2, 0x1.180000p+4, false, {0x1.3f613df02bda3p-1, -0x1.2168522d43e15p-56}, -1005},
    {0x1.0p-30, 0x1.0p-29, false, {0x1.16392d0bf181fp-1, -0x1.ad696c420e5d7p-55}, -36},
    {0x1.0p-30, 0x1.800000p-27, false, {0x1.8445d959a4062p-1, -0x1.2d4f3963acb28p-55}, -142},
    {0x1.0p-60, 0x1.0p-56, false, {0x1.fd61ea4ebca72p-1, -0x1.6dd380c5fdb25p-57}, -254},
    {0x1.0p-150, 0x1.0p-147, false, {0x1.5c31c3efc998cp-1, -0x1.db5e8abcca0a3p-56}, -203},
    {0x1.0p-2, 0x0.0p+0, false, {0x1.97749e2034accp-1, 0x1.92ae359efd06bp-58}, -3},
    {0x1.800000p+1, 0x1.0p-3, true, {0x1.231fd729c0182p-1, 0x1.897256b61eaecp-56}, -2},
    {0x1.800000p+1, 0x1.200000p+2, false, {0x1.8391d8f738592p-1, 0x1.da9b41d833643p-57}, -1},
    {0x1.800000p+1, 0x1.100000p+4, false, {0x1.9e47cb1e64d9bp-1, -0x1.d9be864962536p-56}, -17},
    {0x1.800000p+1, 0x1.900000p+6, false, {0x1.1d056b91286c3p-1, -0x1.97b391be29988p-56}, -740},
    {0x1.0p-3, 0x1.0p+2, false, {0x1.db52055adc078p-1, -0x1.d926159a37e9dp-55}, -750},
    {0x1.400000p+4, 0x1.900000p+5, true, {0x1.cdb8320a1bf9bp-1, 0x1.ebb4481f347b0p-55}, -44},
    {0x1.400000p+4, 0x1.f40000p+9, false, {0x1.869149bf3ea13p-1, 0x1.f45f8c13c487dp-55}, -1162},
    {0x1.2c0000p+7, 0x1.388000p+13, true, {0x1.80160b9d1b08bp-1, 0x1.109cd71fe116dp-55}, -54},
    {0x1.2c0000p+7, 0x1.b58000p+13, false, {0x1.cea88b62623bcp-1, 0x1.e8381e976ba3dp-57}, -248},
    {0x1.0p+10, 0x1.02ca00p+19, false, {0x1.9f5a939180f9fp-1, 0x1.00b3424751200p-55}, -26},
    {0x1.0p+10, 0x1.fad600p+18, true, {0x1.04d3e65a616d5p-1, 0x1.2c4846ab68d71p-55}, -22},
    {0x1.051eb851eb852p-1, 0x1.3333333333333p-2, false, {0x1.9a135f5ff055ap-1, -0x1.78c30b85bb8c6p-55}, -3},
    {0x1.800000p+0, 0x1.800000p+2, false, {0x1.5d9abb1bc8897p-1, 0x1.b92433beb6406p-57}, -12},
    {0x1.47ae147ae147bp-7, 0x1.199999999999ap-1, false, {0x1.b9a35d54ed3cfp-1, -0x1.359ca71363422p-57}, -2201},
    {0x1.24f800p+19, 0x1.4f46733700000p+37, true, {0x1.9e5e96aa627b9p-1, 0x1.39c12cdda3cf2p-55}, -2},
};

void matches(const Reference& wanted) {
  const HockeyStick at = hockey_stick({wanted.mu, 0.0}, wanted.eps);
  CHECK_EQ(at.complement, wanted.complement);
  CHECK(at.error < 0x1p-70);
  const Exponential e = exponential(-(at.a * at.a * 0.5));
  const DoubleDouble inverse_root_two_pi = {0x1.9884533d43651p-2, -0x1.cbc0d30ebfd15p-56};
  const DoubleDouble got = scale(e.mantissa * at.factor * inverse_root_two_pi, e.exponent - wanted.exponent);
  const DoubleDouble difference = got - wanted.value;
  CHECK_NEAR(difference.high / wanted.value.high, 0.0, at.error);
  CHECK_NEAR(difference.high / wanted.value.high, 0.0, 0x1p-84 * std::fmax(1.0, wanted.mu));
}

// Products and sums of halves of a double-double are checked with integers of 64 bits.
void arithmetic() {
  const double a = 9007199254740991.0, b = 4503599627370497.0;  // 2^53 - 1 and 2^52 + 1
  const DoubleDouble product = two_product(a, b);
  const auto exact = static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b);  // modulo 2^64
  CHECK_EQ(static_cast<std::uint64_t>(std::fmod(product.high, 0x1p64)) +
               static_cast<std::uint64_t>(static_cast<std::int64_t>(product.low)),
           exact);
  const DoubleDouble sum = two_sum(0x1p60, 1.0);
  CHECK_EQ(sum.high, 0x1p60);
  CHECK_EQ(sum.low, 1.0);
  const DoubleDouble third = DoubleDouble{1.0, 0.0} / 3.0;
  CHECK_NEAR((third * 3.0 - 1.0).high, 0.0, 0x1p-104);
  const DoubleDouble root = square_root({2.0, 0.0});
  CHECK_NEAR((root * root - 2.0).high, 0.0, 0x1p-102);
  CHECK_NEAR((DoubleDouble{2.0, 0.0} / root - root).high, 0.0, 0x1p-100);
}

// R(x) on both sides of the place where the algorithm changes, by R' = x R - 1 and G_1 = -R'.
void mills() {
  const double below = std::nextafter(kSeriesEnd, 0.0);
  DoubleDouble series[kMaxOrder + 1], miller[kMaxOrder + 1];
  mills_derivatives(DoubleDouble{below, 0.0}, kMaxOrder, series);
  mills_derivatives(DoubleDouble{kSeriesEnd, 0.0}, kMaxOrder, miller);
  const double step = kSeriesEnd - below;
  for (int k = 0; k < 3; ++k) {  // G_k' = -(k + 1) G_(k+1)
    const DoubleDouble expected = miller[k] + miller[k + 1] * ((k + 1) * step);
    CHECK_NEAR((series[k] - expected).high, 0.0, 0x1p-88);
  }
  for (const double x : {2.0, 2.7, 5.0, 38.0, 1e4}) {
    miller[0] = mills_ratio(DoubleDouble{x, 0.0});
    CHECK(miller[0].high < 1.0 / x);
    CHECK(miller[0].high > 1.0 / x - 1.0 / (x * x * x));
    CHECK_NEAR(mills_ratio(x), miller[0].high, 1e-14 * miller[0].high);
  }
}

void searches() {
  for (const double sigma : {1e-3, 0.3, 1.13, 8.83, 100.0, 1e7}) {
    for (const double delta : {1e-300, 1e-12, 1e-6, 0.03, 0.7}) {
      const Certified eps = smallest_epsilon(sigma, {11.0, 0.0}, delta);
      CHECK(eps.certified);
      if (eps.value == 0.0) {
        CHECK(smallest_delta(sigma, {11.0, 0.0}, 0.0).value <= delta);
        continue;
      }
      CHECK(smallest_delta(sigma, {11.0, 0.0}, eps.value).value <= delta);
      CHECK(smallest_delta(sigma, {11.0, 0.0}, std::nextafter(eps.value, 0.0)).value > delta);
      const Certified back = smallest_noise_multiplier(eps.value, delta, {11.0, 0.0});
      CHECK(back.certified);
      CHECK(back.value <= sigma);
      CHECK_NEAR(back.value, sigma, 1e-9 * sigma);
      // A sensitivity that is no double.
      const Certified more = smallest_noise_multiplier(eps.value, delta, {0x1p60, 1.0});
      CHECK(more.certified);
      CHECK(more.value >= smallest_noise_multiplier(eps.value, delta, {0x1p60, 0.0}).value);
    }
  }
  // What the double-doubles cannot tell is left open.
  CHECK(!smallest_epsilon(1e-300, {1.0, 0.0}, 1e-6).certified);
  CHECK(!smallest_noise_multiplier(1e-320, 1e-6, {1.0, 0.0}).certified);
  CHECK(!smallest_delta(1e300, {1.0, 0.0}, 1.0).certified);
  // No double lies there.
  CHECK_EQ(smallest_delta(10.0, {1.0, 0.0}, 1e4).value, 5e-324);
  CHECK_EQ(smallest_delta(1e-3, {1.0, 0.0}, 1.0).value, 1.0);
}

}  // namespace

int main() {
  for (const Reference& reference : kReferences) matches(reference);
  arithmetic();
  mills();
  searches();
  return check::report();
}
