// SPDX-License-Identifier: Apache-2.0

// Many steps in one call. Step t completes the nodes of levels 0 .. l, with l its lowest set bit, and the digits above
// l are those of the step with that bit cleared: b_t is b_(t without its lowest bit) plus one term. That sum is a row
// of the result, or belongs to an earlier call. So a step costs its nodes (one, or about two for Honaker) and one sum,
// with no list of terms to plan.

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dpftrl/noise/tree.hpp"
#include "noise/tile_runner.hpp"

namespace dpftrl {

// Of vectors of one tile, with all that is worth a vector kept.
template <class T>
struct Tree<T>::Many {
  Many(Tree& owner, std::uint64_t n, T* rows, const Poll& poll)
      : tree(owner),
        kernels(DtypeTraits<T>::kernels(*owner.kernels_)),
        before(owner.t_),
        out(rows),
        size(owner.config_.size),
        levels(static_cast<std::size_t>(highest_bit(owner.t_ + n)) + 1),
        honaker(owner.config_.variant == Variant::honaker),
        work(poll, owner.node_tiles_since_poll_),
        tile{0, size, nullptr, work, true},
        averages(levels),
        sums(levels) {
    // Vectors lie one after the other: a tile apart, those of all levels would share few lines of the cache.
    constexpr std::size_t line = 64 / sizeof(T);
    const std::size_t room = (size + line - 1) / line * line;
    const std::size_t below = (levels + 1) * tile_size<T>();  // of averages that are made again
    owner.scratch_.reserve(1, below + (2 * levels + 2) * room);
    remade = owner.scratch_.of(0);
    T* next = remade + below;
    const auto take = [&] { return std::exchange(next, next + room); };
    z = take(), completed = take();
    for (std::size_t level = 0; level < levels; ++level) {
      averages[level].room = take();
      sums[level].room = take();
    }
    for (const Average& a : owner.averages_) {
      Slot& slot = averages[static_cast<std::size_t>(a.node.level)];
      slot.key = a.node.index, slot.value = a.value.data();
    }
  }

  // A vector that is at hand: r of the node of this index, or the sum at this step.
  struct Slot {
    std::uint64_t key = ~std::uint64_t{0};
    const T* value = nullptr;
    T* room = nullptr;
  };

  void fill(const Node& node, T* to) {
    if (next < ahead.size() && ahead[next] == node_id(node.level, node.index)) {
      std::copy_n(made.data() + next++ * size, size, to);
    } else {
      tile.fill(tree.config_, *tree.kernels_, tree.tree(), node, to);
    }
  }

  // Makes the noise of the nodes that steps first .. last complete, in their order.
  void fill_ahead(std::uint64_t first, std::uint64_t last) {
    ahead.clear();
    next = 0;
    for (std::uint64_t t = first; t <= last; ++t) {
      const int top = lowest_bit(t);
      for (int level = honaker ? 0 : top; level <= top; ++level) ahead.push_back(node_id(level, (t >> level) - 1));
    }
    made.resize(ahead.size() * size);
    tile.fill_nodes(tree.config_, *tree.kernels_, tree.tree(), ahead.data(), ahead.size(), made.data());
  }

  // Honaker's r of a node that was completed before: kept, or made again.
  const T* average(const Node& node) {
    Slot& slot = averages[static_cast<std::size_t>(node.level)];
    if (slot.key != node.index) {
      slot.value = tree.average_tile(tree.tree(), node, tile, slot.room, remade);
      slot.key = node.index;
    }
    return slot.value;
  }

  // The same of the nodes that step t completes, which are all right children but for the last.
  const T* complete(std::uint64_t t, int top) {
    Slot& slot = averages[static_cast<std::size_t>(top)];
    T* right = top == 0 ? slot.room : completed;
    fill(live_node(t, 0), right);
    for (int level = 1; level <= top; ++level) {
      const Node node = live_node(t, level);
      const T* left = average({level - 1, 2 * node.index});
      fill(node, z);
      T* const to = level == top ? slot.room : completed;
      kernels.add_average(size, z, left, right, to);
      right = to;
    }
    slot.key = live_node(t, top).index;
    return slot.value = slot.room;
  }

  // The sum up to one more node.
  void add_term(const T* base, const Node& node, const T* r, T* to) {
    if (honaker) {
      const T weight = honaker_weight<T>(node.level);
      kernels.weighted_sum(size, base, 1, &r, &weight, to);
    } else if (base == nullptr) {
      fill(node, to);
    } else {
      fill(node, z);
      kernels.add(size, base, z, to);
    }
  }

  // The noise at a step up to the last one made; null where nothing is to be added to.
  const T* sum_at(std::uint64_t at) {
    if (at == 0) return tree.carry_.data();
    if (at > before) return out + (at - before - 1) * size;
    for (const Head& h : tree.heads_) {
      if (h.at == at) return h.sum.data();
    }
    const int level = lowest_bit(at);
    Slot& slot = sums[static_cast<std::size_t>(level)];
    if (slot.key != at) {
      const T* base = sum_at(at & (at - 1));
      const Node node = live_node(at, level);
      add_term(base, node, honaker ? average(node) : nullptr, slot.room);
      slot.key = at, slot.value = slot.room;
    }
    return slot.value;
  }

  void run(std::uint64_t n) {
    constexpr std::uint64_t ahead_steps = 32;
    const FloatEnvironment guard;
    const std::uint64_t last = before + n;
    for (std::uint64_t t = before + 1; t <= last; ++t) {
      tile.checkpoint();
      if (tile.packs(size) && (t - before) % ahead_steps == 1) fill_ahead(t, std::min(t + ahead_steps - 1, last));
      const int level = lowest_bit(t);
      const T* base = sum_at(t & (t - 1));
      const T* r = honaker ? complete(t, level) : nullptr;
      add_term(base, live_node(t, level), r, out + (t - before - 1) * size);
    }
  }

  // Keeps what a call of `step` would keep.
  void keep(std::uint64_t t) {
    const auto copy_of = [&](const T* value) {
      Vector<T> v(size);
      std::copy_n(value, size, v.data());
      return v;
    };
    std::vector<Head> heads;
    for (const std::uint64_t at : tree.heads_to_keep(t)) heads.push_back({at, copy_of(sum_at(at))});
    std::vector<Average> live;
    for (int level = highest_bit(t); level >= 0; --level) {
      if (((t >> level) & 1) == 0 || !tree.keeps_average(level, t)) continue;
      const Node node = live_node(t, level);
      live.push_back({node, copy_of(average(node))});
    }
    // All that was read above may lie in these.
    tree.heads_ = std::move(heads);
    tree.averages_ = std::move(live);
    tree.spare_.clear();
  }

  Tree& tree;
  const TileKernels<T>& kernels;
  std::uint64_t before;
  T* out;
  std::size_t size;
  std::size_t levels;
  bool honaker;
  TileWork<T> work;
  Tile tile;
  std::vector<Slot> averages, sums;  // by level
  std::vector<std::uint64_t> ahead;  // nodes whose noise was made ahead, for the order in which they are read
  std::vector<T> made;
  std::size_t next = 0;
  T *remade = nullptr, *z = nullptr, *completed = nullptr;
};

template <class T>
void Tree<T>::advance_many(std::uint64_t n, T* out, const Poll& poll) {
  ensure_carry(poll);
  try {
    Many many(*this, n, out, poll);
    many.run(n);
    many.keep(t_ + n);
  } catch (...) {
    forget_vectors();
    throw;
  }
  t_ += n;
  last_ = {static_cast<std::int64_t>(tree()), t_};
  last_value_ = Vector<T>();
}

template <class T>
void Tree<T>::steps(std::uint64_t n, T* out, const Poll& poll) {
  constexpr std::uint64_t few = 4;  // for which it is not worth to look up what is kept
  if (n > kMaxSteps - t_) throw std::invalid_argument("a tree has at most 2**46 steps: restart it");
  const bool one_tile = config_.offset % tile_size<T>() + config_.size <= tile_size<T>();
  const bool many = one_tile && config_.memory.vectors == Memory::kStored;
  const std::uint64_t at_once = many ? steps_at_once(config_.size) : 1;
  while (n > 0) {
    const std::uint64_t part = std::min(n, at_once);
    if (many && part > few) {
      advance_many(part, out, poll);
    } else {
      for (std::uint64_t i = 0; i < part; ++i) step(out + i * config_.size, poll);
    }
    out += part * config_.size;
    n -= part;
  }
}

template class Tree<float>;
template class Tree<double>;

}  // namespace dpftrl
