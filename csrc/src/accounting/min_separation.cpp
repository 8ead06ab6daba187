// SPDX-License-Identifier: Apache-2.0

// The largest zeta under a minimum separation b, in time that does not depend on b.
//
// Within a block of s steps, k uses with the first at offset >= a and the last at least g steps before the end
// (a, g >= 0) are worth at most f_k(a, g), which falls in a and in g. Only a, g < b matter to the blocks beside it.
// f_k is kept as a few pieces (value, A, G, C): "the value can be had for all a <= A, g <= G, a + g <= C". Two blocks
// side by side give pieces again: with m = b - 1, a use of the left with g1 steps behind it and one of the right with
// a2 steps before it are b apart if g1 + a2 >= m. The best g1 for a given a is min(G1, C1 - a), and eliminating
// a2 = max(0, m - g1) leaves
//
//   G1 + A2 >= m,  A = min(A1, C1, C1 + A2 - m),  G = min(G2, C2, C2 + G1 - m),  C = C1 + C2 - m.
//
// A block with a node on top adds k^2. A tree is built from its leaf upwards, all blocks of a level being equal, and
// trees are joined like blocks; equal trees by repeated doubling.

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dpftrl/accounting/sensitivity.hpp"
#include "dpftrl/noise/node.hpp"

namespace dpftrl {
namespace {

// `spine` is W, the weighted contributions that the node above a right child has to know, for honaker_prefixes.
template <class V>
struct Piece {
  V value;
  V spine;
  std::int64_t start;  // A
  std::int64_t end;    // G
  std::int64_t both;   // C
};

template <class V>
struct Bounds {
  V value;
  V spine;
};

template <class V>
using Front = std::vector<Piece<V>>;

// uses[k - 1] holds the pieces of k uses. No uses at all are always possible, with value 0.
template <class V>
struct Block {
  std::int64_t steps = 0;
  std::vector<Front<V>> uses;
};

template <class V>
bool covers(const Piece<V>& a, const Piece<V>& b) {
  return a.value >= b.value && a.spine >= b.spine && a.start >= b.start && a.end >= b.end && a.both >= b.both;
}

// Where a piece worth no less reaches on where another ends, the other reaches as far: their union has no hole if
// no (a, g) with a + g <= C lies beyond the smaller A and the smaller G.
template <class V>
bool extend(Piece<V>& piece, const Piece<V>& other) {
  if (other.value < piece.value || other.spine < piece.spine || other.both < piece.both) return false;
  const std::int64_t start = std::max(piece.start, other.start);
  const std::int64_t end = std::max(piece.end, other.end);
  if (start == piece.start && end == piece.end) return false;
  if (std::min(piece.start, other.start) + std::min(piece.end, other.end) + 2 <= piece.both) return false;
  piece.start = start;
  piece.end = end;
  return true;
}

struct OutOfWork {};

template <class V>
class Program {
 public:
  Program(std::int64_t most_uses, std::int64_t separation, Statistic statistic, const Effort& effort, const Poll& poll)
      : most_uses_(most_uses),
        reach_(separation - 1),
        statistic_(statistic),
        weight_bits_(effort.weight_bits),
        grid_(effort.place_bits > 0 ? ((separation - 1) >> effort.place_bits) + 1 : 1),
        work_left_(effort.work_limit),
        poll_(poll) {}

  // The value of the best piece of all trees in a row. Throws OutOfWork.
  V solve(const EqualTrees* runs, std::size_t n_runs) {
    Block<V> total;
    for (std::size_t i = 0; i < n_runs; ++i) {
      Block<V> tree = make_tree(runs[i].steps, runs[i].completed);
      for (std::uint64_t count = runs[i].count; count > 0;) {
        if ((count & 1) != 0) total = join(total, tree);
        count >>= 1;
        if (count > 0) tree = join(tree, tree);
      }
    }
    V best = 0;
    for (const Front<V>& front : total.uses) {
      for (const Piece<V>& piece : front) best = std::max(best, piece.value);
    }
    return best;
  }

 private:
  const std::int64_t most_uses_;
  const std::int64_t reach_;  // m = b - 1
  const Statistic statistic_;
  const int weight_bits_;
  const std::int64_t grid_;
  std::int64_t work_left_;
  const Poll& poll_;
  // By level: the block of a full node of odd index, and of even index, which is read by prefixes.
  std::vector<Block<V>> odd_, even_;

  std::int64_t on_grid(std::int64_t x) const { return grid_ == 1 ? x : (x + grid_ - 1) / grid_ * grid_; }

  Piece<V> normal(Piece<V> p) const {
    p.start = std::min(on_grid(std::min(p.start, p.both)), reach_);
    p.end = std::min(on_grid(std::min(p.end, p.both)), reach_);
    p.both = std::min(on_grid(p.both), p.start + p.end);
    return p;
  }

  V rounded_up(V spine, V uses) const {
    if (weight_bits_ == 0) return spine;
    int exponent = 0;
    std::frexp(static_cast<double>(uses), &exponent);
    const double unit = std::ldexp(1.0, exponent - 1 - weight_bits_);
    return static_cast<V>(std::ceil(static_cast<double>(spine) / unit) * unit);
  }

  std::int64_t capacity(std::int64_t steps) const {
    return std::min(most_uses_, steps / (reach_ + 1) + (steps % (reach_ + 1) != 0 ? 1 : 0));
  }

  void insert(Front<V>& front, const Piece<V>& piece) {
    spend(front.size());
    for (const Piece<V>& other : front) {
      if (covers(other, piece)) return;
    }
    const auto covered = [&](const Piece<V>& other) { return covers(piece, other); };
    front.erase(std::remove_if(front.begin(), front.end(), covered), front.end());
    front.push_back(piece);
  }

  void unite(Front<V>& front) {
    for (bool changed = true; changed;) {
      changed = false;
      spend(front.size() * front.size());
      for (std::size_t i = 0; i < front.size(); ++i) {
        for (std::size_t j = 0; j < front.size(); ++j) {
          if (i != j && extend(front[i], front[j])) changed = true;
        }
      }
      if (!changed) return;
      Front<V> all = std::move(front);
      front.clear();
      for (const Piece<V>& piece : all) insert(front, piece);
    }
  }

  void spend(std::size_t comparisons) {
    const std::int64_t before = work_left_;
    work_left_ -= static_cast<std::int64_t>(comparisons);
    if (work_left_ < 0) throw OutOfWork{};
    if (before >> 22 != work_left_ >> 22) poll_();
  }

  // Two blocks side by side, no node on top. The spine is the right block's.
  Block<V> join(const Block<V>& left, const Block<V>& right) {
    Block<V> out;
    out.steps = left.steps + right.steps;
    const auto most = static_cast<std::size_t>(capacity(out.steps));
    out.uses.resize(most);
    const std::vector<Bounds<V>> left_bounds = bounds(left);
    const std::vector<Bounds<V>> right_bounds = bounds(right);
    for (std::size_t k = 1; k <= most; ++k) {
      Front<V>& front = out.uses[k - 1];
      if (k <= left.uses.size()) {
        for (const Piece<V>& p : left.uses[k - 1]) {
          insert(front, normal({p.value, V(0), p.start, p.end + right.steps, p.both + right.steps}));
        }
      }
      if (k <= right.uses.size()) {
        for (const Piece<V>& p : right.uses[k - 1]) {
          insert(front, normal({p.value, p.spine, p.start + left.steps, p.end, p.both + left.steps}));
        }
      }
      // From the splits with most uses in one block, which are worth most, to the others, which are then skipped.
      const std::size_t first = k > right.uses.size() ? k - right.uses.size() : 1;
      Bounds<V> roomy = with_all_room(front);
      for (std::size_t k1 = std::min(left.uses.size(), k - 1); k1 >= first && k1 > 0; --k1) {
        const Bounds<V>& a = left_bounds[k1 - 1];
        const Bounds<V>& b = right_bounds[k - k1 - 1];
        if (a.value + b.value <= roomy.value && b.spine <= roomy.spine) continue;
        join_fronts(left.uses[k1 - 1], right.uses[k - k1 - 1], front);
        roomy = with_all_room(front);
      }
      unite(front);
    }
    poll_();
    while (!out.uses.empty() && out.uses.back().empty()) out.uses.pop_back();
    return out;
  }

  static std::vector<Bounds<V>> bounds(const Block<V>& block) {
    std::vector<Bounds<V>> out;
    out.reserve(block.uses.size());
    for (const Front<V>& front : block.uses) {
      Bounds<V> most{0, 0};
      for (const Piece<V>& p : front) most = {std::max(most.value, p.value), std::max(most.spine, p.spine)};
      out.push_back(most);
    }
    return out;
  }

  // The best piece that no neighbour can disturb. It covers every piece within its bounds.
  Bounds<V> with_all_room(const Front<V>& front) const {
    Bounds<V> best{-1, -1};
    for (const Piece<V>& p : front) {
      const bool has_room = p.start == reach_ && p.end == reach_ && p.both == 2 * reach_;
      if (has_room && p.value > best.value) best = {p.value, p.spine};
    }
    return best;
  }

  void join_fronts(const Front<V>& left, const Front<V>& right, Front<V>& front) {
    for (const Piece<V>& p : left) {
      spend(right.size());
      for (const Piece<V>& q : right) {
        if (p.end + q.start < reach_) continue;
        const std::int64_t both = p.both + q.both - reach_;
        const std::int64_t start = std::min({p.start, p.both, p.both + q.start - reach_});
        const std::int64_t end = std::min({q.end, q.both, q.both + p.end - reach_});
        if (both < 0 || start < 0 || end < 0) continue;
        insert(front, normal({p.value + q.value, q.spine, start, end, both}));
      }
    }
  }

  // Give every piece of k uses a new value and spine.
  template <class Change>
  Block<V> changed(Block<V> block, Change change) {
    for (std::size_t k = 1; k <= block.uses.size(); ++k) {
      Front<V> all = std::move(block.uses[k - 1]);
      Front<V>& front = block.uses[k - 1];
      front.clear();
      for (Piece<V> piece : all) {
        change(piece, static_cast<V>(k));
        insert(front, piece);
      }
      unite(front);
    }
    return block;
  }

  // What a node (of odd index, or one that ends behind the last step) adds, given the two blocks under it.
  Block<V> with_node(Block<V> block) {
    if (statistic_ == Statistic::even_nodes) return block;
    return changed(std::move(block), [this](Piece<V>& p, V k) {
      if (statistic_ == Statistic::all_nodes) {
        p.value += k * k;
      } else {
        p.spine = rounded_up(k + p.spine / 2, k);  // W(node) = uses + W(right child) / 2
      }
    });
  }

  // What reading the node by a prefix adds to that.
  Block<V> with_prefix(Block<V> block, double increment_variance) {
    if (statistic_ == Statistic::all_nodes) return block;
    return changed(std::move(block), [&](Piece<V>& p, V k) {
      if (statistic_ == Statistic::even_nodes) {
        p.value += k * k;
      } else {
        p.value += static_cast<V>(static_cast<double>(p.spine * p.spine) / increment_variance);
        p.spine = 0;
      }
    });
  }

  void build_levels(int level) {
    if (odd_.empty()) {
      const V node = statistic_ == Statistic::all_nodes ? 1 : 0;
      const V spine = statistic_ == Statistic::honaker_prefixes ? 1 : 0;
      Block<V> leaf;
      leaf.steps = 1;
      leaf.uses.push_back({{node, spine, 0, 0, 0}});
      even_.push_back(with_prefix(leaf, honaker_increment_variance(0)));
      odd_.push_back(std::move(leaf));
    }
    for (int l = static_cast<int>(odd_.size()); l <= level; ++l) {
      const auto below = static_cast<std::size_t>(l - 1);
      Block<V> node = with_node(join(even_[below], odd_[below]));
      even_.push_back(with_prefix(node, honaker_increment_variance(l)));
      odd_.push_back(std::move(node));
    }
  }

  Block<V> make_tree(std::uint64_t n, bool completed) {
    const int top = highest_bit(n);
    build_levels(top);
    const bool is_full = (n & (n - 1)) == 0;
    if (is_full) return even_[static_cast<std::size_t>(top)];
    if (completed) {
      return with_prefix(part(top + 1, n), honaker_root_variance(top + 1, n));
    }
    Block<V> tree;
    for (int l = top; l >= 0; --l) {
      if ((n >> l & 1) != 0) tree = join(tree, even_[static_cast<std::size_t>(l)]);
    }
    return tree;
  }

  // The node of this level over the last n steps, 0 < n < 2^level, of a completed tree.
  Block<V> part(int level, std::uint64_t n) {
    const std::uint64_t half = std::uint64_t{1} << (level - 1);
    const Block<V>& left = even_[static_cast<std::size_t>(level - 1)];
    if (n > half) return with_node(join(left, part(level - 1, n - half)));
    return with_node(n == half ? left : part(level - 1, n));
  }
};

}  // namespace

double honaker_increment_variance(int level) noexcept { return 4.0 / 3.0 * (1.0 - std::ldexp(1.0, -2 * (level + 1))); }

double honaker_root_variance(int level, std::uint64_t steps) noexcept {
  // A node over both steps and none: its own noise, a fourth of that of a right child with steps (its left child is
  // known), or of a left child with steps and a right child of fresh nodes only, whose average has 2 - 2^-(level - 1).
  if (steps == 0) return 2.0 - std::ldexp(1.0, -level);
  const std::uint64_t half = std::uint64_t{1} << (level - 1);
  if (steps >= half) return 1.0 + honaker_root_variance(level - 1, steps - half) / 4;
  return 1.0 + honaker_root_variance(level - 1, steps) / 4 + (2.0 - std::ldexp(1.0, -(level - 1))) / 4;
}

namespace {

constexpr std::int64_t kMostUses = std::int64_t{1} << 20;

// How many uses a record can have, and a check that no sum of squares of their counts overflows.
std::int64_t checked_uses(const EqualTrees* runs, std::size_t n_runs, std::int64_t most_uses, std::int64_t separation) {
  std::int64_t steps = 0;
  int levels = 0;
  for (std::size_t i = 0; i < n_runs; ++i) {
    steps += static_cast<std::int64_t>(runs[i].steps * runs[i].count);
    levels = std::max(levels, highest_bit(runs[i].steps) + 2);
  }
  const std::int64_t uses = std::min(most_uses, steps / separation + (steps % separation != 0 ? 1 : 0));
  if (!(std::pow(static_cast<double>(uses), 2) * levels < std::ldexp(1.0, 63))) {
    throw std::overflow_error("the squared sensitivity could pass 2^63");
  }
  if (uses > kMostUses) {
    throw std::overflow_error("a minimum separation that allows more than 2^20 uses needs bound=\"level\"");
  }
  return uses;
}

}  // namespace

std::optional<std::int64_t> min_separation_counts(const EqualTrees* runs, std::size_t n_runs, std::int64_t most_uses,
                                                  std::int64_t separation, Statistic statistic, const Effort& effort,
                                                  const Poll& poll) {
  const std::int64_t uses = checked_uses(runs, n_runs, most_uses, separation);
  try {
    return Program<std::int64_t>(uses, separation, statistic, effort, poll).solve(runs, n_runs);
  } catch (const OutOfWork&) {
    return std::nullopt;
  }
}

std::optional<double> min_separation_weights(const EqualTrees* runs, std::size_t n_runs, std::int64_t most_uses,
                                             std::int64_t separation, const Effort& effort, const Poll& poll) {
  const std::int64_t uses = checked_uses(runs, n_runs, most_uses, separation);
  // A value is a sum of positive terms, each made by fewer operations than this.
  const double operations = 256.0 + 256.0 * static_cast<double>(n_runs);
  try {
    Program<double> program(uses, separation, Statistic::honaker_prefixes, effort, poll);
    return program.solve(runs, n_runs) * (1.0 + operations * std::numeric_limits<double>::epsilon());
  } catch (const OutOfWork&) {
    return std::nullopt;
  }
}

}  // namespace dpftrl
