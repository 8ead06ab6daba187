// SPDX-License-Identifier: Apache-2.0

// Calls of two Toeplitz sources in one sequence, one that stores its vectors and one with any memory setting and saved
// positions: the same bits in every call, and a refused call changes nothing.

#include "dpftrl/noise/toeplitz.hpp"
#include "pair.hpp"

using namespace dpftrl;
using fuzz::Input;
using fuzz::Pair;
using fuzz::position_of;

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

template <class T>
void run(Input& in) {
  Pair<Toeplitz, T> pair;
  if (!pair.make(config_of(in), in, 6)) return;
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
      pair.save_and_load(in.byte() % 2 == 0,
                         [](Toeplitz<T>& again, const auto& vectors) { again.restore_vectors(vectors); });
    } else if (way == 9) {
      pair.both([](Toeplitz<T>& noise, T* out) { noise.current(out, {}); });
    } else {
      pair.move_to(position_of(in, kFarthest), kFarthest);
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run_of_either(data, size, [](Input& in, auto zero) { run<decltype(zero)>(in); });
}
