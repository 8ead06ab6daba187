// SPDX-License-Identifier: Apache-2.0

// A main() for compilers without libFuzzer: pseudo-random inputs, the same ones in each run.

#include <cstdlib>
#include <iostream>
#include <vector>

#include "input.hpp"

int main(int argc, char** argv) {
  const long count = argc > 1 ? std::atol(argv[1]) : 2000;
  std::uint64_t state = 0x9E3779B97F4A7C15u;
  const auto next = [&] {  // xorshift64 (Marsaglia 2003)
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
  };
  for (long i = 0; i < count; ++i) {
    std::vector<std::uint8_t> input(static_cast<std::size_t>(next() % 200));
    for (std::uint8_t& x : input) x = static_cast<std::uint8_t>(next() >> 24);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::cout << count << " inputs\n";
  return count > 0 ? 0 : 1;
}
