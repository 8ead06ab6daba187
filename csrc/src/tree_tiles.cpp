// SPDX-License-Identifier: Apache-2.0

// How a planned sum is made: tile by tile in cache, over a few threads. Every vector of the plan is read or written
// once, and noise goes from the kernel to a tile of scratch to its sum without touching memory outside the cache.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "dpftrl/float_environment.hpp"
#include "dpftrl/thread_pool.hpp"
#include "dpftrl/tree.hpp"

namespace dpftrl {
namespace {

constexpr std::size_t kTileBytes = 8192;
constexpr std::size_t kTilesPerTurn = 8;          // a worker takes this many at a time
constexpr std::size_t kTilesPerThread = 8;        // fewer than this a thread are not worth a thread
constexpr std::size_t kNodeTilesPerPoll = 16384;  // some tens of milliseconds

template <class T>
constexpr std::size_t tile_size() noexcept {
  return kTileBytes / sizeof(T);
}

}  // namespace

template <class T>
struct Tree<T>::Work {
  const Poll& poll;
  std::size_t& node_tiles;  // since the last poll; worker 0's own
  std::atomic<std::size_t> next_tile{0};
  std::atomic<bool> cancelled{false};

  void call_poll() {
    try {
      poll();
    } catch (...) {
      cancelled.store(true, std::memory_order_relaxed);
      throw;
    }
  }

  // True when the call is to end.
  bool checkpoint(bool polls) {
    if (polls && poll && ++node_tiles >= kNodeTilesPerPoll) {
      node_tiles = 0;
      call_poll();
    }
    return cancelled.load(std::memory_order_relaxed);
  }
};

template <class T>
void Tree<T>::fill(std::uint64_t tree, const Node& node, std::size_t from, std::size_t n, T* to) const {
  const NodeStream stream{config_.key, config_.rounds, config_.purpose, static_cast<std::uint32_t>(tree),
                          node_id(node.level, node.index)};
  DtypeTraits<T>::kernels(*kernels_).fill(stream, config_.offset + from, n, static_cast<T>(config_.std), to);
}

// r(leaf) = z(leaf); r(parent) = z(parent) + (r(left) + r(right)) * 0.5, one tile of it. Returns where it is: a kept
// vector, or `to`. scratch holds one tile for z and one a level below this node.
template <class T>
const T* Tree<T>::average_tile(std::uint64_t tree, const Node& node, std::size_t from, std::size_t n, T* to, T* scratch,
                               Work& work, bool polls) const {
  if (const T* kept = find_average(tree, node)) return kept + from;
  if (work.checkpoint(polls)) return to;
  if (node.level == 0) {
    fill(tree, node, from, n, to);
    return to;
  }
  T* const z = scratch;
  T* const left_room = scratch + static_cast<std::size_t>(node.level) * tile_size<T>();
  const T* right = average_tile(tree, {node.level - 1, 2 * node.index + 1}, from, n, to, scratch, work, polls);
  const T* left = average_tile(tree, {node.level - 1, 2 * node.index}, from, n, left_room, scratch, work, polls);
  fill(tree, node, from, n, z);
  DtypeTraits<T>::kernels(*kernels_).add_average(n, z, left, right, to);
  return to;
}

template <class T>
void Tree<T>::run_tile(const Sum& sum, std::size_t from, std::size_t n, T* scratch, Work& work, bool polls) const {
  const TileKernels<T>& k = DtypeTraits<T>::kernels(*kernels_);
  const std::size_t bytes = n * sizeof(T);
  T* const term_room = scratch;
  T* const below = scratch + tile_size<T>();
  T* const out = sum.out + from;
  const T* so_far = sum.base != nullptr ? sum.base + from : nullptr;
  for (const Term& term : sum.terms) {
    if (sum.plain || config_.variant == Variant::vanilla) {
      if (work.checkpoint(polls)) return;
      T* const to = so_far == nullptr ? out : term_room;
      fill(sum.tree, term.node, from, n, to);
      if (so_far != nullptr) k.add(n, so_far, to, out);
    } else {
      const T* r = term.average != nullptr ? term.average + from
                                           : average_tile(sum.tree, term.node, from, n, term_room, below, work, polls);
      if (work.checkpoint(false)) return;
      const T w = honaker_weight<T>(term.node.level);
      if (so_far == nullptr) {
        k.scale(n, r, w, out);
      } else {
        k.add_scaled(n, so_far, r, w, out);
      }
      if (term.keep_average != nullptr) std::memcpy(term.keep_average + from, r, bytes);
    }
    so_far = out;
    if (term.keep_sum != nullptr) std::memcpy(term.keep_sum + from, out, bytes);
  }
  if (sum.terms.empty() && so_far != out) std::memcpy(out, so_far, bytes);
  if (sum.last != nullptr) {
    T* const last = sum.last + from;
    if (sum.difference) {
      k.subtract(n, out, last, term_room);
      std::memcpy(last, out, bytes);
      std::memcpy(out, term_room, bytes);
    } else {
      std::memcpy(last, out, bytes);
    }
  }
}

template <class T>
void Tree<T>::run(const Sum& sum, const Poll& poll) {
  // Tiles end where superblocks end, in global coordinates.
  const std::size_t size = config_.size;
  const std::size_t lead = static_cast<std::size_t>(config_.offset % tile_size<T>());
  const std::size_t tiles = (lead + size + tile_size<T>() - 1) / tile_size<T>();
  const std::size_t workers = std::max<std::size_t>(1, std::min(config_.threads, tiles / kTilesPerThread));

  int levels = 0;
  for (const Term& term : sum.terms) {
    if (term.average == nullptr) levels = std::max(levels, term.node.level);
  }
  if (sum.plain || config_.variant == Variant::vanilla) levels = 0;
  // One tile for a term, one for z, one a level.
  const std::size_t room = static_cast<std::size_t>(levels + 2) * tile_size<T>();
  if (scratch_room_ < room) scratch_.clear(), scratch_room_ = room;
  while (scratch_.size() < workers) scratch_.emplace_back(scratch_room_);

  Work work{poll, node_tiles_since_poll_};
  const auto body = [&](std::size_t worker) {
    const FloatEnvironment guard;
    for (;;) {
      const std::size_t first = work.next_tile.fetch_add(kTilesPerTurn, std::memory_order_relaxed);
      if (first >= tiles) return;
      for (std::size_t tile = first; tile < std::min(first + kTilesPerTurn, tiles); ++tile) {
        const std::size_t from = tile == 0 ? 0 : tile * tile_size<T>() - lead;
        const std::size_t end = std::min(size, (tile + 1) * tile_size<T>() - lead);
        run_tile(sum, from, end - from, scratch_[worker].data(), work, worker == 0);
        if (work.cancelled.load(std::memory_order_relaxed)) return;
      }
    }
  };
  if (workers == 1) {
    body(0);
  } else {
    run_workers(workers, body, [&] {
      if (poll) work.call_poll();
    });
  }
}

template class Tree<float>;
template class Tree<double>;

}  // namespace dpftrl
