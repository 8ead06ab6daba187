// SPDX-License-Identifier: Apache-2.0

// Tree<float> and Tree<double>.

#include <optional>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "dpftrl/noise/tree.hpp"
#include "py_source.hpp"

namespace dpftrl::bindings {
namespace {

Variant variant_by_name(const std::string& name) {
  if (name == "vanilla") return Variant::vanilla;
  if (name == "honaker") return Variant::honaker;
  throw py::value_error("variant must be 'vanilla' or 'honaker', got '" + name + "'");
}

template <class T>
TreeConfig tree_config(std::size_t size, double std, const py::bytes& key, int rounds, int purpose,
                       std::uint64_t offset, const std::string& variant, std::int64_t memory, std::size_t threads,
                       const std::optional<std::string>& target) {
  TreeConfig c;
  configure(c, size, std, key, rounds, purpose, offset, memory, threads, target);
  c.variant = variant_by_name(variant);
  return c;
}

template <class T>
class PyTree : public PySource<Tree<T>, T> {
  using Base = PySource<Tree<T>, T>;
  using Base::source_;

 public:
  using Base::alone;
  using Base::into;

  PyTree(std::size_t size, double std, const py::bytes& key, int rounds, int purpose, std::uint64_t offset,
         const std::string& variant, std::int64_t memory, std::size_t threads, const std::optional<std::string>& target)
      : Base(tree_config<T>(size, std, key, rounds, purpose, offset, variant, memory, threads, target)) {}

  py::object node(int level, std::uint64_t index, const py::object& out) {
    return into(out, [&](T* data) { source_.node({level, index}, data, check_signals); });
  }

  void restart(bool complete) {
    alone([&] { source_.restart(complete, check_signals); });
  }
  std::uint64_t tree() {
    return alone([&] { return source_.tree(); });
  }
  py::tuple saved() {
    return Base::saved_as([](const auto& v, const py::array_t<T>& array) {
      constexpr const char* names[] = {"carry", "last", "average"};
      return py::make_tuple(names[static_cast<int>(v.kind)], v.node.level, v.node.index, array);
    });
  }

  // All or nothing: the arrays are checked before the position changes. They are secret: no message shows them.
  void set_position(std::uint64_t t, std::vector<std::uint64_t> ends, std::int64_t last_tree, std::uint64_t last_t,
                    const py::list& vectors) {
    std::vector<py::array> arrays;  // keeps them alive
    std::vector<typename Tree<T>::KeptVector> kept;
    for (const py::handle& item : vectors) {
      kept.push_back(kept_vector(item));
      arrays.push_back(py::reinterpret_borrow<py::array>(item[py::int_(3)]));
    }
    alone([&] {
      source_.set_position({t, std::move(ends), {last_tree, last_t}});
      for (const auto& v : kept) source_.restore_vector(v);
    });
  }

 private:
  typename Tree<T>::KeptVector kept_vector(const py::handle& item) const {
    using Kind = typename Tree<T>::VectorKind;
    if (!(py::isinstance<py::tuple>(item) || py::isinstance<py::list>(item)) || py::len(item) != 4) {
      throw py::value_error("a saved vector must be (kind, level, index, array)");
    }
    const py::object kind = item[py::int_(0)], level = item[py::int_(1)], index = item[py::int_(2)];
    const auto is = [&](const char* name) { return py::isinstance<py::str>(kind) && kind.equal(py::str(name)); };
    if (!is("carry") && !is("last") && !is("average")) {
      throw py::value_error("a saved vector must be a 'carry', a 'last' or an 'average'");
    }
    const auto in_range = [](const py::object& number, std::uint64_t end) {
      return py::isinstance<py::int_>(number) && number >= py::int_(0) && number < py::int_(end);
    };
    if (!in_range(level, kMaxLevel + 1) || !in_range(index, kMaxSteps)) {
      throw py::value_error("a saved vector must have a level in [0, 46] and an index in [0, 2**46)");
    }
    const py::object array = item[py::int_(3)];
    return {is("carry")  ? Kind::carry
            : is("last") ? Kind::last
                         : Kind::average,
            {level.cast<int>(), index.cast<std::uint64_t>()},
            saved_array<T>(array, source_.config().size)};
  }
};

template <class T>
void bind_tree_of(py::module_& m, const char* name) {
  using P = PyTree<T>;
  py::class_<P> c(m, name);
  define_source<P>(c);
  c.def(py::init<std::size_t, double, const py::bytes&, int, int, std::uint64_t, const std::string&, std::int64_t,
                 std::size_t, const std::optional<std::string>&>(),
        py::kw_only(), py::arg("size"), py::arg("std"), py::arg("key"), py::arg("rounds"), py::arg("purpose"),
        py::arg("offset"), py::arg("variant"), py::arg("memory"), py::arg("threads"), py::arg("target"))
      .def("node", &P::node, py::arg("level"), py::arg("index"), py::arg("out"))
      .def("restart", &P::restart, py::arg("complete"))
      .def_property_readonly("tree", &P::tree)
      .def("set_position", &P::set_position, py::arg("t"), py::arg("ends"), py::arg("last_tree"), py::arg("last_t"),
           py::arg("vectors"));
}

}  // namespace

void bind_tree(py::module_& m) {
  bind_tree_of<float>(m, "TreeFloat32");
  bind_tree_of<double>(m, "TreeFloat64");
}

}  // namespace dpftrl::bindings
