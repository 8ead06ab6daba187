// SPDX-License-Identifier: Apache-2.0

// Storage of vectors. Large ones ask Linux for huge pages: a step streams through several vectors at once,
// and with 4 KiB pages the first touch of each page alone costs more than the noise that is written to it.

#include <cstddef>
#include <limits>
#include <new>

#include "dpftrl/noise/vector.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace dpftrl {
namespace {

constexpr std::size_t kCacheLine = 64;
constexpr std::size_t kHugePage = std::size_t{1} << 21;

constexpr std::size_t alignment(std::size_t bytes) noexcept { return bytes >= kHugePage ? kHugePage : kCacheLine; }

}  // namespace

template <class T>
Vector<T>::Vector(std::size_t size) : bytes_(size * sizeof(T)) {
  if (size > std::numeric_limits<std::size_t>::max() / sizeof(T)) throw std::bad_array_new_length();
  data_ = static_cast<T*>(::operator new (bytes_, std::align_val_t{alignment(bytes_)}));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  if (alignment(bytes_) == kHugePage) madvise(data_, bytes_, MADV_HUGEPAGE);  // advice: a refusal does no harm
#endif
}

template <class T>
Vector<T>::~Vector() {
  if (data_ != nullptr) ::operator delete (data_, std::align_val_t{alignment(bytes_)});
}

template class Vector<float>;
template class Vector<double>;

}  // namespace dpftrl
