// SPDX-License-Identifier: Apache-2.0

// How a stretch of steps is made, one tile at a time: all of its steps in cache before the next tile.

#include <algorithm>
#include <cstring>

#include "dpftrl/noise/toeplitz.hpp"
#include "noise/tile_runner.hpp"

namespace dpftrl {
namespace {

constexpr std::size_t kTerms = 8;  // summed in one pass

// Tiles of scratch: x, the total, z, those made ahead, terms that are made again; the ring or buffers come after them.
constexpr std::size_t kXTile = 0, kTotalTile = 1, kFreshTile = 2, kAheadTile = 3, kTermTiles = 4;
constexpr std::size_t kStateTiles = kTermTiles + kTerms;

constexpr std::size_t kAhead = 64;  // steps, at most

template <class T>
T* scratch_tile(const TileSpan<T>& tile, std::size_t i) noexcept {
  return tile.scratch + i * tile_size<T>();
}

}  // namespace

// Terms of one x, added in their order, newest first.
template <class T>
struct Toeplitz<T>::Terms {
  Terms(const NoiseKernels& kernels, std::size_t n, T* x) : kernels(DtypeTraits<T>::kernels(kernels)), n(n), x(x) {}

  void add(const T* value, T weight) {
    if (count == kTerms) flush();
    values[count] = value;
    weights[count++] = weight;
  }
  void flush() {
    if (count == 0) return;
    kernels.weighted_sum(n, begun ? x : nullptr, count, values, weights, x);
    begun = true;
    count = 0;
  }

  const TileKernels<T>& kernels;
  std::size_t n;
  T* x;
  bool begun = false;
  std::size_t count = 0;
  const T* values[kTerms];
  T weights[kTerms];
};

template <class T>
void Toeplitz<T>::fill(std::uint64_t block, std::uint64_t step, Tile& tile, T* to) const {
  if (step - tile.ahead_from < tile.ahead) {
    const T* made = scratch_tile(tile, kAheadTile) + (step - tile.ahead_from) * tile.n;
    std::memcpy(to, made, tile.n * sizeof(T));
    return;
  }
  tile.fill(config_, *kernels_, block, Node{0, step - 1}, to);
}

// Makes z of this step and those that follow, of a few coordinates.
template <class T>
void Toeplitz<T>::fill_ahead(const Stretch& s, std::uint64_t step, Tile& tile) const {
  static_assert(kAhead * DtypeTraits<T>::packed <= tile_size<T>());
  std::uint64_t nodes[kAhead];
  tile.ahead_from = step;
  tile.ahead = static_cast<std::size_t>(std::min<std::uint64_t>(kAhead, s.last - step + 1));
  for (std::size_t i = 0; i < tile.ahead; ++i) nodes[i] = node_id(0, step - 1 + i);
  tile.fill_nodes(config_, *kernels_, s.block, nodes, tile.ahead, scratch_tile(tile, kAheadTile));
}

// The tile of a buffer, or of the ring's entry i.
template <class T>
T* Toeplitz<T>::slot(const Stretch& s, std::size_t i, Tile& tile) noexcept {
  return s.kept ? slots_[i].data() + tile.from : scratch_tile(tile, kStateTiles + i);
}

template <class T>
void Toeplitz<T>::make_taps(const Stretch& s, std::uint64_t step, Tile& tile, T* x) {
  T* const z = scratch_tile(tile, kFreshTile);
  Terms terms(*kernels_, tile.n, x);
  fill(s.block, step, tile, z);
  terms.add(z, first_[0]);
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(first_.size() - 1, step - 1));
  for (std::size_t j = 1; j <= most; ++j) {
    const std::uint64_t at = step - j;
    if (j <= s.ring && at >= s.kept_from) {
      terms.add(slot(s, static_cast<std::size_t>(at % s.ring), tile), first_[j]);
      continue;
    }
    if (terms.count == kTerms) terms.flush();
    T* const made = scratch_tile(tile, kTermTiles + terms.count);
    if (tile.checkpoint()) return;
    fill(s.block, at, tile, made);
    terms.add(made, first_[j]);
  }
  terms.flush();
  if (s.ring > 0) std::memcpy(slot(s, static_cast<std::size_t>(step % s.ring), tile), z, tile.n * sizeof(T));
}

template <class T>
void Toeplitz<T>::make_buffers(const Stretch& s, std::uint64_t step, Tile& tile, T* x) {
  const TileKernels<T>& kernels = DtypeTraits<T>::kernels(*kernels_);
  if (step == 1) {
    fill(s.block, step, tile, x);
    for (std::size_t i = 0; i < first_.size(); ++i) std::memcpy(slot(s, i, tile), x, tile.n * sizeof(T));
    return;
  }
  T* const z = scratch_tile(tile, kFreshTile);
  Terms terms(*kernels_, tile.n, x);
  fill(s.block, step, tile, z);
  terms.add(z, T(1));
  for (std::size_t i = 0; i < first_.size(); ++i) terms.add(slot(s, i, tile), second_[i]);
  terms.flush();
  for (std::size_t i = 0; i < first_.size(); ++i) {
    T* const buffer = slot(s, i, tile);
    const T* const old = buffer;
    kernels.weighted_sum(tile.n, x, 1, &old, &first_[i], buffer);
  }
}

template <class T>
void Toeplitz<T>::make_bands(const Stretch& s, std::uint64_t step, Tile& tile, T* x) {
  T* const z = scratch_tile(tile, kFreshTile);
  Terms terms(*kernels_, tile.n, x);
  fill(s.block, step, tile, z);
  terms.add(z, T(1));
  const auto most = static_cast<std::size_t>(std::min<std::uint64_t>(s.ring, step - 1));
  for (std::size_t j = 1; j <= most; ++j) {
    terms.add(slot(s, static_cast<std::size_t>((step - j) % s.ring), tile), first_[j]);
  }
  terms.flush();
  if (first_[0] != T(1)) {
    for (std::size_t i = 0; i < tile.n; ++i) x[i] = x[i] / first_[0];
  }
  if (s.ring > 0) std::memcpy(slot(s, static_cast<std::size_t>(step % s.ring), tile), x, tile.n * sizeof(T));
}

template <class T>
void Toeplitz<T>::run_tile(const Stretch& s, Tile& tile) {
  const TileKernels<T>& kernels = DtypeTraits<T>::kernels(*kernels_);
  T* const x = scratch_tile(tile, kXTile);
  T* const total = scratch_tile(tile, kTotalTile);
  T* const sum = s.sums.sum != nullptr ? s.sums.sum + tile.from : nullptr;
  const T* so_far = s.adds && s.sums.total != nullptr ? s.sums.total + tile.from : nullptr;
  bool begins = s.begins;
  for (std::uint64_t step = s.start + 1; step <= s.last; ++step) {
    if (tile.checkpoint()) return;
    if (tile.packs(tile.n) && step < s.last && step - tile.ahead_from >= tile.ahead) fill_ahead(s, step, tile);
    if (config_.kind == ToeplitzKind::taps) {
      make_taps(s, step, tile, x);
    } else if (config_.kind == ToeplitzKind::buffers) {
      make_buffers(s, step, tile, x);
    } else {
      make_bands(s, step, tile, x);
    }
    if (tile.work.checkpoint(false)) return;
    if (step < s.first) continue;
    if (sum != nullptr) {
      if (begins) {
        std::memcpy(sum, x, tile.n * sizeof(T));
      } else {
        kernels.add(tile.n, sum, x, sum);
      }
      begins = false;
      if (s.ends && s.sums.out != nullptr && step >= s.sums.rows_from) {
        tile.store(s.sums.out + (step - s.sums.rows_from) * config_.size, sum);
      }
    }
    if (s.sums.release != nullptr) {
      (*s.sums.release)(kernels, tile.from, tile.n, x);
    } else if (s.sums.total != nullptr) {
      if (step == s.last) {
        if (so_far != nullptr) kernels.add(tile.n, so_far, x, x);
        tile.store(s.sums.total, x);
      } else if (so_far != nullptr) {
        kernels.add(tile.n, so_far, x, total);
        so_far = total;
      } else {
        std::memcpy(total, x, tile.n * sizeof(T));
        so_far = total;
      }
    }
  }
}

template <class T>
void Toeplitz<T>::run(const Stretch& s, const Poll& poll) {
  const bool buffers = config_.kind == ToeplitzKind::buffers;
  TileWork<T> work(poll, node_tiles_since_poll_);
  std::size_t nodes = 1;
  if (s.last == s.start + 1) {
    // Ask for the next tile's inputs during the noise of this one.
    if (s.sums.sum != nullptr && !s.begins) work.inputs.push_back(s.sums.sum);
    for (std::size_t i = 0; s.kept && i < s.ring; ++i) {
      if (slots_[i]) work.inputs.push_back(slots_[i].data());
    }
    if (config_.kind == ToeplitzKind::taps) {
      const auto terms = static_cast<std::size_t>(std::min<std::uint64_t>(first_.size() - 1, s.start));
      nodes += terms - std::min(terms, work.inputs.size());
    }
    if (s.sums.release != nullptr) work.inputs.push_back(s.sums.release->remainder);
  }
  work.plan_prefetch(config_.size, nodes);
  const std::size_t state = s.kept ? 0 : buffers ? first_.size() : s.ring;
  run_tiles<T>(config_, work, scratch_, kStateTiles + state, [&](Tile& tile) { run_tile(s, tile); });
}

template class Toeplitz<float>;
template class Toeplitz<double>;

}  // namespace dpftrl
