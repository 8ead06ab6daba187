// SPDX-License-Identifier: Apache-2.0
#pragma once

// Checks of what comes from Python. Nothing is converted or copied behind the caller's back.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "dpftrl/noise/noise_kernel.hpp"

namespace dpftrl::bindings {

namespace py = pybind11;

// The elements of `out`, which the caller's array lends for writing. Throws TypeError or ValueError.
template <class T>
T* writable(const py::array& out, std::size_t size, const char* name = "out") {
  const auto expected = [&](const std::string& got) {  // a call that is right does not wait for its words
    return std::string(name) + " must be a writable C-contiguous " +
           std::string(py::str(py::object(py::dtype::of<T>()))) + " array of " + std::to_string(size) +
           " elements, got " + got;
  };
  if (!py::isinstance<py::array_t<T>>(out)) {
    throw py::type_error(expected("dtype " + std::string(py::str(py::object(out.dtype())))));
  }
  if (static_cast<std::size_t>(out.size()) != size) {
    throw py::value_error(expected(std::to_string(out.size()) + " elements"));
  }
  if ((out.flags() & py::array::c_style) == 0) throw py::value_error(expected("one that is not contiguous"));
  if (!out.writeable()) throw py::value_error(expected("a read-only one"));
  void* data = static_cast<py::array>(out).mutable_data();
  if (reinterpret_cast<std::uintptr_t>(data) % alignof(T) != 0) throw py::value_error(expected("a misaligned one"));
  return static_cast<T*>(data);
}

// The elements of a vector that is read. Throws TypeError or ValueError.
template <class T>
const T* readable(const char* name, const py::array& array) {
  if (!py::isinstance<py::array_t<T, py::array::c_style>>(array) || array.ndim() != 1) {
    throw py::type_error(std::string(name) + " must be a C-contiguous one-dimensional " +
                         std::string(py::str(py::object(py::dtype::of<T>()))) + " array");
  }
  if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
    throw py::value_error(std::string(name) + " must be aligned to " + std::to_string(alignof(T)) +
                          " bytes, got an array that is not");
  }
  return static_cast<const T*>(array.data());
}

template <class T>
const T* readable(const char* name, const py::array& array, std::size_t size) {
  const T* const data = readable<T>(name, array);
  if (static_cast<std::size_t>(array.size()) != size) {
    throw py::value_error(std::string(name) + " must have " + std::to_string(size) + " elements, got " +
                          std::to_string(array.size()));
  }
  return data;
}

inline Key key_from_bytes(const py::bytes& bytes) {
  const auto text = static_cast<std::string_view>(bytes);
  if (text.size() != 32) throw py::value_error("key must be 32 bytes, got " + std::to_string(text.size()));
  Key key{};
  for (std::size_t i = 0; i < 32; ++i) {
    key.words[i / 4] |= static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])) << (8 * (i % 4));
  }
  return key;
}

inline const NoiseKernels* target_by_name(const std::string& name) {
  const NoiseKernels* kernels = find_target(name.c_str());
  if (kernels == nullptr)
    throw py::value_error("no target '" + name + "' on this machine: see build_info()['targets']");
  return kernels;
}

}  // namespace dpftrl::bindings
