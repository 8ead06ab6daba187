// SPDX-License-Identifier: Apache-2.0
#pragma once

// The whole test framework: checks that count, print what was expected and what came, and go on. A test is a
// plain executable whose main() ends with `return check::report();`, which fails when nothing was checked.
// The counters are atomic, so checks may run on any thread.

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>
#include <type_traits>

namespace check {

inline std::atomic<long> checks{0};
inline std::atomic<long> failures{0};

inline bool record(bool passed, const char* file, int line, const std::string& message) {
  ++checks;
  if (!passed && ++failures <= 50) {
    std::ostringstream text;
    text << file << ':' << line << ": " << message << '\n';
    std::cerr << text.str();
  }
  return passed;
}

template <class T>
std::string show(const T& value) {
  std::ostringstream text;
  text.precision(17);
  if constexpr (std::is_same_v<T, unsigned char> || std::is_same_v<T, signed char>) {
    text << int{value};
  } else {
    text << std::boolalpha << value;
  }
  return text.str();
}

template <class A, class B>
bool equal(const A& a, const B& b, const char* file, int line, const char* text) {
  const bool passed = (a == b);
  return record(passed, file, line, passed ? "" : std::string(text) + ": " + show(a) + " != " + show(b));
}

inline bool near(double a, double b, double tolerance, const char* file, int line, const char* text) {
  const bool passed = std::fabs(a - b) <= tolerance;  // false for NaN
  return record(
      passed, file, line,
      passed ? "" : std::string(text) + ": " + show(a) + " is not within " + show(tolerance) + " of " + show(b));
}

// The same bits, so that 0.0 and -0.0 differ and equal NaNs agree. Names the first place that differs.
template <class T>
bool same_bits(const T* a, const T* b, std::size_t n, const char* file, int line, const char* text) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (n == 0 || std::memcmp(a, b, n * sizeof(T)) == 0) return record(true, file, line, "");
  std::size_t i = 0;
  while (std::memcmp(a + i, b + i, sizeof(T)) == 0) ++i;
  return record(
      false, file, line,
      std::string(text) + ": differ at " + show(i) + " of " + show(n) + ": " + show(a[i]) + " and " + show(b[i]));
}

template <class Expected, class Function>
bool throws(const Function& function, const std::string& part, const char* file, int line, const char* text) {
  bool passed = false;
  std::string came = "nothing was thrown";
  try {
    function();
  } catch (const std::exception& error) {
    came = error.what();
    passed = dynamic_cast<const Expected*>(&error) != nullptr && came.find(part) != std::string::npos;
  }
  return record(passed, file, line, passed ? "" : std::string(text) + ": " + came);
}

// Exit status for main().
inline int report() {
  std::cout << checks << " checks, " << failures << " failed\n";
  if (checks == 0) std::cerr << "nothing was checked\n";
  return failures == 0 && checks > 0 ? 0 : 1;
}

}  // namespace check

#define CHECK(condition) ::check::record(static_cast<bool>(condition), __FILE__, __LINE__, "CHECK(" #condition ")")
#define CHECK_EQ(a, b) ::check::equal((a), (b), __FILE__, __LINE__, "CHECK_EQ(" #a ", " #b ")")
#define CHECK_NEAR(a, b, tolerance) \
  ::check::near((a), (b), (tolerance), __FILE__, __LINE__, "CHECK_NEAR(" #a ", " #b ", " #tolerance ")")
#define CHECK_SAME_BITS(a, b, n) \
  ::check::same_bits((a), (b), (n), __FILE__, __LINE__, "CHECK_SAME_BITS(" #a ", " #b ", " #n ")")

// The expression throws `exception_class` (or one derived from it), and its what() contains `part`.
#define CHECK_THROWS(expression, exception_class, part)                                                \
  ::check::throws<exception_class>([&] { static_cast<void>(expression); }, (part), __FILE__, __LINE__, \
                                   "CHECK_THROWS(" #expression ", " #exception_class ", " #part ")")
