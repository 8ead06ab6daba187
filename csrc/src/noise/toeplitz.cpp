// SPDX-License-Identifier: Apache-2.0

// The stretches of steps that a call has to make, and which vectors are kept of them.

#include "dpftrl/noise/toeplitz.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "noise/tile_runner.hpp"

namespace dpftrl {
namespace {

template <class T>
ToeplitzConfig checked(const ToeplitzConfig& c) {
  check_source<T>(c);
  const auto exact = [](double x) { return std::isfinite(x) && static_cast<double>(static_cast<T>(x)) == x; };
  const auto all = [&](const std::vector<double>& values) { return std::all_of(values.begin(), values.end(), exact); };
  if (c.first.empty() || !all(c.first) || !all(c.second)) {
    throw std::invalid_argument("coefficients must be one or more finite numbers of the dtype");
  }
  const bool right = c.kind == ToeplitzKind::taps    ? c.first[0] == 1.0 && c.second.empty()
                     : c.kind == ToeplitzKind::bands ? c.first[0] > 0.0 && c.second.empty()
                                                     : c.first.size() == c.second.size();
  if (!right) throw std::invalid_argument("coefficients must be those of a mechanism");
  return c;
}

}  // namespace

template <class T>
Toeplitz<T>::Toeplitz(const ToeplitzConfig& config)
    : config_(checked<T>(config)), kernels_(config.kernels != nullptr ? config.kernels : &active_kernels()) {
  for (const double x : config_.first) first_.push_back(static_cast<T>(x));
  for (const double x : config_.second) second_.push_back(-static_cast<T>(x));
  if (config_.kind == ToeplitzKind::bands) {
    for (std::size_t j = 1; j < first_.size(); ++j) first_[j] = -first_[j];
  }
}

template <class T>
std::size_t Toeplitz<T>::allocated() const noexcept {
  return static_cast<std::size_t>(std::count_if(slots_.begin(), slots_.end(), [](const Vector<T>& v) { return !!v; })) +
         (sum_ ? 1u : 0u);
}

// Vectors that the kind could use: earlier z or x, or buffers.
template <class T>
std::size_t Toeplitz<T>::ring_length() const noexcept {
  return config_.kind == ToeplitzKind::buffers ? first_.size() : first_.size() - 1;
}

// True if these are kept: all of them, or for taps as many as may be.
template <class T>
bool Toeplitz<T>::keeps_state() const noexcept {
  if (config_.kind == ToeplitzKind::taps) return config_.memory.vectors > 0;
  return ring_length() <= config_.memory.vectors;
}

template <class T>
void Toeplitz<T>::forget_vectors() noexcept {
  slots_.clear();
  slots_hold_ = false;
  sum_ = Vector<T>();
}

// A stretch that makes its block again in scratch.
template <class T>
typename Toeplitz<T>::Stretch Toeplitz<T>::remade(std::uint64_t block) const noexcept {
  constexpr std::size_t most_taps = 64;  // more of them are not held in cache, but made again at each step
  Stretch s;
  s.block = block;
  s.ring = ring_length();
  if (config_.kind == ToeplitzKind::taps && s.ring > most_taps) s.ring = 0;
  return s;
}

// Lets a stretch of this block use the kept vectors, from where they hold.
template <class T>
void Toeplitz<T>::continue_kept(Stretch& s) {
  s.kept = true;
  s.ring = std::min(ring_length(), config_.memory.vectors);
  slots_.resize(s.ring);
  if (!slots_hold_) slots_from_ = s.first;
  if (config_.kind == ToeplitzKind::taps) {
    s.start = s.first - 1;
    s.kept_from = slots_from_;
  } else {
    s.start = slots_hold_ ? s.first - 1 : 0;
  }
  // Room for what the stretch writes: its last steps.
  const std::uint64_t steps = s.last - s.start;
  for (std::size_t i = 0; i < s.ring; ++i) {
    const std::uint64_t before_last = (s.last % s.ring + s.ring - i) % s.ring;
    const bool written = config_.kind == ToeplitzKind::buffers || before_last < steps;
    if (written && !slots_[i]) slots_[i] = Vector<T>(config_.size);
  }
}

// Adds the x of all steps after `from` up to `to`, through the blocks between; from.tree < 0 is the very beginning.
template <class T>
void Toeplitz<T>::add_steps(const Position& from, const Position& to, const Sums& sums, const Poll& poll) {
  const std::uint64_t first_block = from.tree < 0 ? 0 : static_cast<std::uint64_t>(from.tree);
  const auto last_block = static_cast<std::uint64_t>(to.tree);
  bool adds = false;
  for (std::uint64_t b = first_block; b <= last_block; ++b) {
    Stretch s = remade(b);
    s.sums = sums;
    s.first = b == first_block ? from.t + 1 : 1;
    s.last = b == last_block ? to.t : ends_[b];
    if (s.first > s.last) continue;
    s.adds = adds;
    s.begins = !adds && from.tree < 0;
    s.ends = b == last_block;
    if (config_.kind == ToeplitzKind::taps) {
      s.start = s.first - 1;
      s.kept_from = s.first;
      if (s.first == s.last) s.ring = 0;
    }
    if (sums.keeps && b == block() && keeps_state()) continue_kept(s);
    run(s, poll);
    if (s.kept) slots_hold_ = true;
    adds = true;
  }
}

// Makes the noise of the running sum at the step last returned, beside the kept vectors, which are there already.
template <class T>
void Toeplitz<T>::bring_sum_to_last(const Poll& poll) {
  Vector<T> sum(config_.size);
  Sums sums;
  sums.sum = sum.data();
  if (last_.tree >= 0) add_steps(Position{}, last_, sums, poll);
  sum_ = std::move(sum);
}

template <class T>
void Toeplitz<T>::advance(std::uint64_t n, Sums sums, const Poll& poll) {
  if (n > kMaxSteps - t_) throw std::invalid_argument("a block has at most 2**46 steps: restart it");
  const Position here{static_cast<std::int64_t>(block()), t_ + n};
  try {
    if (sums.out != nullptr && !sum_) bring_sum_to_last(poll);
    sums.sum = sum_.data();
    sums.rows_from = t_ + 1;
    sums.keeps = true;
    add_steps(last_, here, sums, poll);
  } catch (...) {
    forget_vectors();
    throw;
  }
  t_ = here.t;
  last_ = here;
}

template <class T>
void Toeplitz<T>::step(T* out, const Poll& poll) {
  Sums sums;
  sums.out = out;
  advance(1, sums, poll);
}

template <class T>
void Toeplitz<T>::residual(T* out, const Poll& poll) {
  Sums sums;
  sums.total = out;
  advance(1, sums, poll);
}

// True if the next residual is one x, made of vectors that are kept, or of a few z.
template <class T>
bool Toeplitz<T>::next_at_hand() const noexcept {
  constexpr std::size_t few = 8;
  const auto here = static_cast<std::int64_t>(block());
  const std::size_t length = ring_length();
  const bool again = config_.kind == ToeplitzKind::taps && length <= few;
  if (t_ == 0) {
    const bool begins = last_ == (ends_.empty() ? Position{} : Position{here - 1, ends_.back()});
    return begins && (again || length <= config_.memory.vectors);
  }
  const std::uint64_t oldest = t_ + 1 - std::min<std::uint64_t>(t_, length);
  const bool kept = length <= config_.memory.vectors && slots_hold_ && slots_from_ <= oldest;
  return (again || kept) && last_ == Position{here, t_};
}

template <class T>
void Toeplitz<T>::release(const Release<T>& to, const Poll& poll) {
  if (next_at_hand()) {
    Sums sums;
    sums.release = &to;
    advance(1, sums, Poll());
  } else {
    Vector<T> noise(config_.size);
    residual(noise.data(), poll);
    release_made(config_, *kernels_, scratch_, to, noise.data());
  }
}

template <class T>
void Toeplitz<T>::steps(std::uint64_t n, T* out, const Poll& poll) {
  if (n > kMaxSteps - t_) throw std::invalid_argument("a block has at most 2**46 steps: restart it");
  const std::uint64_t at_once = steps_at_once(config_.size);
  Sums sums;
  while (n > 0) {
    const std::uint64_t part = std::min(n, at_once);
    sums.out = out;
    advance(part, sums, poll);
    out += part * config_.size;
    n -= part;
  }
}

template <class T>
void Toeplitz<T>::prefix(std::uint64_t t, T* out, const Poll& poll) {
  if (t == 0 || t > kMaxSteps) {
    throw std::invalid_argument("t must be an integer in [1, 2**46], got " + std::to_string(t));
  }
  Stretch s = remade(block());
  s.last = t;
  s.kept_from = 1;
  s.sums.total = out;
  run(s, poll);
}

template <class T>
void Toeplitz<T>::current(T* out, const Poll& poll) {
  if (last_.tree < 0) {
    std::fill_n(out, config_.size, T(0));
    return;
  }
  if (!sum_) bring_sum_to_last(poll);
  std::copy_n(sum_.data(), config_.size, out);
}

template <class T>
void Toeplitz<T>::advance_to(std::uint64_t t) {
  if (t < t_ || t > kMaxSteps) {
    throw std::invalid_argument("t must be an integer in [" + std::to_string(t_) + ", 2**46] (this block is at t = " +
                                std::to_string(t_) + " and cannot go back), got " + std::to_string(t));
  }
  t_ = t;
}

template <class T>
void Toeplitz<T>::restart() {
  if (t_ == 0) throw std::invalid_argument("restart needs at least one step of the present block, got t = 0");
  if (ends_.size() >= kMaxRestarts) throw std::invalid_argument("a stream has at most 2**24 restarts");
  ends_.push_back(t_);
  t_ = 0;
  slots_hold_ = false;
}

template <class T>
void Toeplitz<T>::set_position(const SourcePosition& p) {
  check_position(p);
  std::vector<std::uint64_t> ends = p.ends;
  forget_vectors();
  ends_ = std::move(ends);
  t_ = p.t;
  last_ = p.last.tree >= 0 ? p.last : Position{};
}

template <class T>
std::vector<typename Toeplitz<T>::KeptVector> Toeplitz<T>::kept_vectors() const {
  std::vector<KeptVector> kept;
  if (sum_) kept.push_back({VectorKind::sum, 0, sum_.data()});
  if (!slots_hold_ || config_.kind == ToeplitzKind::taps) return kept;  // z are made again as fast as they are read
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i]) kept.push_back({VectorKind::slot, i, slots_[i].data()});
  }
  return kept;
}

template <class T>
void Toeplitz<T>::restore_vectors(const std::vector<KeptVector>& kept) {
  const auto copy = [&](const T* data) {
    Vector<T> v(config_.size);
    std::copy_n(data, config_.size, v.data());
    return v;
  };
  const bool here = last_.tree >= 0 && static_cast<std::uint64_t>(last_.tree) == block();
  const bool keeps = here && config_.kind != ToeplitzKind::taps && keeps_state();
  // All of them, or none: a sum of x with one missing would be another mechanism.
  const std::size_t whole = config_.kind == ToeplitzKind::buffers
                                ? ring_length()
                                : static_cast<std::size_t>(std::min<std::uint64_t>(ring_length(), last_.t));
  std::vector<Vector<T>> slots(ring_length());
  std::size_t found = 0;
  for (const KeptVector& v : kept) {
    if (v.kind == VectorKind::sum && last_.tree >= 0) sum_ = copy(v.data);
    if (v.kind != VectorKind::slot || !keeps || v.index >= slots.size() || slots[v.index]) continue;
    const bool used =
        config_.kind == ToeplitzKind::buffers || last_.t >= slots.size() || (v.index >= 1 && v.index <= last_.t);
    if (!used) continue;
    slots[v.index] = copy(v.data);
    ++found;
  }
  if (!keeps || found != whole) return;
  slots_ = std::move(slots);
  slots_hold_ = true;
  slots_from_ = 1;
}

template class Toeplitz<float>;
template class Toeplitz<double>;

}  // namespace dpftrl
