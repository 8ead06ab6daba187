// SPDX-License-Identifier: Apache-2.0

// How a planned sum is made: tile by tile in cache, over a few threads. Every vector of the plan is read or written
// once, and noise goes from the kernel to a tile of scratch to its sum without touching memory outside the cache.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "dpftrl/infra/float_environment.hpp"
#include "dpftrl/infra/thread_pool.hpp"
#include "dpftrl/noise/tree.hpp"
#include "noise/memory_traffic.hpp"

namespace dpftrl {
namespace {

constexpr std::size_t kTileBytes = 8192;
constexpr std::size_t kTilesPerTurn = 32;                     // a worker takes this many at a time
constexpr std::size_t kTilesPerThread = 8;                    // fewer than this a thread are not worth a thread
constexpr std::size_t kNodeTilesPerPoll = 16384;              // some tens of milliseconds
constexpr std::size_t kPieceBytes = 256;                      // asked for at once
constexpr std::size_t kPrefetchBytes = std::size_t{1} << 18;  // vectors from here on are asked for ahead
constexpr std::size_t kStreamBytes = std::size_t{8} << 20;    // vectors from here on bypass the caches

template <class T>
constexpr std::size_t tile_size() noexcept {
  return kTileBytes / sizeof(T);
}

}  // namespace

template <class T>
struct Tree<T>::Work {
  Work(const Poll& caller_poll, std::size_t& count) : poll(caller_poll), node_tiles(count) {}

  const Poll& poll;
  std::size_t& node_tiles;  // since the last poll; worker 0's own
  std::atomic<std::size_t> next_tile{0};
  std::atomic<bool> cancelled{false};
  bool streams = false;          // the vectors are larger than the caches
  std::vector<const T*> inputs;  // what each tile reads; for prefetching only
  std::size_t pieces_per_part = 0;

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

// One tile of a call: elements from .. from + n - 1, on one worker.
template <class T>
struct Tree<T>::Tile {
  std::size_t from, n;
  T* scratch;
  Work& work;
  bool polls;
  std::size_t asked = 0;  // pieces of the next tile's inputs

  // Copies a finished tile to its place in a vector.
  void store(T* vector, const T* tile) const noexcept {
    if (work.streams) {
      copy_streaming(vector + from, tile, n * sizeof(T));
    } else {
      std::memcpy(vector + from, tile, n * sizeof(T));
    }
  }
};

// A node's noise. Between superblocks it asks for a share of what the next tile will read, so that the requests of a
// tile are spread over all of its noise: only some 24 lines can be under way at once.
template <class T>
void Tree<T>::fill(std::uint64_t tree, const Node& node, Tile& tile, T* to) const {
  const NodeStream stream{config_.key, config_.rounds, config_.purpose, static_cast<std::uint32_t>(tree),
                          node_id(node.level, node.index)};
  const auto make = DtypeTraits<T>::kernels(*kernels_).fill;
  const T std = static_cast<T>(config_.std);
  const std::uint64_t first = config_.offset + tile.from;
  const std::vector<const T*>& inputs = tile.work.inputs;
  if (inputs.empty()) {
    make(stream, first, tile.n, std, to);
    return;
  }
  constexpr std::size_t part = DtypeTraits<T>::superblock;
  constexpr std::size_t pieces = kTileBytes / kPieceBytes;  // of one input
  for (std::size_t i = 0; i < tile.n; i += part) {
    for (std::size_t k = 0; k < tile.work.pieces_per_part && tile.asked < pieces * inputs.size(); ++k, ++tile.asked) {
      const T* input = inputs[tile.asked % inputs.size()] + tile.from + tile_size<T>();
      prefetch(input + tile.asked / inputs.size() * (kPieceBytes / sizeof(T)), kPieceBytes);
    }
    make(stream, first + i, std::min(part, tile.n - i), std, to + i);
  }
}

// r(leaf) = z(leaf); r(parent) = z(parent) + (r(left) + r(right)) * 0.5, one tile of it. Returns where it is: a kept
// vector, or `to`. scratch holds one tile for z and one a level below this node.
template <class T>
const T* Tree<T>::average_tile(std::uint64_t tree, const Node& node, Tile& tile, T* to, T* scratch) const {
  if (const T* kept = find_average(tree, node)) return kept + tile.from;
  if (tile.work.checkpoint(tile.polls)) return to;
  if (node.level == 0) {
    fill(tree, node, tile, to);
    return to;
  }
  T* const z = scratch;
  T* const left_room = scratch + static_cast<std::size_t>(node.level) * tile_size<T>();
  const T* right = average_tile(tree, {node.level - 1, 2 * node.index + 1}, tile, to, scratch);
  const T* left = average_tile(tree, {node.level - 1, 2 * node.index}, tile, left_room, scratch);
  fill(tree, node, tile, z);
  DtypeTraits<T>::kernels(*kernels_).add_average(tile.n, z, left, right, to);
  return to;
}

template <class T>
void Tree<T>::run_tile(const Sum& sum, Tile& tile) const {
  const TileKernels<T>& k = DtypeTraits<T>::kernels(*kernels_);
  const std::size_t n = tile.n;
  T* const term_room = tile.scratch;
  T* const below = tile.scratch + 2 * tile_size<T>();
  // Where the sum grows: in place, or in scratch when it is to go past the cache.
  T* const to = tile.work.streams ? tile.scratch + tile_size<T>() : sum.out + tile.from;
  const T* so_far = sum.base != nullptr ? sum.base + tile.from : nullptr;
  const bool averages = !sum.plain && config_.variant == Variant::honaker;
  for (std::size_t i = 0; i < sum.terms.size();) {
    const Term& term = sum.terms[i];
    if (tile.work.checkpoint(tile.polls)) return;
    if (!averages) {
      fill(sum.tree, term.node, tile, so_far == nullptr ? to : term_room);
      if (so_far != nullptr) k.add(n, so_far, term_room, to);
      ++i;
    } else {
      // Together: averages at hand and one that is made here, up to a sum that is kept.
      const T* r[kMaxLevel + 1];
      T w[kMaxLevel + 1];
      const Term* made = nullptr;
      const T* made_average = nullptr;
      std::size_t count = 0;
      do {
        const Term& next = sum.terms[i + count];
        if (next.average != nullptr) {
          r[count] = next.average + tile.from;
        } else {
          made = &next;
          r[count] = average_tile(sum.tree, next.node, tile, term_room, below);
          made_average = r[count];
        }
        w[count] = honaker_weight<T>(next.node.level);
        ++count;
      } while (i + count < sum.terms.size() && sum.terms[i + count - 1].keep_sum == nullptr &&
               (sum.terms[i + count].average != nullptr || made == nullptr));
      if (tile.work.checkpoint(false)) return;
      k.weighted_sum(n, so_far, count, r, w, to);
      if (made != nullptr && made->keep_average != nullptr) tile.store(made->keep_average, made_average);
      i += count;
    }
    so_far = to;
    const Term& last = sum.terms[i - 1];
    if (last.keep_sum != nullptr) tile.store(last.keep_sum, to);
  }
  const T* result = so_far;
  if (sum.difference) {
    k.subtract(n, so_far, sum.last + tile.from, term_room);
    result = term_room;
  }
  if (sum.last != nullptr) tile.store(sum.last, so_far);
  if (result != sum.out + tile.from) tile.store(sum.out, result);
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
  // One tile for a term, one for the sum, one for z, one a level.
  const std::size_t room = static_cast<std::size_t>(levels + 3) * tile_size<T>();
  if (scratch_room_ < room) scratch_.clear(), scratch_room_ = room;
  while (scratch_.size() < workers) scratch_.emplace_back(scratch_room_);

  // Turns of one worker follow each other in memory; enough of them that all workers end together.
  const std::size_t turn = std::max<std::size_t>(1, std::min(kTilesPerTurn, tiles / (workers * 8)));

  Work work(poll, node_tiles_since_poll_);
  work.streams = size * sizeof(T) >= kStreamBytes;
  if (size * sizeof(T) >= kPrefetchBytes) {
    if (sum.base != nullptr) work.inputs.push_back(sum.base);
    for (const Average& a : averages_) {
      if (a.value) work.inputs.push_back(a.value.data());
    }
    if (sum.difference) work.inputs.push_back(sum.last);
    // Nodes that a tile makes, were all left children at hand.
    std::size_t nodes = 0;
    for (const Term& term : sum.terms) {
      if (term.average == nullptr) nodes += levels > 0 ? static_cast<std::size_t>(term.node.level) + 1 : 1;
    }
    const std::size_t parts = std::max<std::size_t>(1, nodes) * tile_size<T>() / DtypeTraits<T>::superblock;
    work.pieces_per_part = (work.inputs.size() * (kTileBytes / kPieceBytes) + parts - 1) / parts;
  }
  const auto body = [&](std::size_t worker) {
    const FloatEnvironment guard;
    for (;;) {
      const std::size_t first = work.next_tile.fetch_add(turn, std::memory_order_relaxed);
      if (first >= tiles) break;
      for (std::size_t i = first; i < std::min(first + turn, tiles); ++i) {
        const std::size_t from = i == 0 ? 0 : i * tile_size<T>() - lead;
        const std::size_t end = std::min(size, (i + 1) * tile_size<T>() - lead);
        Tile tile{from, end - from, scratch_[worker].data(), work, worker == 0};
        run_tile(sum, tile);
        if (work.cancelled.load(std::memory_order_relaxed)) return;
      }
    }
    if (work.streams) finish_streaming();
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
