// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <vector>

#include "dpftrl/accounting/workload.hpp"

namespace dpftrl {
namespace {

// Adds weight times the error of one start to the sum, and its gradient by d. weights[i], where given, weighs step i.
class Response {
 public:
  Response(const double* d, std::size_t n, const Workload& workload) : d_(d), workload_(workload), u_(n) {}

  template <class Weight>
  double add(std::size_t start, std::size_t n, const Weight& weight, double* by_d) {
    const double g = workload_.momentum, w = workload_.decay;
    double u = 0.0, v = 0.0, sum = 0.0;
    for (std::size_t i = 0; i < n; ++i) {
      v = g * v + (1.0 - g) * d_[i] - w * u;
      u += workload_.rate(start + i) * v;
      u_[i] = u;
      sum += weight(i) * u * u;
    }
    double by_u = 0.0, by_v = 0.0;  // adjoints of U_i and V_i
    for (std::size_t i = n; i-- > 0;) {
      by_u += 2.0 * weight(i) * u_[i] - w * by_v;
      by_v = g * by_v + workload_.rate(start + i) * by_u;
      by_d[i] += (1.0 - g) * by_v;
    }
    return sum;
  }

 private:
  const double* d_;
  const Workload& workload_;
  std::vector<double> u_;
};

}  // namespace

Objective workload_objective(const double* c, const double* d, std::size_t n, std::size_t uses, std::size_t separation,
                             const Workload& workload, bool last,
                             const std::vector<std::pair<std::size_t, double>>& starts, double* by_c, double* by_d) {
  // y_t = y_(t-b) + c_t - c_(t-k b), then the adjoint of this sum.
  std::copy_n(c, n, by_c);
  for (std::size_t t = separation; t < n; ++t) by_c[t] += by_c[t - separation];
  if (uses <= (n - 1) / separation) {
    const std::size_t reach = uses * separation;
    for (std::size_t t = n; t-- > reach;) by_c[t] -= by_c[t - reach];
  }
  double zeta = 0.0;
  for (std::size_t t = 0; t < n; ++t) zeta += by_c[t] * by_c[t];
  for (std::size_t t = 0; t < n; ++t) by_c[t] *= 2.0 / zeta;
  for (std::size_t t = n; t-- > separation;) by_c[t - separation] += by_c[t];
  if (uses <= (n - 1) / separation) {
    const std::size_t reach = uses * separation;
    for (std::size_t t = 0; t + reach < n; ++t) by_c[t] -= by_c[t + reach];
  }

  std::fill_n(by_d, n, 0.0);
  Response response(d, n, workload);
  double error = 0.0;
  if (workload.rates == nullptr) {
    const double size = static_cast<double>(n);
    error = last ? response.add(
                       0, n, [](std::size_t) { return 1.0; }, by_d)
                 : response.add(
                       0, n, [=](std::size_t i) { return (size - static_cast<double>(i)) / size; }, by_d);
  } else {
    for (const auto& [start, weight] : starts) {
      const std::size_t steps = n - start;
      const double by = weight / static_cast<double>(last ? 1 : n);
      error += last ? response.add(
                          start, steps, [=](std::size_t i) { return i + 1 == steps ? by : 0.0; }, by_d)
                    : response.add(
                          start, steps, [=](std::size_t) { return by; }, by_d);
    }
  }
  for (std::size_t t = 0; t < n; ++t) by_d[t] /= error;
  return {std::log(zeta), std::log(error)};
}

void lagged_products(const double* x, const double* y, std::size_t n, std::size_t size, double* out) noexcept {
  for (std::size_t j = 0; j < size; ++j) {
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    std::size_t t = j;
    for (; t + 4 <= n; t += 4) {
      for (std::size_t i = 0; i < 4; ++i) sums[i] += x[t + i] * y[t + i - j];
    }
    for (; t < n; ++t) sums[0] += x[t] * y[t - j];
    out[j] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
}

void buffers_gradient(const double* decay, const double* scale, std::size_t k, const double* by_c, const double* mu,
                      const double* d, std::size_t n, double* by_decay, double* by_scale) noexcept {
  for (std::size_t i = 0; i < k; ++i) {
    // (dc/dscale * d)_t = s_t, s_t = decay s_(t-1) + d_(t-1), and (dc/ddecay * d)_t = scale q_t, q_t = ds_t/ddecay;
    // dc_t/dscale = power_t = decay^(t-1), dc_t/ddecay = scale slope_t.
    double s = 0.0, q = 0.0, power = 0.0, slope = 0.0, sum_s = 0.0, sum_q = 0.0;
    for (std::size_t t = 1; t < n; ++t) {
      q = decay[i] * q + s;
      s = decay[i] * s + d[t - 1];
      slope = decay[i] * slope + power;
      power = t == 1 ? 1.0 : decay[i] * power;
      sum_s += by_c[t] * power - mu[t] * s;
      sum_q += by_c[t] * slope - mu[t] * q;
    }
    by_scale[i] = sum_s;
    by_decay[i] = scale[i] * sum_q;
  }
}

}  // namespace dpftrl
