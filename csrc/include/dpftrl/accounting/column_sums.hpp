// SPDX-License-Identifier: Apache-2.0
#pragma once

// Squared norms of sums of columns of lower-triangular Toeplitz matrices: the shift of the noise by the uses of an id
// in one block, for many ids at once. Equal stretches are computed once.

#include <cstddef>
#include <cstdint>

#include "dpftrl/infra/poll.hpp"

namespace dpftrl {

// Stretch i: uses at uses[starts[i]] <= .. <= uses[starts[i + 1] - 1], steps from 0, in a block of lengths[i] steps.
// Each has at least one use, all of them below its length.
struct Stretches {
  std::size_t count;
  const std::int64_t* lengths;
  const std::int64_t* starts;
  const std::int64_t* uses;
};

// out[i] = sum over t of (sum over the uses u of column[t - u])^2, for a column >= 0 of `size` elements and zeros after
// them: each term has at most uses + length + 2 roundings. False, and nothing, if it would take more than `work_limit`
// additions.
bool column_sums(const double* column, std::size_t size, const Stretches& stretches, std::int64_t work_limit,
                 double* out, const Poll& poll);

// out[i] = sum over pairs of uses of (|inner product of their columns| + slack), for a column of any signs; each inner
// product has at most length roundings, the sum at most uses^2 + 2.
bool column_products(const double* column, std::size_t size, double slack, const Stretches& stretches,
                     std::int64_t work_limit, double* out, const Poll& poll);

// As column_sums for buffers, in k^2 operations a use: each term has at most 6 length + 8 uses + 4 k^2 + 64 roundings.
// Takes the memory of (k + k (k + 1) / 2) longest blocks.
void buffer_sums(const double* decay, const double* scale, std::size_t k, const Stretches& stretches, double* out,
                 const Poll& poll);

}  // namespace dpftrl
