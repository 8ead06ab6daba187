// SPDX-License-Identifier: Apache-2.0

#include "dpftrl/noise/release.hpp"

#include <algorithm>

namespace dpftrl {

template <class T>
void Release<T>::operator()(const TileKernels<T>& kernels, std::size_t from, std::size_t n,
                            const T* noise) const noexcept {
  const std::size_t end = from + n;
  auto piece =
      std::upper_bound(pieces.begin(), pieces.end(), from, [](std::size_t at, const Piece& p) { return at < p.stop; });
  for (; piece != pieces.end() && piece->start < end; ++piece) {
    const std::size_t start = std::max(from, piece->start), count = std::min(end, piece->stop) - start;
    const std::size_t skip = start - piece->start;
    const T* const here = noise + (start - from);
    if (piece->doubles) {
      kernels.release_f64(count, here, grid, divisor, remainder + start, static_cast<double*>(piece->sums) + skip);
    } else {
      kernels.release_f32(count, here, grid, static_cast<float>(divisor), remainder + start,
                          static_cast<float*>(piece->sums) + skip);
    }
  }
}

template struct Release<float>;
template struct Release<double>;

}  // namespace dpftrl
