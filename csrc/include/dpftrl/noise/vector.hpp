// SPDX-License-Identifier: Apache-2.0
#pragma once

// Storage of the vectors of a source of noise: uninitialised (vector.cpp).

#include <cstddef>
#include <utility>
#include <vector>

namespace dpftrl {

template <class T>
class Vector {
 public:
  Vector() = default;
  explicit Vector(std::size_t size);
  ~Vector();
  Vector(Vector&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Vector& operator=(Vector&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  explicit operator bool() const noexcept { return data_ != nullptr; }

 private:
  T* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Working memory of the workers of a source, kept between calls.
template <class T>
class Scratch {
 public:
  // At least `room` elements for each of so many workers.
  void reserve(std::size_t workers, std::size_t room) {
    if (room_ < room) each_.clear(), room_ = room;
    while (each_.size() < workers) each_.emplace_back(room_);
  }
  T* of(std::size_t worker) noexcept { return each_[worker].data(); }

 private:
  std::size_t room_ = 0;
  std::vector<Vector<T>> each_;
};

extern template class Vector<float>;
extern template class Vector<double>;

}  // namespace dpftrl
