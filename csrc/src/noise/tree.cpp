// SPDX-License-Identifier: Apache-2.0

// What a call has to add up, and which vectors are kept of it.

#include "dpftrl/noise/tree.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "noise/tile_runner.hpp"

namespace dpftrl {

template <class T>
Tree<T>::Tree(const TreeConfig& config)
    : config_(config), kernels_(config.kernels != nullptr ? config.kernels : &active_kernels()) {
  check_source<T>(config);
}

template <class T>
std::size_t Tree<T>::allocated() const noexcept {
  return heads_.size() + averages_.size() + spare_.size() + (carry_ ? 1u : 0u) + (last_value_ ? 1u : 0u);
}

template <class T>
Vector<T> Tree<T>::take_vector() {
  if (spare_.empty()) return Vector<T>(config_.size);
  Vector<T> v = std::move(spare_.back());
  spare_.pop_back();
  return v;
}

template <class T>
void Tree<T>::forget_vectors() noexcept {
  heads_.clear();
  averages_.clear();
  spare_.clear();
  last_value_ = Vector<T>();
}

template <class T>
const T* Tree<T>::find_average(std::uint64_t tree, const Node& node) const noexcept {
  if (tree != this->tree()) return nullptr;
  for (const Average& a : averages_) {
    if (a.node == node) return a.value.data();
  }
  return nullptr;
}

// The terms of b_t that a sum at `from`, a head of t (or 0), lacks: high levels first.
template <class T>
void Tree<T>::add_terms(Sum& sum, std::uint64_t from, std::uint64_t t) const {
  const std::uint64_t rest = t - from;
  for (int level = highest_bit(rest); level >= 0; --level) {
    if (((rest >> level) & 1) == 0) continue;
    Term term;
    term.node = live_node(t, level);
    if (config_.variant == Variant::honaker) term.average = find_average(sum.tree, term.node);
    sum.terms.push_back(term);
  }
}

// Heads of the steps after t that are worth a vector once t's own sum is made.
//
// stored: for each later step its deepest head among t and the heads of t.
// regenerate, vanilla: one head, in blocks of 16 steps: the block's first step for its first half, then the middle
//   for the next quarter, and so on. Costs 21 terms a block plus the first step's own.
// regenerate, Honaker: the step at which the lower half of t's bits is zero. The terms below cost 2^h nodes a step, the
//   head itself 2t nodes every 2^h steps: about sqrt(t) a step.
// m vectors, vanilla: the m deepest.
template <class T>
std::vector<std::uint64_t> Tree<T>::heads_to_keep(std::uint64_t t) const {
  const std::size_t vectors = config_.memory.vectors;
  if (config_.variant == Variant::honaker) {
    if (vectors != Memory::kRegenerate) return {};
    const int half = highest_bit(t) / 2 + 1;
    const std::uint64_t at = (t >> half) << half;
    if (at == 0) return {};
    return {at};
  }
  if (vectors == Memory::kRegenerate) {
    std::uint64_t at = t & ~std::uint64_t{15};
    for (const std::uint64_t bit : {8u, 4u, 2u}) {
      if ((t & bit) == 0) break;
      at |= bit;
    }
    if (at == 0 || head_end(at) <= t + 1) return {};
    return {at};
  }
  std::vector<std::uint64_t> keep;
  std::uint64_t covered = t + 1;  // steps below are served by a deeper head
  for (std::uint64_t at = t; at != 0 && keep.size() < vectors; at &= at - 1) {
    if (head_end(at) > covered) {
      keep.push_back(at);
      covered = head_end(at);
    }
  }
  std::reverse(keep.begin(), keep.end());
  return keep;
}

template <class T>
bool Tree<T>::keeps_average(int level, std::uint64_t t) const noexcept {
  const std::size_t vectors = config_.memory.vectors;
  if (config_.variant == Variant::vanilla || vectors == Memory::kRegenerate) return false;
  return vectors == Memory::kStored || static_cast<std::size_t>(highest_bit(t) - level) < vectors;
}

template <class T>
void Tree<T>::advance(T* out, bool as_residual, const Release<T>* release, const Poll& poll) {
  if (t_ >= kMaxSteps) throw std::invalid_argument("a tree has at most 2**46 steps: restart it");
  ensure_carry(poll);
  if (as_residual) ensure_last(poll);
  const std::uint64_t t = t_ + 1;
  const Position here{static_cast<std::int64_t>(tree()), t};

  Sum sum;
  sum.tree = tree();
  sum.base = carry_.data();
  sum.out = out;
  sum.release = release;
  if (as_residual) {
    sum.difference = last_.tree >= 0;
    if (!last_value_) last_value_ = take_vector();
    sum.last = last_value_.data();
  }
  const auto base = std::find_if(heads_.rbegin(), heads_.rend(), [&](const Head& h) { return is_head_of(h.at, t); });
  const std::uint64_t base_at = base != heads_.rend() ? base->at : 0;
  if (base_at != 0) sum.base = base->sum.data();
  add_terms(sum, base_at, t);

  // What stays, and a vector that this step still reads but that its last term may overwrite: a tile of it has been
  // read by then.
  const std::vector<std::uint64_t> keep = heads_to_keep(t);
  const auto head_stays = [&](std::uint64_t at) { return std::find(keep.begin(), keep.end(), at) != keep.end(); };
  const auto average_stays = [&](const Node& n) {
    return ((t >> n.level) & 1) != 0 && live_node(t, n.level) == n && keeps_average(n.level, t);
  };
  Vector<T>* donor = nullptr;
  std::vector<Head> new_heads;
  std::vector<Average> new_averages;
  try {
    // All the room that lists need, so that nothing can fail once the sum is made.
    new_heads.reserve(heads_.size() + sum.terms.size());
    new_averages.reserve(averages_.size() + sum.terms.size());
    spare_.reserve(spare_.size() + heads_.size() + averages_.size() + 1);
    for (Head& h : heads_) {
      if (head_stays(h.at)) continue;
      if (h.at == base_at) {
        donor = &h.sum;
      } else {
        spare_.push_back(std::move(h.sum));
      }
    }
    for (Average& a : averages_) {
      if (!average_stays(a.node)) donor = &a.value;
    }
    std::uint64_t at = base_at;
    for (Term& term : sum.terms) {
      at += std::uint64_t{1} << term.node.level;
      const bool keeps_sum = head_stays(at);
      const bool keeps_term = term.average == nullptr && keeps_average(term.node.level, t);
      if (!keeps_sum && !keeps_term) continue;
      const bool in_place = at == t && donor != nullptr;
      Vector<T> fresh = in_place ? Vector<T>() : take_vector();
      (keeps_sum ? term.keep_sum : term.keep_average) = in_place ? donor->data() : fresh.data();
      if (keeps_sum) {
        new_heads.push_back({at, std::move(fresh)});
      } else {
        new_averages.push_back({term.node, std::move(fresh)});
      }
    }
    run(sum, poll);
  } catch (...) {
    forget_vectors();
    throw;
  }

  if (!new_heads.empty() && !new_heads.back().sum) new_heads.back().sum = std::move(*donor);
  if (!new_averages.empty() && !new_averages.back().value) new_averages.back().value = std::move(*donor);
  for (Head& h : heads_) {
    if (head_stays(h.at)) {
      new_heads.push_back(std::move(h));
    } else if (h.sum) {  // read by this step, and not given on
      spare_.push_back(std::move(h.sum));
    }
  }
  for (Average& a : averages_) {
    if (average_stays(a.node)) {
      new_averages.push_back(std::move(a));
    } else if (a.value) {
      spare_.push_back(std::move(a.value));
    }
  }
  std::sort(new_heads.begin(), new_heads.end(), [](const Head& x, const Head& y) { return x.at < y.at; });
  heads_ = std::move(new_heads);
  averages_ = std::move(new_averages);
  t_ = t;
  last_ = here;
  if (!as_residual && last_value_) spare_.push_back(std::move(last_value_));
}

template <class T>
void Tree<T>::step(T* out, const Poll& poll) {
  advance(out, false, nullptr, poll);
}

template <class T>
void Tree<T>::residual(T* out, const Poll& poll) {
  advance(out, true, nullptr, poll);
}

// True if the next step makes the nodes that it completes and no others.
template <class T>
bool Tree<T>::next_at_hand() const noexcept {
  if (config_.variant == Variant::vanilla) {
    const std::uint64_t base = (t_ + 1) & t_;
    return base == 0 || std::any_of(heads_.begin(), heads_.end(), [&](const Head& h) { return h.at == base; });
  }
  for (int level = highest_bit(t_); level >= 0; --level) {
    if (((t_ >> level) & 1) != 0 && find_average(tree(), live_node(t_, level)) == nullptr) return false;
  }
  return true;
}

template <class T>
void Tree<T>::release(const Release<T>& to, const Poll& poll) {
  ensure_carry(poll);
  ensure_last(poll);
  if (next_at_hand()) {
    advance(nullptr, true, &to, Poll());
  } else {
    Vector<T> noise(config_.size);
    residual(noise.data(), poll);
    release_made(config_, *kernels_, scratch_, to, noise.data());
  }
}

// The noise, carry included, at any earlier or present position. Keeps nothing.
template <class T>
void Tree<T>::sum_at(const Position& at, T* out, const Poll& poll) {
  const auto tree = static_cast<std::uint64_t>(at.tree);
  Sum sum;
  sum.out = out;
  std::uint64_t from = 0;
  if (tree == this->tree()) {
    if (!ends_.empty()) sum.base = carry_.data();
    for (const Head& h : heads_) {
      if (is_head_of(h.at, at.t)) sum.base = h.sum.data(), from = h.at;
    }
  } else {
    for (std::uint64_t i = 0; i < tree; ++i) {
      sum.tree = i;
      sum.terms.clear();
      add_terms(sum, 0, ends_[i]);
      run(sum, poll);
      sum.base = out;
    }
  }
  sum.tree = tree;
  sum.terms.clear();
  add_terms(sum, from, at.t);
  run(sum, poll);
}

template <class T>
void Tree<T>::ensure_carry(const Poll& poll) {
  if (ends_.empty() || carry_) return;
  Vector<T> carry = take_vector();
  // Not through this tree's own heads: they stand on the carry.
  sum_at({static_cast<std::int64_t>(tree()) - 1, ends_.back()}, carry.data(), poll);
  carry_ = std::move(carry);
}

template <class T>
void Tree<T>::ensure_last(const Poll& poll) {
  if (last_.tree < 0 || last_value_) return;
  Vector<T> value = take_vector();
  if (carry_ && last_.tree + 1 == static_cast<std::int64_t>(tree()) && last_.t == ends_.back()) {
    std::copy_n(carry_.data(), config_.size, value.data());
  } else {
    sum_at(last_, value.data(), poll);
  }
  last_value_ = std::move(value);
}

template <class T>
void Tree<T>::prefix(std::uint64_t t, T* out, const Poll& poll) {
  if (t == 0 || t > kMaxSteps) {
    throw std::invalid_argument("t must be an integer in [1, 2**46], got " + std::to_string(t));
  }
  Sum sum;
  sum.tree = tree();
  sum.out = out;
  std::uint64_t from = 0;
  if (ends_.empty()) {  // a head holds the carry too, so it serves the first tree only
    for (const Head& h : heads_) {
      if (is_head_of(h.at, t)) sum.base = h.sum.data(), from = h.at;
    }
  }
  add_terms(sum, from, t);
  run(sum, poll);
}

template <class T>
void Tree<T>::node(const Node& node, T* out, const Poll& poll) {
  if (node.level < 0 || node.level > kMaxLevel) {
    throw std::out_of_range("level must be an integer in [0, 46], got " + std::to_string(node.level));
  }
  const std::uint64_t count = kMaxSteps >> node.level;
  if (node.index >= count) {
    throw std::out_of_range("index must be an integer in [0, " + std::to_string(count) + ") at level " +
                            std::to_string(node.level) + ", got " + std::to_string(node.index));
  }
  Sum sum;
  sum.tree = tree();
  sum.plain = true;
  sum.out = out;
  Term term;
  term.node = node;
  sum.terms.push_back(term);
  run(sum, poll);
}

template <class T>
void Tree<T>::advance_to(std::uint64_t t) {
  if (t < t_ || t > kMaxSteps) {
    throw std::invalid_argument("t must be an integer in [" + std::to_string(t_) + ", 2**46] (this tree is at t = " +
                                std::to_string(t_) + " and cannot go back), got " + std::to_string(t));
  }
  t_ = t;
}

template <class T>
void Tree<T>::restart(bool complete, const Poll& poll) {
  if (t_ == 0) throw std::invalid_argument("restart needs at least one step of the present tree, got t = 0");
  if (ends_.size() >= kMaxRestarts) throw std::invalid_argument("a stream has at most 2**24 restarts");
  const std::uint64_t end = complete ? next_power_of_two(t_) : t_;
  ends_.reserve(ends_.size() + 1);
  ensure_carry(poll);
  if (!carry_) carry_ = take_vector();
  try {
    sum_at({static_cast<std::int64_t>(tree()), end}, carry_.data(), poll);  // in place when there is one already
  } catch (...) {
    carry_ = Vector<T>();
    forget_vectors();  // heads stand on the carry
    throw;
  }
  // residual's last value stays with its position; heads and averages belong to the tree that ends.
  for (Head& h : heads_) spare_.push_back(std::move(h.sum));
  for (Average& a : averages_) spare_.push_back(std::move(a.value));
  heads_.clear();
  averages_.clear();
  ends_.push_back(end);
  t_ = 0;
}

template <class T>
SourcePosition Tree<T>::position() const {
  return {t_, ends_, last_};
}

template <class T>
void Tree<T>::set_position(const SourcePosition& p) {
  check_position(p);
  std::vector<std::uint64_t> ends = p.ends;
  forget_vectors();
  carry_ = Vector<T>();
  ends_ = std::move(ends);
  t_ = p.t;
  last_ = p.last.tree >= 0 ? p.last : Position{};
}

template <class T>
std::vector<typename Tree<T>::KeptVector> Tree<T>::kept_vectors() const {
  std::vector<KeptVector> kept;
  if (carry_) kept.push_back({VectorKind::carry, {}, carry_.data()});
  if (last_value_) kept.push_back({VectorKind::last, {}, last_value_.data()});
  for (const Average& a : averages_) kept.push_back({VectorKind::average, a.node, a.value.data()});
  return kept;
}

template <class T>
void Tree<T>::restore_vector(const KeptVector& kept) {
  Vector<T> v(config_.size);
  std::copy_n(kept.data, config_.size, v.data());
  const bool live = config_.variant == Variant::honaker && ((t_ >> kept.node.level) & 1) != 0 &&
                    live_node(t_, kept.node.level) == kept.node;
  if (kept.kind == VectorKind::carry && !ends_.empty()) {
    carry_ = std::move(v);
  } else if (kept.kind == VectorKind::last && last_.tree >= 0) {
    last_value_ = std::move(v);
  } else if (kept.kind == VectorKind::average && live && keeps_average(kept.node.level, t_)) {
    averages_.push_back({kept.node, std::move(v)});
  }
}

template class Tree<float>;
template class Tree<double>;

}  // namespace dpftrl
