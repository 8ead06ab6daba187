// SPDX-License-Identifier: Apache-2.0

// Calls of two Toeplitz sources in one sequence, one that stores its vectors and one with any memory setting and saved
// positions: the same bits in every call, and a refused call changes nothing.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "dpftrl/noise/toeplitz.hpp"
#include "input.hpp"

using namespace dpftrl;
using fuzz::Input;
using fuzz::require;

namespace {

// A block is made again from its first step, so positions far away would take too long.
constexpr std::uint64_t kFarthest = 200;

ToeplitzConfig config_of(Input& in) {
  ToeplitzConfig c;
  for (auto& word : c.key.words) word = in.byte();
  c.size = in.below(40);
  c.offset = in.byte() % 8 == 0 ? in.word() : in.below(5000);
  c.std = in.byte() % 8 == 0 ? in.number() : 1.25;
  c.purpose = Purpose::toeplitz;
  c.rounds = 8;
  c.threads = 1 + in.byte() % 2;
  c.kind = static_cast<ToeplitzKind>(in.byte() % 3);
  const auto coefficient = [&] {
    return in.byte() % 16 == 0 ? in.number() : static_cast<double>(in.byte()) / 256.0 - 0.25;
  };
  c.first.clear();
  for (std::uint64_t i = in.below(6); i > 0; --i) c.first.push_back(coefficient());
  if (!c.first.empty() && c.kind != ToeplitzKind::buffers && in.byte() % 8 != 0) c.first[0] = 1.0;
  if (c.kind == ToeplitzKind::buffers) {
    const std::uint64_t count = in.byte() % 16 == 0 ? in.below(6) : c.first.size();
    for (std::uint64_t i = count; i > 0; --i) c.second.push_back(coefficient());
  }
  return c;
}

SourcePosition position_of(Input& in) {
  SourcePosition p;
  const auto step = [&] { return in.byte() % 16 == 0 ? in.word() : in.below(kFarthest); };
  p.t = step();
  for (std::uint64_t i = in.below(4); i > 0; --i) p.ends.push_back(step());
  p.last.tree = static_cast<std::int64_t>(in.below(6)) - 1;
  p.last.t = step();
  return p;
}

bool near(const SourcePosition& p) {
  std::uint64_t farthest = std::max(p.t, p.last.t);
  for (const std::uint64_t end : p.ends) farthest = std::max(farthest, end);
  return farthest <= kFarthest;
}

bool same(const SourcePosition& a, const SourcePosition& b) {
  const bool nowhere = a.last.tree < 0 && b.last.tree < 0;
  return a.t == b.t && a.ends == b.ends && (nowhere || (a.last.tree == b.last.tree && a.last.t == b.last.t));
}

template <class T>
struct Pair {
  std::unique_ptr<Toeplitz<T>> stored, other;
  std::vector<T> a, b;

  template <class Call>
  void both(const Call& call) {
    const SourcePosition before = other->position();
    std::fill(a.begin(), a.end(), T(7));
    std::fill(b.begin(), b.end(), T(7));
    bool first = true, second = true;
    try {
      call(*stored, a.data());
    } catch (const std::invalid_argument&) {
      first = false;
    }
    try {
      call(*other, b.data());
    } catch (const std::invalid_argument&) {
      second = false;
      require(same(other->position(), before), "a refused call changes nothing");
    }
    require(first == second, "every memory setting takes the same calls");
    require(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0, "every memory setting gives the same bits");
    require(a.back() == T(7), "nothing is written behind the vector");
    require(same(stored->position(), other->position()), "both are at one position");
  }
};

template <class T>
void run(Input& in) {
  ToeplitzConfig c = config_of(in);
  Pair<T> pair;
  try {
    pair.stored = std::make_unique<Toeplitz<T>>(c);
  } catch (const std::invalid_argument&) {
    return;
  }
  c.memory.vectors = in.byte() % 6;
  c.threads = 1;
  pair.other = std::make_unique<Toeplitz<T>>(c);
  pair.a.resize(c.size + 1);
  pair.b.resize(c.size + 1);
  for (int calls = 0; calls < 40 && !in.empty(); ++calls) {
    const std::uint64_t way = in.byte() % 11;
    if (way < 3) {
      pair.both([](Toeplitz<T>& noise, T* out) { noise.step(out, {}); });
    } else if (way < 5) {
      pair.both([](Toeplitz<T>& noise, T* out) { noise.residual(out, {}); });
    } else if (way == 5) {
      pair.both([](Toeplitz<T>& noise, T*) { noise.restart(); });
    } else if (way == 6) {
      const std::uint64_t t = in.below(kFarthest);
      pair.both([&](Toeplitz<T>& noise, T*) { noise.advance_to(t); });
    } else if (way == 7) {
      const std::uint64_t t = in.byte() % 8 == 0 ? kMaxSteps + 1 + in.byte() : in.below(kFarthest);
      pair.both([&](Toeplitz<T>& noise, T* out) { noise.prefix(t, out, {}); });
    } else if (way == 8) {
      auto again = std::make_unique<Toeplitz<T>>(pair.other->config());
      again->set_position(pair.other->position());
      if (in.byte() % 2 == 0) again->restore_vectors(pair.other->kept_vectors());
      pair.other = std::move(again);
    } else if (way == 9) {
      pair.both([](Toeplitz<T>& noise, T* out) { noise.current(out, {}); });
    } else {
      const SourcePosition p = position_of(in);
      if (near(p)) {
        pair.both([&](Toeplitz<T>& noise, T*) { noise.set_position(p); });
        continue;
      }
      Toeplitz<T> far(c);
      const SourcePosition before = far.position();
      try {
        far.set_position(p);
        require(same(far.position(), p), "a position that is taken is kept");
      } catch (const std::invalid_argument&) {
        require(same(far.position(), before), "a position that is refused changes nothing");
      }
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input in(data, size);
  if (in.byte() % 2 == 0) {
    run<float>(in);
  } else {
    run<double>(in);
  }
  return 0;
}
