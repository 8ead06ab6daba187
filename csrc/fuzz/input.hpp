// SPDX-License-Identifier: Apache-2.0
#pragma once

// The bytes of an input as small choices, and a check that ends the process, as sanitizers do.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fuzz {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  bool empty() const { return left_ == 0; }
  std::uint8_t byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }
  // One of 0 .. count - 1; count is at most 2^16.
  std::uint64_t below(std::uint64_t count) {
    const std::uint64_t high = byte();
    return ((high << 8) | byte()) % count;
  }
  std::uint64_t word() {
    std::uint64_t x = 0;
    for (int i = 0; i < 8; ++i) x = (x << 8) | byte();
    return x;
  }
  // Any double; half of them near 1.
  double number() {
    const std::uint64_t bits = word();
    if (bits % 2 == 0) return static_cast<double>(bits >> 40) / 65536.0;
    double x = 0;
    std::memcpy(&x, &bits, sizeof x);
    return x;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz: not so: %s\n", what);
  std::abort();
}

}  // namespace fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
