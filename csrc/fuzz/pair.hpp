// SPDX-License-Identifier: Apache-2.0
#pragma once

// Two sources of the same noise, of which every call must give the same: one stores its vectors, the other has any
// memory setting and is saved and loaded now and then.

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "dpftrl/noise/source.hpp"
#include "input.hpp"

namespace fuzz {

// Positions up to `farthest`, a few anywhere.
inline dpftrl::SourcePosition position_of(Input& in, std::uint64_t farthest) {
  dpftrl::SourcePosition p;
  const auto step = [&] { return in.byte() % 16 == 0 ? in.word() : in.below(farthest); };
  p.t = step();
  for (std::uint64_t i = in.below(4); i > 0; --i) p.ends.push_back(step());
  p.last.tree = static_cast<std::int64_t>(in.below(6)) - 1;
  p.last.t = step();
  return p;
}

inline bool near(const dpftrl::SourcePosition& p, std::uint64_t farthest) {
  std::uint64_t found = std::max(p.t, p.last.t);
  for (const std::uint64_t end : p.ends) found = std::max(found, end);
  return found <= farthest;
}

inline bool same(const dpftrl::SourcePosition& a, const dpftrl::SourcePosition& b) {
  const bool nowhere = a.last.tree < 0 && b.last.tree < 0;
  return a.t == b.t && a.ends == b.ends && (nowhere || (a.last.tree == b.last.tree && a.last.t == b.last.t));
}

template <template <class> class Source, class T>
class Pair {
 public:
  // False where such a source is refused. `memories` is the number of memory settings.
  template <class Config>
  bool make(Config config, Input& in, std::uint64_t memories) {
    try {
      stored_ = std::make_unique<Source<T>>(config);
    } catch (const std::invalid_argument&) {
      return false;
    }
    config.memory.vectors = in.byte() % memories;
    config.threads = 1;
    other_ = std::make_unique<Source<T>>(config);
    a_.resize(config.size + 1);
    b_.resize(config.size + 1);
    return true;
  }

  // Makes a call of both; both refuse it or neither.
  template <class Call>
  void both(const Call& call) {
    const dpftrl::SourcePosition before = other_->position();
    std::fill(a_.begin(), a_.end(), T(7));
    std::fill(b_.begin(), b_.end(), T(7));
    bool first = true, second = true;
    try {
      call(*stored_, a_.data());
    } catch (const std::invalid_argument&) {
      first = false;
    }
    try {
      call(*other_, b_.data());
    } catch (const std::invalid_argument&) {
      second = false;
      require(same(other_->position(), before), "a refused call changes nothing");
    }
    require(first == second, "every memory setting takes the same calls");
    require(std::memcmp(a_.data(), b_.data(), a_.size() * sizeof(T)) == 0, "every memory setting gives the same bits");
    require(a_.back() == T(7), "nothing is written behind the vector");
    require(same(stored_->position(), other_->position()), "both are at one position");
  }

  // The other one is saved and loaded by a new object; restore(again, kept) loads the vectors, if they are.
  template <class Restore>
  void save_and_load(bool with_vectors, const Restore& restore) {
    auto again = std::make_unique<Source<T>>(other_->config());
    again->set_position(other_->position());
    if (with_vectors) restore(*again, other_->kept_vectors());
    other_ = std::move(again);
  }

  // Both move to a position; of one that is far away only whether it is taken.
  void move_to(const dpftrl::SourcePosition& p, std::uint64_t farthest) {
    if (near(p, farthest)) {
      both([&](Source<T>& source, T*) { source.set_position(p); });
      return;
    }
    Source<T> far(other_->config());
    const dpftrl::SourcePosition before = far.position();
    try {
      far.set_position(p);
      require(same(far.position(), p), "a position that is taken is kept");
    } catch (const std::invalid_argument&) {
      require(same(far.position(), before), "a position that is refused changes nothing");
    }
  }

 private:
  std::unique_ptr<Source<T>> stored_, other_;
  std::vector<T> a_, b_;
};

// Bytes of an input, read for float or for double.
template <class Run>
int run_of_either(const std::uint8_t* data, std::size_t size, const Run& run) {
  Input in(data, size);
  if (in.byte() % 2 == 0) {
    run(in, float{});
  } else {
    run(in, double{});
  }
  return 0;
}

}  // namespace fuzz
