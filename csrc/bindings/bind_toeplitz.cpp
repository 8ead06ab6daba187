// SPDX-License-Identifier: Apache-2.0

// Toeplitz<float> and Toeplitz<double>.

#include <optional>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "dpftrl/noise/toeplitz.hpp"
#include "py_source.hpp"

namespace dpftrl::bindings {
namespace {

ToeplitzKind kind_by_name(const std::string& name) {
  if (name == "taps") return ToeplitzKind::taps;
  if (name == "buffers") return ToeplitzKind::buffers;
  if (name == "bands") return ToeplitzKind::bands;
  throw py::value_error("kind must be 'taps', 'buffers' or 'bands', got '" + name + "'");
}

ToeplitzConfig toeplitz_config(std::size_t size, double std, const py::bytes& key, int rounds, int purpose,
                               std::uint64_t offset, const std::string& kind, std::vector<double> first,
                               std::vector<double> second, std::int64_t memory, std::size_t threads,
                               const std::optional<std::string>& target) {
  ToeplitzConfig c;
  configure(c, size, std, key, rounds, purpose, offset, memory, threads, target);
  c.kind = kind_by_name(kind);
  c.first = std::move(first);
  c.second = std::move(second);
  return c;
}

template <class T>
class PyToeplitz : public PySource<Toeplitz<T>, T> {
  using Base = PySource<Toeplitz<T>, T>;
  using Base::source_;
  using Kept = typename Toeplitz<T>::KeptVector;
  using Kind = typename Toeplitz<T>::VectorKind;

 public:
  using Base::alone;
  using Base::into;

  PyToeplitz(std::size_t size, double std, const py::bytes& key, int rounds, int purpose, std::uint64_t offset,
             const std::string& kind, std::vector<double> first, std::vector<double> second, std::int64_t memory,
             std::size_t threads, const std::optional<std::string>& target)
      : Base(toeplitz_config(size, std, key, rounds, purpose, offset, kind, std::move(first), std::move(second), memory,
                             threads, target)) {}

  py::object current(const py::object& out) {
    return into(out, [&](T* data) { source_.current(data, check_signals); });
  }
  void restart() {
    alone([&] { source_.restart(); });
  }
  std::uint64_t block() {
    return alone([&] { return source_.block(); });
  }

  py::tuple saved() {
    return Base::saved_as([](const Kept& v, const py::array_t<T>& array) {
      return py::make_tuple(v.kind == Kind::sum ? "sum" : "slot", v.index, array);
    });
  }

  // All or nothing: the arrays are checked before the position changes.
  void set_position(std::uint64_t t, std::vector<std::uint64_t> ends, std::int64_t last_block, std::uint64_t last_t,
                    const py::list& vectors) {
    std::vector<py::object> arrays;  // keeps them alive
    std::vector<Kept> kept;
    for (const py::handle& item : vectors) {
      kept.push_back(kept_vector(item));
      arrays.push_back(item[py::int_(2)]);
    }
    alone([&] {
      source_.set_position({t, std::move(ends), {last_block, last_t}});
      source_.restore_vectors(kept);
    });
  }

 private:
  Kept kept_vector(const py::handle& item) const {
    if (!(py::isinstance<py::tuple>(item) || py::isinstance<py::list>(item)) || py::len(item) != 3) {
      throw py::value_error("a saved vector must be (kind, index, array)");
    }
    const py::object kind = item[py::int_(0)], index = item[py::int_(1)];
    const auto is = [&](const char* name) { return py::isinstance<py::str>(kind) && kind.equal(py::str(name)); };
    if (!is("sum") && !is("slot")) throw py::value_error("a saved vector must be a 'sum' or a 'slot'");
    if (!py::isinstance<py::int_>(index) || !(index >= py::int_(0) && index < py::int_(kMaxSteps))) {
      throw py::value_error("a saved vector must have an index in [0, 2**46)");
    }
    return {is("sum") ? Kind::sum : Kind::slot, index.cast<std::uint64_t>(),
            saved_array<T>(item[py::int_(2)], source_.config().size)};
  }
};

template <class T>
void bind_toeplitz_of(py::module_& m, const char* name) {
  using P = PyToeplitz<T>;
  py::class_<P> c(m, name);
  define_source<P>(c);
  c.def(
       py::init<std::size_t, double, const py::bytes&, int, int, std::uint64_t, const std::string&, std::vector<double>,
                std::vector<double>, std::int64_t, std::size_t, const std::optional<std::string>&>(),
       py::kw_only(), py::arg("size"), py::arg("std"), py::arg("key"), py::arg("rounds"), py::arg("purpose"),
       py::arg("offset"), py::arg("kind"), py::arg("first"), py::arg("second"), py::arg("memory"), py::arg("threads"),
       py::arg("target"))
      .def("current", &P::current, py::arg("out"))
      .def("restart", &P::restart)
      .def_property_readonly("block", &P::block)
      .def("set_position", &P::set_position, py::arg("t"), py::arg("ends"), py::arg("last_block"), py::arg("last_t"),
           py::arg("vectors"));
}

}  // namespace

void bind_toeplitz(py::module_& m) {
  bind_toeplitz_of<float>(m, "ToeplitzFloat32");
  bind_toeplitz_of<double>(m, "ToeplitzFloat64");
}

}  // namespace dpftrl::bindings
