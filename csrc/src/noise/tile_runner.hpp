// SPDX-License-Identifier: Apache-2.0
#pragma once

// How the noise of one call is made: tile by tile in cache, over a few threads. Noise goes from the kernel to a tile of
// scratch to its place without touching memory outside the cache.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "dpftrl/infra/float_environment.hpp"
#include "dpftrl/infra/poll.hpp"
#include "dpftrl/infra/thread_pool.hpp"
#include "dpftrl/noise/node.hpp"
#include "dpftrl/noise/release.hpp"
#include "dpftrl/noise/source.hpp"
#include "dpftrl/noise/vector.hpp"
#include "noise/memory_traffic.hpp"

namespace dpftrl {

inline constexpr std::size_t kTileBytes = 8192;

template <class T>
constexpr std::size_t tile_size() noexcept {
  return kTileBytes / sizeof(T);
}

// What the workers of one call share.
template <class T>
struct TileWork {
  TileWork(const Poll& caller_poll, std::size_t& count) : poll(caller_poll), node_tiles(count) {}

  const Poll& poll;
  std::size_t& node_tiles;  // since the last poll; worker 0's own
  std::atomic<std::size_t> next_tile{0};
  std::atomic<bool> cancelled{false};
  bool streams = false;          // the vectors are larger than the caches
  std::vector<const T*> inputs;  // what each tile reads; for prefetching only
  std::size_t pieces_per_part = 0;

  // Plans what is asked for ahead, of a call that fills `nodes` tiles of noise for each tile of its result.
  void plan_prefetch(std::size_t size, std::size_t nodes) {
    constexpr std::size_t from_bytes = std::size_t{1} << 18;  // smaller vectors are in cache already
    if (size * sizeof(T) < from_bytes) inputs.clear();
    const std::size_t parts = std::max<std::size_t>(1, nodes) * tile_size<T>() / DtypeTraits<T>::superblock;
    pieces_per_part = (inputs.size() * (kTileBytes / kPieceBytes) + parts - 1) / parts;
  }

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
    constexpr std::size_t tiles_per_poll = 16384;  // some tens of milliseconds
    if (polls && poll && ++node_tiles >= tiles_per_poll) {
      node_tiles = 0;
      call_poll();
    }
    return cancelled.load(std::memory_order_relaxed);
  }

  static constexpr std::size_t kPieceBytes = 256;  // asked for at once
};

// One tile of a call: elements from .. from + n - 1, on one worker.
template <class T>
struct TileSpan {
  std::size_t from, n;
  T* scratch;
  TileWork<T>& work;
  bool polls;
  std::size_t asked = 0;  // pieces of the next tile's inputs
  // Steps whose noise was made together ahead of them, where a call makes many steps of few coordinates.
  std::uint64_t ahead_from = 0;
  std::size_t ahead = 0;

  bool checkpoint() { return work.checkpoint(polls); }

  // Copies a finished tile to its place in a vector.
  void store(T* vector, const T* tile) const noexcept {
    if (work.streams) {
      copy_streaming(vector + from, tile, n * sizeof(T));
    } else {
      std::memcpy(vector + from, tile, n * sizeof(T));
    }
  }

  // Noise of many nodes, where packing them saves work.
  static constexpr bool packs(std::size_t size) noexcept { return size <= DtypeTraits<T>::packed; }
  void fill_nodes(const SourceConfig& config, const NoiseKernels& kernels, std::uint64_t tree,
                  const std::uint64_t* nodes, std::size_t count, T* to) const {
    const NodeStream stream{config.key, config.rounds, config.purpose, static_cast<std::uint32_t>(tree), 0};
    DtypeTraits<T>::kernels(kernels).fill_nodes(stream, nodes, count, config.offset + from, n,
                                                static_cast<T>(config.std), to);
  }

  // A node's noise. Between superblocks it asks for a share of what the next tile will read, so that the requests of a
  // tile are spread over all of its noise: only some 24 lines can be under way at once.
  void fill(const SourceConfig& config, const NoiseKernels& kernels, std::uint64_t tree, const Node& node, T* to) {
    const NodeStream stream{config.key, config.rounds, config.purpose, static_cast<std::uint32_t>(tree),
                            node_id(node.level, node.index)};
    const auto make = DtypeTraits<T>::kernels(kernels).fill;
    const T std = static_cast<T>(config.std);
    const std::uint64_t first = config.offset + from;
    const std::vector<const T*>& inputs = work.inputs;
    if (inputs.empty()) {
      make(stream, first, n, std, to);
      return;
    }
    constexpr std::size_t part = DtypeTraits<T>::superblock;
    constexpr std::size_t piece = TileWork<T>::kPieceBytes;
    constexpr std::size_t pieces = kTileBytes / piece;  // of one input
    for (std::size_t i = 0; i < n; i += part) {
      for (std::size_t k = 0; k < work.pieces_per_part && asked < pieces * inputs.size(); ++k, ++asked) {
        const T* input = inputs[asked % inputs.size()] + from + tile_size<T>();
        prefetch(input + asked / inputs.size() * (piece / sizeof(T)), piece);
      }
      make(stream, first + i, std::min(part, n - i), std, to + i);
    }
  }
};

// Runs body(span) for every tile of config.size elements, over at most config.threads workers, each with a scratch of
// `scratch_tiles` tiles. Tiles end where superblocks end, in global coordinates.
template <class T, class Body>
void run_tiles(const SourceConfig& config, TileWork<T>& work, Scratch<T>& scratch, std::size_t scratch_tiles,
               const Body& body) {
  constexpr std::size_t most_tiles_a_turn = 32;               // a worker takes this many at a time
  constexpr std::size_t tiles_per_thread = 8;                 // fewer than this a thread are not worth a thread
  constexpr std::size_t stream_bytes = std::size_t{8} << 20;  // vectors from here on bypass the caches
  const std::size_t size = config.size;
  const auto lead = static_cast<std::size_t>(config.offset % tile_size<T>());
  const std::size_t tiles = (lead + size + tile_size<T>() - 1) / tile_size<T>();
  const std::size_t workers = std::max<std::size_t>(1, std::min(config.threads, tiles / tiles_per_thread));
  scratch.reserve(workers, scratch_tiles * tile_size<T>());
  // Turns of one worker follow each other in memory; enough of them that all workers end together.
  const std::size_t turn = std::max<std::size_t>(1, std::min(most_tiles_a_turn, tiles / (workers * 8)));
  work.streams = size * sizeof(T) >= stream_bytes;
  const auto work_off = [&](std::size_t worker) {
    const FloatEnvironment guard;
    for (;;) {
      const std::size_t first = work.next_tile.fetch_add(turn, std::memory_order_relaxed);
      if (first >= tiles) break;
      for (std::size_t i = first; i < std::min(first + turn, tiles); ++i) {
        const std::size_t from = i == 0 ? 0 : i * tile_size<T>() - lead;
        const std::size_t end = std::min(size, (i + 1) * tile_size<T>() - lead);
        TileSpan<T> span{from, end - from, scratch.of(worker), work, worker == 0};
        body(span);
        if (work.cancelled.load(std::memory_order_relaxed)) return;
      }
    }
    if (work.streams) finish_streaming();
  };
  if (workers == 1) {
    work_off(0);
  } else {
    run_workers(workers, work_off, [&] {
      if (work.poll) work.call_poll();
    });
  }
}

// Releases the sums of all elements, whose noise is in memory.
template <class T>
void release_made(const SourceConfig& config, const NoiseKernels& kernels, Scratch<T>& scratch, const Release<T>& to,
                  const T* noise) {
  const Poll never;
  std::size_t count = 0;
  TileWork<T> work(never, count);
  run_tiles<T>(config, work, scratch, 1, [&](const TileSpan<T>& tile) {
    to(DtypeTraits<T>::kernels(kernels), tile.from, tile.n, noise + tile.from);
  });
}

}  // namespace dpftrl
