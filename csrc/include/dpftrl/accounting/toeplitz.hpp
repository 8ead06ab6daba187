// SPDX-License-Identifier: Apache-2.0
#pragma once

// Lower-triangular Toeplitz matrices applied to a vector, by recursion: the coefficients of strategies and of their
// inverses, and the response of a workload. In double, one written order of sums, nothing fused.

#include <cstddef>

namespace dpftrl {

// Solves band * out = x: out[t] = (x[t] - band[1] out[t-1] - ... - band[p-1] out[t-p+1]) / band[0], newest first.
// `out` may be `x`.
void solve_banded(const double* band, std::size_t p, const double* x, std::size_t n, double* out) noexcept;

// Solves C * out = x for C of buffers (decay, scale): out[t] = x[t] - sum of scale_i s_i, s_i = decay_i s_i + out[t].
// `out` may be `x`; `state` holds k doubles.
void solve_buffers(const double* decay, const double* scale, std::size_t k, const double* x, std::size_t n, double* out,
                   double* state) noexcept;

// The first column of C: column[0] = 1, column[j] = sum of scale_i decay_i^(j-1), by recursion. `power` holds k
// doubles.
void buffers_column(const double* decay, const double* scale, std::size_t k, std::size_t n, double* column,
                    double* power) noexcept;

}  // namespace dpftrl
