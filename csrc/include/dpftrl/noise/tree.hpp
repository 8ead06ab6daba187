// SPDX-License-Identifier: Apache-2.0
#pragma once

// The tree aggregator: correlated Gaussian noise for prefix sums, one coordinate range of one noise vector.
//
// A position (tree, t) and the key determine everything. The vectors held here only save work, so each is optional:
// `Memory` says how many are kept, an interrupted call drops them all, and every setting gives the same bits,
// since all sums run in one written order (docs/guarantees/stream.md): carry, then live nodes from high level to low.
// In that order b_t = b_(t with its lowest bit cleared) + one term, so the sum at an earlier time (a "head") can stand
// for all its terms. Vanilla keeps heads, Honaker keeps the averages r of live nodes.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dpftrl/infra/poll.hpp"
#include "dpftrl/noise/node.hpp"
#include "dpftrl/noise/noise_kernel.hpp"
#include "dpftrl/noise/release.hpp"
#include "dpftrl/noise/source.hpp"
#include "dpftrl/noise/vector.hpp"

namespace dpftrl {

template <class T>
struct TileSpan;  // one tile of a call (tile_runner.hpp)

enum class Variant : std::uint8_t { vanilla, honaker };

struct TreeConfig : SourceConfig {
  Variant variant = Variant::honaker;
};

template <class T>
class Tree {
 public:
  // Throws std::invalid_argument for a size, offset, number of rounds or threads that cannot be.
  explicit Tree(const TreeConfig& config);

  const TreeConfig& config() const noexcept { return config_; }
  std::uint64_t t() const noexcept { return t_; }
  std::uint64_t tree() const noexcept { return ends_.size(); }
  const Position& last() const noexcept { return last_; }
  // Vectors now allocated, spare ones included: for tests of the memory bound.
  std::size_t allocated() const noexcept;

  // Each writes config().size elements. On an exception the position is what it was.
  void step(T* out, const Poll& poll);
  void residual(T* out, const Poll& poll);
  // The next residual, with which sums are released. Once it writes to them it does not poll: an exception has changed
  // none.
  void release(const Release<T>& to, const Poll& poll);
  // The next n calls of step, whose noise goes to the n rows of out. An exception may leave the position after any of
  // them, with the rows up to it written. Throws std::invalid_argument, and takes none, when they are past kMaxSteps.
  void steps(std::uint64_t n, T* out, const Poll& poll);
  void prefix(std::uint64_t t, T* out, const Poll& poll);
  void node(const Node& node, T* out, const Poll& poll);
  // Moves on without making noise. Throws std::invalid_argument when t lies before this tree's t or past kMaxSteps.
  void advance_to(std::uint64_t t);
  // Begins the next tree; `complete` carries the noise at the next power of two. Throws std::invalid_argument at t = 0.
  void restart(bool complete, const Poll& poll);

  SourcePosition position() const;
  // Drops every vector; they are made again when needed. Throws std::invalid_argument and changes nothing when there is
  // no such position.
  void set_position(const SourcePosition& position);

  // What cannot be made again cheaply, to save it beside the position, and to put it back after set_position. A
  // vector that this position or this memory setting has no use for is passed over.
  enum class VectorKind : std::uint8_t { carry, last, average };
  struct KeptVector {
    VectorKind kind;
    Node node;  // of an average
    const T* data;
  };
  std::vector<KeptVector> kept_vectors() const;
  void restore_vector(const KeptVector& kept);

 private:
  // The sum at step `at` of this tree, carry included.
  struct Head {
    std::uint64_t at;
    Vector<T> sum;
  };
  // Honaker's r of one node of this tree.
  struct Average {
    Node node;
    Vector<T> value;
  };
  // One sum to be made, and what is kept of it on the way.
  struct Term {
    Node node;
    const T* average = nullptr;  // Honaker: r, when it is at hand
    T* keep_average = nullptr;   // Honaker: where r goes
    T* keep_sum = nullptr;       // where the sum up to this term goes
  };
  struct Sum {
    std::uint64_t tree = 0;
    bool plain = false;       // terms are z whatever the variant
    const T* base = nullptr;  // a head, the carry, or nothing
    std::vector<Term> terms;
    T* out = nullptr;
    T* last = nullptr;                    // residual: takes the sum
    bool difference = false;              // residual: out = sum - what `last` held
    const Release<T>* release = nullptr;  // takes the result in place of `out`
  };

  // Planning (tree.cpp).
  void advance(T* out, bool as_residual, const Release<T>* release, const Poll& poll);
  bool next_at_hand() const noexcept;
  void sum_at(const Position& at, T* out, const Poll& poll);
  void add_terms(Sum& sum, std::uint64_t from, std::uint64_t t) const;
  std::vector<std::uint64_t> heads_to_keep(std::uint64_t t) const;
  bool keeps_average(int level, std::uint64_t t) const noexcept;
  const T* find_average(std::uint64_t tree, const Node& node) const noexcept;
  void ensure_carry(const Poll& poll);
  void ensure_last(const Poll& poll);
  Vector<T> take_vector();
  void forget_vectors() noexcept;

  // Many steps of a vector of one tile (tree_steps.cpp).
  struct Many;
  void advance_many(std::uint64_t n, T* out, const Poll& poll);

  // Execution (tree_tiles.cpp).
  using Tile = TileSpan<T>;
  void run(const Sum& sum, const Poll& poll);
  void run_tile(const Sum& sum, Tile& tile) const;
  const T* average_tile(std::uint64_t tree, const Node& node, Tile& tile, T* to, T* scratch) const;

  TreeConfig config_;
  const NoiseKernels* kernels_;
  std::size_t node_tiles_since_poll_ = 0;
  std::uint64_t t_ = 0;
  std::vector<std::uint64_t> ends_;
  Position last_;

  Vector<T> carry_;                // noise of all earlier trees; empty before a restart, or to be made again
  Vector<T> last_value_;           // residual: what was last returned; empty when it is to be made again
  std::vector<Head> heads_;        // earliest first
  std::vector<Average> averages_;  // highest level first
  std::vector<Vector<T>> spare_;
  Scratch<T> scratch_;  // of the workers
};

extern template class Tree<float>;
extern template class Tree<double>;

}  // namespace dpftrl
