// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the bindings of all sources of noise share: convert, check, release the GIL, call. A source may be used from
// several threads: its calls take turns.

#include <pybind11/stl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "arrays.hpp"
#include "dpftrl/noise/release.hpp"
#include "dpftrl/noise/source.hpp"
#include "signals.hpp"

namespace dpftrl::bindings {

// The calls of a source take turns. A signal handler that runs in a call's poll may come back on the same thread: it is
// refused, since it could only wait for itself.
class Turns {
 public:
  class Turn {
   public:
    explicit Turn(Turns& turns) : turns_(turns) {
      if (turns_.owner_.load() == std::this_thread::get_id()) {
        throw std::runtime_error("this object is in the middle of a call on this thread: try again when it has ended");
      }
      turns_.mutex_.lock();
      turns_.owner_.store(std::this_thread::get_id());
    }
    ~Turn() {
      turns_.owner_.store(std::thread::id());
      turns_.mutex_.unlock();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Turns& turns_;
  };

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

inline void configure(SourceConfig& c, std::size_t size, double std, const py::bytes& key, int rounds, int purpose,
                      std::uint64_t offset, std::int64_t memory, std::size_t threads,
                      const std::optional<std::string>& target) {
  c.key = key_from_bytes(key);
  c.rounds = rounds;
  c.purpose = static_cast<Purpose>(purpose);
  c.offset = offset;
  c.size = size;
  c.std = std;
  c.memory.vectors = memory < 0 ? Memory::kStored : static_cast<std::size_t>(memory);
  c.threads = threads;
  c.kernels = target ? target_by_name(*target) : nullptr;
}

// A saved array, of a list whose entries hold it last. It is secret: no message shows it.
template <class T>
const T* saved_array(const py::object& array, std::size_t size) {
  if (!py::isinstance<py::array_t<T>>(array) ||
      (py::reinterpret_borrow<py::array>(array).flags() & py::array::c_style) == 0 ||
      static_cast<std::size_t>(py::reinterpret_borrow<py::array>(array).size()) != size) {
    throw py::value_error("a saved vector must be a C-contiguous " + std::string(DtypeTraits<T>::name) + " array of " +
                          std::to_string(size) + " elements");
  }
  return static_cast<const T*>(py::reinterpret_borrow<py::array>(array).data());
}

// The release of sums at addresses: three numbers of `pieces` are start and stop of one in the vector of the noise, and
// 1 for doubles.
template <class T>
Release<T> release_of(const py::array& pieces, const py::array& at, const py::array& remainder, std::size_t size,
                      double grid, double divisor) {
  Release<T> to;
  const auto count = static_cast<std::size_t>(at.size());
  const std::int64_t* const address = readable<std::int64_t>("at", at);
  const std::int64_t* const row = readable<std::int64_t>("pieces", pieces, 3 * count);
  to.remainder = writable<T>(remainder, size, "remainder");
  std::int64_t before = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int64_t start = row[3 * i], stop = row[3 * i + 1];
    if (start < before || stop < start || stop > static_cast<std::int64_t>(size)) {
      throw py::value_error("pieces must lie within the " + std::to_string(size) +
                            " elements of the noise, one after the other");
    }
    const bool doubles = row[3 * i + 2] != 0;
    const auto width = static_cast<std::int64_t>(doubles ? sizeof(double) : sizeof(float));
    if (start < stop && (address[i] == 0 || address[i] % width != 0)) {
      throw py::value_error("at must have the addresses of numbers of their dtype");
    }
    before = stop;
    to.pieces.push_back({static_cast<std::size_t>(start), static_cast<std::size_t>(stop),
                         reinterpret_cast<void*>(static_cast<std::intptr_t>(address[i])), doubles});
  }
  to.grid = static_cast<T>(grid);
  to.divisor = divisor;
  int exponent;
  if (!(std::frexp(to.grid, &exponent) == T(0.5) && std::isfinite(1 / to.grid) && divisor >= 1)) {
    throw py::value_error("grid must be a power of two with a reciprocal, and divisor >= 1");
  }
  return to;
}

template <class Source, class T>
class PySource {
 public:
  template <class Config>
  explicit PySource(const Config& config) : source_(config) {}

  // Runs call(data) on the elements of out, or of a new array when out is None; returns the array.
  template <class Call>
  py::object into(const py::object& out, Call&& call) {
    py::object array = out;
    const std::size_t size = source_.config().size;
    if (out.is_none()) {
      array = py::array_t<T>(static_cast<py::ssize_t>(size));
    } else if (!py::isinstance<py::array>(out)) {
      throw py::type_error("out must be a NumPy array here, got " + std::string(py::str(py::type::of(out))));
    }
    T* const data = writable<T>(py::reinterpret_borrow<py::array>(array), size);
    const py::gil_scoped_release release;
    const Turns::Turn turn(turns_);
    call(data);
    return array;
  }

  py::object step(const py::object& out) {
    return into(out, [&](T* data) { source_.step(data, check_signals); });
  }
  py::object residual(const py::object& out) {
    return into(out, [&](T* data) { source_.residual(data, check_signals); });
  }
  // The next residual, with which sums at addresses are released: what the addresses lead to is not checked.
  void release(const py::array& pieces, const py::array& at, const py::array& remainder, double grid, double divisor) {
    const Release<T> to = release_of<T>(pieces, at, remainder, source_.config().size, grid, divisor);
    alone([&] { source_.release(to, check_signals); });
  }
  // Steps into `count` rows of out, an array of `rows` of them, from row `first` on. Where the call ends early, rows of
  // steps that were not taken hold no noise: they come again.
  void steps(const py::array& out, std::uint64_t rows, std::uint64_t first, std::uint64_t count) {
    const std::size_t size = source_.config().size;
    if (rows > PTRDIFF_MAX / sizeof(T) / size || first > rows || count > rows - first) {
      throw py::value_error("rows must be those of an array");
    }
    T* const data = writable<T>(out, static_cast<std::size_t>(rows) * size) + first * size;
    alone([&] {
      const std::uint64_t before = source_.t();
      try {
        source_.steps(count, data, check_signals);
      } catch (...) {
        const std::uint64_t taken = source_.t() - before;
        std::fill(data + taken * size, data + count * size, std::numeric_limits<T>::quiet_NaN());
        throw;
      }
    });
  }
  py::object prefix(std::uint64_t t, const py::object& out) {
    return into(out, [&](T* data) { source_.prefix(t, data, check_signals); });
  }
  template <class Call>
  auto alone(Call&& call) {
    const py::gil_scoped_release release;
    const Turns::Turn turn(turns_);
    return call();
  }

  void advance_to(std::uint64_t t) {
    alone([&] { source_.advance_to(t); });
  }
  std::uint64_t t() {
    return alone([&] { return source_.t(); });
  }
  std::size_t allocated() {
    return alone([&] { return source_.allocated(); });
  }

  py::tuple position() {
    const SourcePosition p = alone([&] { return source_.position(); });
    return py::make_tuple(p.t, p.ends, p.last.tree, p.last.t);
  }

 protected:
  // Position and kept vectors of one moment; named(vector, array) is a vector as Python saves it.
  template <class Named>
  py::tuple saved_as(Named&& named) {
    const Turns::Turn turn = turn_with_gil();
    const SourcePosition p = source_.position();
    py::list vectors;
    for (const auto& v : source_.kept_vectors()) {
      vectors.append(named(v, py::array_t<T>(static_cast<py::ssize_t>(source_.config().size), v.data)));
    }
    return py::make_tuple(p.t, p.ends, p.last.tree, p.last.t, vectors);
  }

  Turns::Turn turn_with_gil() {
    const py::gil_scoped_release release;
    return Turns::Turn(turns_);
  }

  Source source_;
  Turns turns_;
};

// The calls of PySource, as Python sees them.
template <class P, class Class>
void define_source(Class& c) {
  c.def("step", &P::step, py::arg("out"))
      .def("residual", &P::residual, py::arg("out"))
      .def("steps", &P::steps, py::arg("out"), py::arg("rows"), py::arg("first"), py::arg("count"))
      .def("release", &P::release, py::arg("pieces"), py::arg("at"), py::arg("remainder"), py::arg("grid"),
           py::arg("divisor"))
      .def("prefix", &P::prefix, py::arg("t"), py::arg("out"))
      .def("advance_to", &P::advance_to, py::arg("t"))
      .def_property_readonly("t", &P::t)
      .def_property_readonly("allocated_vectors", &P::allocated)
      .def("position", &P::position)
      .def("saved", &P::saved);
}

}  // namespace dpftrl::bindings
