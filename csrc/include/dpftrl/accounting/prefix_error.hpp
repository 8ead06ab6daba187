// SPDX-License-Identifier: Apache-2.0
#pragma once

// The error of a run of trees: the variance of the noise in the running sum at every step, and in its momentum-smoothed
// form. Knows nothing of the noise itself: one node has variance 1 (clip norm 1, noise multiplier 1).

#include <cstddef>

#include "dpftrl/accounting/equal_trees.hpp"

namespace dpftrl {

// variance[i] = Var(n_t) and smoothed[i] = Var((1 - momentum) v_t) at t = i + 1 over all steps of all trees, where
// n_t = carry + b_t and v_t = momentum v_(t-1) + n_t, v_0 = 0; 0 <= momentum < 1. O(log t) work a step.
void prefix_error(const EqualTrees* trees, std::size_t size, bool honaker, double momentum, double* variance,
                  double* smoothed) noexcept;

}  // namespace dpftrl
