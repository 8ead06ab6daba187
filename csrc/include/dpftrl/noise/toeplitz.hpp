// SPDX-License-Identifier: Apache-2.0
#pragma once

// Noise of a Toeplitz mechanism: correlated Gaussian noise for prefix sums, one coordinate range of one noise vector.
//
// A position (block, t) and the key determine everything. x_t is the noise that step t adds to a running sum, made of
// the independent z_1 .. z_t of its block in one written order (docs/guarantees/stream.md):
//
//   taps     x_t = ((z_t + d_1 z_(t-1)) + d_2 z_(t-2)) + ..
//   buffers  x_t = ((z_t - scale_1 s_1) - scale_2 s_2) - ..; then s_i = decay_i s_i + x_t; s_i = 0 before step 1
//   bands    x_t = (((z_t - c_1 x_(t-1)) - c_2 x_(t-2)) - ..)/c_0
//
// with what lies before step 1 left out. The vectors held here only save work: without them a call makes its block
// again from step 1 (taps: the last z), tile by tile in cache, and an interrupted call drops them all.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "dpftrl/infra/poll.hpp"
#include "dpftrl/noise/release.hpp"
#include "dpftrl/noise/source.hpp"
#include "dpftrl/noise/vector.hpp"

namespace dpftrl {

template <class T>
struct TileSpan;  // one tile of a call (tile_runner.hpp)

enum class ToeplitzKind : std::uint8_t { taps, buffers, bands };

struct ToeplitzConfig : SourceConfig {
  ToeplitzKind kind = ToeplitzKind::taps;
  std::vector<double> first{1.0};  // taps, decays or bands: numbers of T
  std::vector<double> second;      // scales
};

template <class T>
class Toeplitz {
 public:
  // Throws std::invalid_argument for a configuration that cannot be.
  explicit Toeplitz(const ToeplitzConfig& config);

  const ToeplitzConfig& config() const noexcept { return config_; }
  std::uint64_t t() const noexcept { return t_; }
  std::uint64_t block() const noexcept { return ends_.size(); }
  // Vectors now allocated: for tests of the memory bound.
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
  // x_1 + .. + x_t of this block: makes all of them.
  void prefix(std::uint64_t t, T* out, const Poll& poll);
  // The noise in the running sum at the step last returned; zeros before the first.
  void current(T* out, const Poll& poll);
  // Moves on without making noise. Throws std::invalid_argument when t lies before this block's t or past kMaxSteps.
  void advance_to(std::uint64_t t);
  // Begins the next block, with independent noise. Throws std::invalid_argument at t = 0.
  void restart();

  SourcePosition position() const { return {t_, ends_, last_}; }
  // Drops every vector; they are made again when needed. Throws std::invalid_argument and changes nothing when there is
  // no such position.
  void set_position(const SourcePosition& position);

  // The running sum's noise, and buffers or earlier x in their slots, to save them beside the position and to put them
  // back after set_position.
  enum class VectorKind : std::uint8_t { sum, slot };
  struct KeptVector {
    VectorKind kind;
    std::uint64_t index;
    const T* data;
  };
  std::vector<KeptVector> kept_vectors() const;
  // Vectors that this position or this memory setting has no use for are passed over.
  void restore_vectors(const std::vector<KeptVector>& kept);

 private:
  // Where the x of a call go.
  struct Sums {
    T* total = nullptr;                   // takes their sum
    T* sum = nullptr;                     // the noise of the running sum, brought up to the last step
    T* out = nullptr;                     // takes a copy of `sum` at each of the last steps, one a row
    std::uint64_t rows_from = 0;          // the first of these
    const Release<T>* release = nullptr;  // takes the x of a call for one step, in place of `total`
    bool keeps = false;                   // the kept vectors are at the step before, and are brought up to the last one
  };
  // Steps of one block that a call makes.
  struct Stretch {
    std::uint64_t block = 0;
    std::uint64_t start = 0;            // x_(start+1) is the first that is made
    std::uint64_t first = 1, last = 0;  // the steps whose x is added
    std::uint64_t kept_from = 0;        // taps: the earliest z in the ring
    std::size_t ring = 0;               // z (taps) or x (bands) of earlier steps at hand: step s at s % ring
    bool kept = false;                  // ring and buffers are those of the object
    Sums sums{};
    bool adds = false;    // sums.total holds the x of earlier stretches
    bool begins = false;  // sums.sum holds nothing yet
    bool ends = true;     // the last stretch of its call
  };
  using Tile = TileSpan<T>;
  struct Terms;  // of one x, up to a few at a time (toeplitz_tiles.cpp)

  // Planning (toeplitz.cpp).
  void advance(std::uint64_t n, Sums sums, const Poll& poll);
  bool next_at_hand() const noexcept;
  void add_steps(const Position& from, const Position& to, const Sums& sums, const Poll& poll);
  Stretch remade(std::uint64_t block) const noexcept;
  void continue_kept(Stretch& stretch);
  void bring_sum_to_last(const Poll& poll);
  std::size_t ring_length() const noexcept;
  bool keeps_state() const noexcept;
  void forget_vectors() noexcept;

  // Execution (toeplitz_tiles.cpp).
  void run(const Stretch& stretch, const Poll& poll);
  void run_tile(const Stretch& stretch, Tile& tile);
  T* slot(const Stretch& stretch, std::size_t i, Tile& tile) noexcept;
  void make_taps(const Stretch& stretch, std::uint64_t step, Tile& tile, T* x);
  void make_buffers(const Stretch& stretch, std::uint64_t step, Tile& tile, T* x);
  void make_bands(const Stretch& stretch, std::uint64_t step, Tile& tile, T* x);
  void fill(std::uint64_t block, std::uint64_t step, Tile& tile, T* to) const;
  void fill_ahead(const Stretch& stretch, std::uint64_t step, Tile& tile) const;

  ToeplitzConfig config_;
  const NoiseKernels* kernels_;
  std::vector<T> first_, second_;  // weights of sums: taps, -c (bands), decays; -scales
  std::size_t node_tiles_since_poll_ = 0;
  std::uint64_t t_ = 0;
  std::vector<std::uint64_t> ends_;
  Position last_;

  Vector<T> sum_;                 // noise of the running sum at last_; empty unless `step` was called
  std::vector<Vector<T>> slots_;  // the ring, or the buffers, at last_ if that is in this block; made when first used
  bool slots_hold_ = false;       // they hold what they are for
  std::uint64_t slots_from_ = 1;  // taps: the earliest step whose z they may hold
  Scratch<T> scratch_;
};

extern template class Toeplitz<float>;
extern template class Toeplitz<double>;

}  // namespace dpftrl
