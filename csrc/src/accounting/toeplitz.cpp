// SPDX-License-Identifier: Apache-2.0

#include "dpftrl/accounting/toeplitz.hpp"

#include <algorithm>

namespace dpftrl {

void solve_banded(const double* band, std::size_t p, const double* x, std::size_t n, double* out) noexcept {
  for (std::size_t t = 0; t < n; ++t) {
    const std::size_t most = std::min(p - 1, t);
    double value = x[t];
    for (std::size_t j = 1; j <= most; ++j) value -= band[j] * out[t - j];
    out[t] = band[0] == 1.0 ? value : value / band[0];
  }
}

void solve_buffers(const double* decay, const double* scale, std::size_t k, const double* x, std::size_t n, double* out,
                   double* state) noexcept {
  std::fill(state, state + k, 0.0);
  for (std::size_t t = 0; t < n; ++t) {
    double value = x[t];
    for (std::size_t i = 0; i < k; ++i) value -= scale[i] * state[i];
    for (std::size_t i = 0; i < k; ++i) state[i] = decay[i] * state[i] + value;
    out[t] = value;
  }
}

void buffers_column(const double* decay, const double* scale, std::size_t k, std::size_t n, double* column,
                    double* power) noexcept {
  std::copy(scale, scale + k, power);
  if (n > 0) column[0] = 1.0;
  for (std::size_t t = 1; t < n; ++t) {
    double value = 0.0;
    for (std::size_t i = 0; i < k; ++i) {
      value += power[i];
      power[i] *= decay[i];
    }
    column[t] = value;
  }
}

}  // namespace dpftrl
