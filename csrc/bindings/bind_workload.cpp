// SPDX-License-Identifier: Apache-2.0

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/accounting/workload.hpp"
#include "tree_runs.hpp"

namespace dpftrl::bindings {
namespace {

std::size_t length_of(const py::array& x) { return static_cast<std::size_t>(x.size()); }

Workload workload_of(double momentum, double decay, const std::optional<py::array>& rates, std::size_t steps) {
  return {momentum, decay, rates ? readable<double>("rates", *rates, steps) : nullptr};
}

void check_blocks(const Blocks& blocks, std::size_t total) {
  std::size_t left = total;
  for (const auto& [steps, count] : blocks) {
    if (steps < 1 || count > left / steps) throw py::value_error("blocks must add up to the steps of the run");
    left -= steps * count;
  }
  if (left != 0) throw py::value_error("blocks must add up to the steps of the run");
}

void column_error(const py::array& inverse, double momentum, double decay, const std::optional<py::array>& rates,
                  const Blocks& blocks, const py::array& variance) {
  const std::size_t total = length_of(variance), size = length_of(inverse);
  check_blocks(blocks, total);
  if (size == 0) throw py::value_error("inverse must hold at least one coefficient, got none");
  const Workload workload = workload_of(momentum, decay, rates, total);
  const double* const coefficients = readable<double>("inverse", inverse, size);
  double* const out = writable<double>(variance, total);
  const py::gil_scoped_release release;
  workload_error(coefficients, size, workload, blocks, out);
}

void buffers_error(const py::array& decays, const py::array& scales, double momentum, double decay,
                   const std::optional<py::array>& rates, const Blocks& blocks, const py::array& variance) {
  const std::size_t total = length_of(variance), k = length_of(decays);
  check_blocks(blocks, total);
  const Workload workload = workload_of(momentum, decay, rates, total);
  const double* const each_decay = readable<double>("decay", decays, k);
  const double* const each_scale = readable<double>("scale", scales, k);
  double* const out = writable<double>(variance, total);
  const py::gil_scoped_release release;
  workload_error_buffers(each_decay, each_scale, k, workload, blocks, out);
}

void trees_error(const TreeRuns& trees, const std::string& variant, double momentum, double decay,
                 const std::optional<py::array>& rates, const py::array& variance) {
  if (variant != "vanilla" && variant != "honaker") {
    throw py::value_error("variant must be 'vanilla' or 'honaker', got '" + variant + "'");
  }
  const std::size_t total = length_of(variance);
  const std::vector<EqualTrees> runs = checked_trees(trees);
  if (steps_of(runs) != total) throw py::value_error("trees must add up to the steps of the run");
  const Workload workload = workload_of(momentum, decay, rates, total);
  double* const out = writable<double>(variance, total);
  const py::gil_scoped_release release;
  workload_error_trees(runs.data(), runs.size(), variant == "honaker", workload, out);
}

std::pair<double, double> column_objective(const py::array& c, const py::array& d, std::size_t uses,
                                           std::size_t separation, double momentum, double decay,
                                           const std::optional<py::array>& rates, bool last,
                                           const std::vector<std::pair<std::size_t, double>>& starts,
                                           const py::array& by_c, const py::array& by_d) {
  const std::size_t n = length_of(c);
  if (n == 0 || uses < 1 || separation < 1) {
    throw py::value_error("c must hold coefficients, and uses and separation must be >= 1");
  }
  for (const auto& [start, weight] : starts) {
    if (start >= n) throw py::value_error("starts must lie below the number of steps");
  }
  const Workload workload = workload_of(momentum, decay, rates, n);
  const double* const strategy = readable<double>("c", c, n);
  const double* const inverse = readable<double>("d", d, n);
  double* const out_c = writable<double>(by_c, n);
  double* const out_d = writable<double>(by_d, n);
  const py::gil_scoped_release release;
  const Objective found =
      workload_objective(strategy, inverse, n, uses, separation, workload, last, starts, out_c, out_d);
  return {found.log_zeta, found.log_error};
}

void lagged(const py::array& x, const py::array& y, const py::array& out) {
  const std::size_t n = length_of(x), size = length_of(out);
  if (size > n) throw py::value_error("out must not be longer than x");
  const double* const from_x = readable<double>("x", x, n);
  const double* const from_y = readable<double>("y", y, n);
  double* const to = writable<double>(out, size);
  const py::gil_scoped_release release;
  lagged_products(from_x, from_y, n, size, to);
}

void gradient_of_buffers(const py::array& decays, const py::array& scales, const py::array& by_c, const py::array& mu,
                         const py::array& d, const py::array& by_decay, const py::array& by_scale) {
  const std::size_t k = length_of(decays), n = length_of(d);
  const double* const each_decay = readable<double>("decay", decays, k);
  const double* const each_scale = readable<double>("scale", scales, k);
  const double* const c = readable<double>("by_c", by_c, n);
  const double* const multipliers = readable<double>("mu", mu, n);
  const double* const inverse = readable<double>("d", d, n);
  double* const out_decay = writable<double>(by_decay, k);
  double* const out_scale = writable<double>(by_scale, k);
  const py::gil_scoped_release release;
  buffers_gradient(each_decay, each_scale, k, c, multipliers, inverse, n, out_decay, out_scale);
}

}  // namespace

void bind_workload(py::module_& m) {
  m.def("workload_error", &column_error, py::arg("inverse"), py::arg("momentum"), py::arg("decay"), py::arg("rates"),
        py::arg("blocks"), py::arg("variance"));
  m.def("workload_error_buffers", &buffers_error, py::arg("decay"), py::arg("scale"), py::arg("momentum"),
        py::arg("weight_decay"), py::arg("rates"), py::arg("blocks"), py::arg("variance"));
  m.def("workload_error_trees", &trees_error, py::arg("trees"), py::arg("variant"), py::arg("momentum"),
        py::arg("decay"), py::arg("rates"), py::arg("variance"));
  m.def("workload_objective", &column_objective, py::arg("c"), py::arg("d"), py::arg("uses"), py::arg("separation"),
        py::arg("momentum"), py::arg("decay"), py::arg("rates"), py::arg("last"), py::arg("starts"), py::arg("by_c"),
        py::arg("by_d"));
  m.def("lagged_products", &lagged, py::arg("x"), py::arg("y"), py::arg("out"));
  m.def("buffers_gradient", &gradient_of_buffers, py::arg("decay"), py::arg("scale"), py::arg("by_c"), py::arg("mu"),
        py::arg("d"), py::arg("by_decay"), py::arg("by_scale"));
}

}  // namespace dpftrl::bindings
