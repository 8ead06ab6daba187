// SPDX-License-Identifier: Apache-2.0

// Tree<float> and Tree<double>: convert, check, release the GIL, call. A tree may be used from several threads: its
// calls take turns.

#include <pybind11/stl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/noise/tree.hpp"
#include "signals.hpp"

namespace dpftrl::bindings {
namespace {

Variant variant_by_name(const std::string& name) {
  if (name == "vanilla") return Variant::vanilla;
  if (name == "honaker") return Variant::honaker;
  throw py::value_error("variant must be 'vanilla' or 'honaker', got '" + name + "'");
}

// A tree's calls take turns. A signal handler that runs in a call's poll may come back on the same thread: it is
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

template <class T>
class PyTree {
 public:
  PyTree(std::size_t size, double std, const py::bytes& key, int rounds, int purpose, std::uint64_t offset,
         const std::string& variant, std::int64_t memory, std::size_t threads, const std::optional<std::string>& target)
      : tree_([&] {
          TreeConfig c;
          c.key = key_from_bytes(key);
          c.rounds = rounds;
          c.purpose = static_cast<Purpose>(purpose);
          c.offset = offset;
          c.size = size;
          c.std = std;
          c.variant = variant_by_name(variant);
          c.memory.vectors = memory < 0 ? Memory::kStored : static_cast<std::size_t>(memory);
          c.threads = threads;
          c.kernels = target ? target_by_name(*target) : nullptr;
          return c;
        }()) {}

  // Runs call(data) on the elements of out, or of a new array when out is None; returns the array.
  template <class Call>
  py::object into(const py::object& out, Call&& call) {
    py::object array = out;
    const std::size_t size = tree_.config().size;
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
    return into(out, [&](T* data) { tree_.step(data, check_signals); });
  }
  py::object residual(const py::object& out) {
    return into(out, [&](T* data) { tree_.residual(data, check_signals); });
  }
  py::object prefix(std::uint64_t t, const py::object& out) {
    return into(out, [&](T* data) { tree_.prefix(t, data, check_signals); });
  }
  py::object node(int level, std::uint64_t index, const py::object& out) {
    return into(out, [&](T* data) { tree_.node({level, index}, data, check_signals); });
  }

  template <class Call>
  auto alone(Call&& call) {
    const py::gil_scoped_release release;
    const Turns::Turn turn(turns_);
    return call();
  }

  void advance_to(std::uint64_t t) {
    alone([&] { tree_.advance_to(t); });
  }
  void restart(bool complete) {
    alone([&] { tree_.restart(complete, check_signals); });
  }
  std::uint64_t t() {
    return alone([&] { return tree_.t(); });
  }
  std::uint64_t tree() {
    return alone([&] { return tree_.tree(); });
  }
  std::size_t allocated() {
    return alone([&] { return tree_.allocated(); });
  }

  py::tuple position() {
    const TreePosition p = alone([&] { return tree_.position(); });
    return py::make_tuple(p.t, p.ends, p.last.tree, p.last.t);
  }

  py::list kept_vectors() {
    std::optional<Turns::Turn> turn;
    {
      const py::gil_scoped_release release;
      turn.emplace(turns_);
    }
    static constexpr const char* names[] = {"carry", "last", "average"};
    py::list kept;
    for (const auto& v : tree_.kept_vectors()) {
      py::array_t<T> copy(static_cast<py::ssize_t>(tree_.config().size), v.data);
      kept.append(py::make_tuple(names[static_cast<int>(v.kind)], v.node.level, v.node.index, copy));
    }
    return kept;
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
      tree_.set_position({t, std::move(ends), {last_tree, last_t}});
      for (const auto& v : kept) tree_.restore_vector(v);
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
    const std::size_t size = tree_.config().size;
    if (!py::isinstance<py::array_t<T>>(array) ||
        (py::reinterpret_borrow<py::array>(array).flags() & py::array::c_style) == 0 ||
        static_cast<std::size_t>(py::reinterpret_borrow<py::array>(array).size()) != size) {
      throw py::value_error("a saved vector must be a C-contiguous " + std::string(DtypeTraits<T>::name) +
                            " array of " + std::to_string(size) + " elements");
    }
    return {is("carry")  ? Kind::carry
            : is("last") ? Kind::last
                         : Kind::average,
            {level.cast<int>(), index.cast<std::uint64_t>()},
            static_cast<const T*>(py::reinterpret_borrow<py::array>(array).data())};
  }

  Tree<T> tree_;
  Turns turns_;
};

template <class T>
void bind(py::module_& m, const char* name) {
  using P = PyTree<T>;
  py::class_<P>(m, name)
      .def(py::init<std::size_t, double, const py::bytes&, int, int, std::uint64_t, const std::string&, std::int64_t,
                    std::size_t, const std::optional<std::string>&>(),
           py::kw_only(), py::arg("size"), py::arg("std"), py::arg("key"), py::arg("rounds"), py::arg("purpose"),
           py::arg("offset"), py::arg("variant"), py::arg("memory"), py::arg("threads"), py::arg("target"))
      .def("step", &P::step, py::arg("out"))
      .def("residual", &P::residual, py::arg("out"))
      .def("prefix", &P::prefix, py::arg("t"), py::arg("out"))
      .def("node", &P::node, py::arg("level"), py::arg("index"), py::arg("out"))
      .def("advance_to", &P::advance_to, py::arg("t"))
      .def("restart", &P::restart, py::arg("complete"))
      .def_property_readonly("t", &P::t)
      .def_property_readonly("tree", &P::tree)
      .def_property_readonly("allocated_vectors", &P::allocated)
      .def("position", &P::position)
      .def("kept_vectors", &P::kept_vectors)
      .def("set_position", &P::set_position, py::arg("t"), py::arg("ends"), py::arg("last_tree"), py::arg("last_t"),
           py::arg("vectors"));
}

}  // namespace

void bind_tree(py::module_& m) {
  bind<float>(m, "TreeFloat32");
  bind<double>(m, "TreeFloat64");
}

}  // namespace dpftrl::bindings
