// SPDX-License-Identifier: Apache-2.0
#pragma once

// Release of the noisy sums of a step on a grid, with the remainder of the rounding carried along. With the noise n of
// the step (its residual), the sum g, and r, what earlier roundings left, for each element
//
//   x = r + (n + g),   w = grid floor(x/grid + 1/2),   r = x - w,   g = w/divisor
//
// n + g is in the wider of the two types, then rounded to that of the noise; w is rounded to that of g before it is
// divided. Where the source has its vectors at hand, noise goes from a tile in cache into the sums.

#include <cstddef>
#include <vector>

#include "dpftrl/noise/noise_kernel.hpp"

namespace dpftrl {

// The sums of a step, in pieces of the vector of the noise, and what else their release takes.
template <class T>
struct Release {
  // Elements start .. stop - 1 of the vector, one after the other in memory.
  struct Piece {
    std::size_t start, stop;
    void* sums;  // doubles, or floats
    bool doubles;
  };
  std::vector<Piece> pieces;  // in the order of the vector; no two have an element in common
  T* remainder = nullptr;     // the vector of r
  T grid = 1;                 // a power of two with a finite reciprocal
  double divisor = 1;

  // Releases the sums of elements from .. from + n - 1, which have this noise.
  void operator()(const TileKernels<T>& kernels, std::size_t from, std::size_t n, const T* noise) const noexcept;
};

extern template struct Release<float>;
extern template struct Release<double>;

}  // namespace dpftrl
