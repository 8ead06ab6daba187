// SPDX-License-Identifier: Apache-2.0

// How a planned sum is made: each vector of the plan is read or written once.

#include <algorithm>
#include <vector>

#include "dpftrl/noise/tree.hpp"
#include "noise/tile_runner.hpp"

namespace dpftrl {

// r(leaf) = z(leaf); r(parent) = z(parent) + (r(left) + r(right)) * 0.5, one tile of it. Returns where it is: a kept
// vector, or `to`. scratch holds one tile for z and one a level below this node.
template <class T>
const T* Tree<T>::average_tile(std::uint64_t tree, const Node& node, Tile& tile, T* to, T* scratch) const {
  if (const T* kept = find_average(tree, node)) return kept + tile.from;
  if (tile.checkpoint()) return to;
  if (node.level == 0) {
    tile.fill(config_, *kernels_, tree, node, to);
    return to;
  }
  T* const z = scratch;
  T* const left_room = scratch + static_cast<std::size_t>(node.level) * tile_size<T>();
  const T* right = average_tile(tree, {node.level - 1, 2 * node.index + 1}, tile, to, scratch);
  const T* left = average_tile(tree, {node.level - 1, 2 * node.index}, tile, left_room, scratch);
  tile.fill(config_, *kernels_, tree, node, z);
  DtypeTraits<T>::kernels(*kernels_).add_average(tile.n, z, left, right, to);
  return to;
}

template <class T>
void Tree<T>::run_tile(const Sum& sum, Tile& tile) const {
  const TileKernels<T>& k = DtypeTraits<T>::kernels(*kernels_);
  const std::size_t n = tile.n;
  T* const term_room = tile.scratch;
  T* const below = tile.scratch + 2 * tile_size<T>();
  // Where the sum grows: in place, or in scratch when it is to go past the cache or into sums.
  const bool apart = tile.work.streams || sum.release != nullptr;
  T* const to = apart ? tile.scratch + tile_size<T>() : sum.out + tile.from;
  const T* so_far = sum.base != nullptr ? sum.base + tile.from : nullptr;
  const bool averages = !sum.plain && config_.variant == Variant::honaker;
  for (std::size_t i = 0; i < sum.terms.size();) {
    const Term& term = sum.terms[i];
    if (tile.checkpoint()) return;
    if (!averages) {
      tile.fill(config_, *kernels_, sum.tree, term.node, so_far == nullptr ? to : term_room);
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
  if (sum.release != nullptr) {
    (*sum.release)(k, tile.from, n, result);
  } else if (result != sum.out + tile.from) {
    tile.store(sum.out, result);
  }
}

template <class T>
void Tree<T>::run(const Sum& sum, const Poll& poll) {
  int levels = 0;
  for (const Term& term : sum.terms) {
    if (term.average == nullptr) levels = std::max(levels, term.node.level);
  }
  if (sum.plain || config_.variant == Variant::vanilla) levels = 0;

  TileWork<T> work(poll, node_tiles_since_poll_);
  if (sum.base != nullptr) work.inputs.push_back(sum.base);
  for (const Average& a : averages_) {
    if (a.value) work.inputs.push_back(a.value.data());
  }
  if (sum.difference) work.inputs.push_back(sum.last);
  if (sum.release != nullptr) work.inputs.push_back(sum.release->remainder);
  // Nodes that a tile makes, were all left children at hand.
  std::size_t nodes = 0;
  for (const Term& term : sum.terms) {
    if (term.average == nullptr) nodes += levels > 0 ? static_cast<std::size_t>(term.node.level) + 1 : 1;
  }
  work.plan_prefetch(config_.size, nodes);
  // One tile for a term, one for the sum, one for z, one a level.
  const std::size_t tiles = static_cast<std::size_t>(levels + 3);
  run_tiles<T>(config_, work, scratch_, tiles, [&](Tile& tile) { run_tile(sum, tile); });
}

template class Tree<float>;
template class Tree<double>;

}  // namespace dpftrl
