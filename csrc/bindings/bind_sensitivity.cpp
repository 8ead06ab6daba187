// SPDX-License-Identifier: Apache-2.0

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/accounting/sensitivity.hpp"
#include "signals.hpp"
#include "tree_runs.hpp"

namespace dpftrl::bindings {
namespace {

using Int64Array = py::array_t<std::int64_t, py::array::c_style>;

void check_at_least_one(const char* name, std::int64_t x) {
  if (x < 1) throw py::value_error(std::string(name) + " must be an integer >= 1, got " + std::to_string(x));
}

Statistic counts_by_name(const std::string& name) {
  if (name == "all_nodes") return Statistic::all_nodes;
  if (name == "even_nodes") return Statistic::even_nodes;
  throw py::value_error("statistic must be 'all_nodes' or 'even_nodes', got '" + name + "'");
}

Order checked_order(const std::vector<EqualTrees>& runs, const py::array& ids, const py::array& offsets,
                    std::int64_t n_ids) {
  const std::int64_t* id = readable<std::int64_t>("ids", ids);
  const std::int64_t* offset = readable<std::int64_t>("offsets", offsets);
  const std::uint64_t steps = steps_of(runs);
  if (static_cast<std::uint64_t>(offsets.size()) != steps + 1) {
    throw py::value_error("offsets must have one element more than the " + std::to_string(steps) +
                          " steps of the trees, got " + std::to_string(offsets.size()));
  }
  bool in_order = offset[0] == 0 && offset[steps] == ids.size();
  for (std::uint64_t t = 0; t < steps; ++t) in_order = in_order && offset[t] <= offset[t + 1];
  if (!in_order) throw py::value_error("offsets must go from 0 to the number of ids and never decrease");
  for (py::ssize_t i = 0; i < ids.size(); ++i) {
    if (!(id[i] >= 0 && id[i] < n_ids)) {
      throw py::value_error("ids must be integers in [0, " + std::to_string(n_ids) + "), got " + std::to_string(id[i]));
    }
  }
  return {id, offset, static_cast<std::int64_t>(steps), n_ids};
}

// `out` is written while the order is read: they may not share memory.
void check_apart(const py::array& out, const py::array& ids, const py::array& offsets) {
  const auto begins = [](const py::array& a) { return reinterpret_cast<std::uintptr_t>(a.data()); };
  const auto ends = [&](const py::array& a) { return begins(a) + static_cast<std::uintptr_t>(a.nbytes()); };
  for (const py::array* read : {&ids, &offsets}) {
    if (begins(out) < ends(*read) && begins(*read) < ends(out)) {
      throw py::value_error("out must not overlap ids or offsets, got one that does");
    }
  }
}

Effort checked_effort(int place_bits, int weight_bits, std::int64_t work_limit) {
  const auto in_range = [](int bits) { return bits >= 0 && bits <= 40; };
  if (!in_range(place_bits) || !in_range(weight_bits)) {
    throw py::value_error("place_bits and weight_bits must be in [0, 40], got " + std::to_string(place_bits) + " and " +
                          std::to_string(weight_bits));
  }
  return {place_bits, weight_bits, work_limit};
}

std::optional<std::int64_t> counts_of_separation(const TreeRuns& trees, std::int64_t most_uses, std::int64_t separation,
                                                 const std::string& statistic, int place_bits,
                                                 std::int64_t work_limit) {
  const std::vector<EqualTrees> runs = checked_trees(trees);
  const Statistic counted = counts_by_name(statistic);
  const Effort effort = checked_effort(place_bits, 0, work_limit);
  check_at_least_one("most_uses", most_uses);
  check_at_least_one("separation", separation);
  const py::gil_scoped_release released;
  return min_separation_counts(runs.data(), runs.size(), most_uses, separation, counted, effort, Signals{});
}

std::optional<double> weights_of_separation(const TreeRuns& trees, std::int64_t most_uses, std::int64_t separation,
                                            int place_bits, int weight_bits, std::int64_t work_limit) {
  const std::vector<EqualTrees> runs = checked_trees(trees);
  const Effort effort = checked_effort(place_bits, weight_bits, work_limit);
  check_at_least_one("most_uses", most_uses);
  check_at_least_one("separation", separation);
  const py::gil_scoped_release released;
  return min_separation_weights(runs.data(), runs.size(), most_uses, separation, effort, Signals{});
}

void counts_of_order(const TreeRuns& trees, const py::array& ids, const py::array& offsets,
                     const std::string& statistic, const py::array& out) {
  const std::vector<EqualTrees> runs = checked_trees(trees);
  const Statistic counted = counts_by_name(statistic);
  const Order order = checked_order(runs, ids, offsets, out.size());
  auto* values = writable<std::int64_t>(out, static_cast<std::size_t>(out.size()));
  check_apart(out, ids, offsets);
  const py::gil_scoped_release released;
  order_counts(order, runs.data(), runs.size(), counted, values, Signals{});
}

void weights_of_order(const TreeRuns& trees, const py::array& ids, const py::array& offsets, const py::array& out) {
  const std::vector<EqualTrees> runs = checked_trees(trees);
  const Order order = checked_order(runs, ids, offsets, out.size());
  auto* values = writable<double>(out, static_cast<std::size_t>(out.size()));
  check_apart(out, ids, offsets);
  const py::gil_scoped_release released;
  order_weights(order, runs.data(), runs.size(), values, Signals{});
}

std::int64_t levels_of_order(const TreeRuns& trees, const py::array& ids, const py::array& offsets,
                             std::int64_t n_ids) {
  const std::vector<EqualTrees> runs = checked_trees(trees);
  const Order order = checked_order(runs, ids, offsets, n_ids);
  const py::gil_scoped_release released;
  return order_level_bound(order, runs.data(), runs.size(), Signals{});
}

}  // namespace

void bind_sensitivity(py::module_& m) {
  m.def("min_separation_counts", &counts_of_separation, py::arg("trees"), py::arg("most_uses"), py::arg("separation"),
        py::arg("statistic"), py::arg("place_bits"), py::arg("work_limit"));
  m.def("min_separation_weights", &weights_of_separation, py::arg("trees"), py::arg("most_uses"), py::arg("separation"),
        py::arg("place_bits"), py::arg("weight_bits"), py::arg("work_limit"));
  m.def("order_counts", &counts_of_order, py::arg("trees"), py::arg("ids"), py::arg("offsets"), py::arg("statistic"),
        py::arg("out"));
  m.def("order_weights", &weights_of_order, py::arg("trees"), py::arg("ids"), py::arg("offsets"), py::arg("out"));
  m.def("order_level_bound", &levels_of_order, py::arg("trees"), py::arg("ids"), py::arg("offsets"), py::arg("n_ids"));
}

}  // namespace dpftrl::bindings
