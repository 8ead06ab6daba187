// SPDX-License-Identifier: Apache-2.0
#pragma once

// The error of a run under a workload: the noise in the iterate U of SGD, as a linear recursion in the noise x_t of the
// gradients,
//
//   V_t = momentum V_(t-1) + (1 - momentum) x_t - decay U_(t-1),   U_t = U_(t-1) + rate_t V_t,   U_0 = V_0 = 0,
//
// from exact covariances of a small state. One normal has variance 1 (clip norm 1, noise multiplier 1). Rates are
// relative to the largest one; with all rates 1 and no decay U is the running sum, smoothed by the momentum.

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "dpftrl/accounting/equal_trees.hpp"

namespace dpftrl {

struct Workload {
  double momentum = 0.0;
  double decay = 0.0;             // weight decay times the largest rate
  const double* rates = nullptr;  // of each step; null: all 1
  double rate(std::size_t t) const noexcept { return rates == nullptr ? 1.0 : rates[t]; }
};

// (steps, count): equal blocks in a row; the noise of a block is independent of that of the others.
using Blocks = std::vector<std::pair<std::size_t, std::size_t>>;

// variance[t] = Var(U_(t+1)) where x = D z in each block, D lower-triangular Toeplitz with first column `inverse`, of
// which `size` coefficients count and the others are 0. All rates 1: O(n) work; else O(n size).
void workload_error(const double* inverse, std::size_t size, const Workload& workload, const Blocks& blocks,
                    double* variance);

// The same for the mechanism of k buffers, by their covariance: O(n k^2) work.
void workload_error_buffers(const double* decay, const double* scale, std::size_t k, const Workload& workload,
                            const Blocks& blocks, double* variance);

// The same for trees, where x_t is the increment of the noise in the running sum: O(n log n) work.
void workload_error_trees(const EqualTrees* trees, std::size_t size, bool honaker, const Workload& workload,
                          double* variance) noexcept;

// The objective of an optimiser: log of zeta = sum of y_t^2, y_t = sum over u < uses of c_(t - u separation), and log
// of the workload's error, the sum over the starts s of weight_s times the sum of U_t^2 over the steps t = s .. n - 1
// (or of the last step alone), where U is the response to the column d that starts at s. With all rates 1 one pass
// weighs every start: `starts` is not read. Gradients of log zeta by c and of the log error by d, each of n numbers.
struct Objective {
  double log_zeta;
  double log_error;
};

Objective workload_objective(const double* c, const double* d, std::size_t n, std::size_t uses, std::size_t separation,
                             const Workload& workload, bool last,
                             const std::vector<std::pair<std::size_t, double>>& starts, double* by_c, double* by_d);

// out[j] = sum over t of x[t] y[t - j], j < size.
void lagged_products(const double* x, const double* y, std::size_t n, std::size_t size, double* out) noexcept;

// Gradients by decays and scales of sum over t of by_c[t] c_t - sum over t of mu[t] (dc * d)_t, for C of buffers.
void buffers_gradient(const double* decay, const double* scale, std::size_t k, const double* by_c, const double* mu,
                      const double* d, std::size_t n, double* by_decay, double* by_scale) noexcept;

}  // namespace dpftrl
