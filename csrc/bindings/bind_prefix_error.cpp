// SPDX-License-Identifier: Apache-2.0

#include <string>
#include <vector>

#include <pybind11/stl.h>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/accounting/prefix_error.hpp"
#include "tree_runs.hpp"

namespace dpftrl::bindings {
namespace {

void run_error(const TreeRuns& trees, const std::string& variant, double momentum, const py::array& variance,
               const py::array& smoothed) {
  if (variant != "vanilla" && variant != "honaker") {
    throw py::value_error("variant must be 'vanilla' or 'honaker', got '" + variant + "'");
  }
  if (!(momentum >= 0 && momentum < 1)) {
    throw py::value_error("momentum must be a number with 0 <= momentum < 1, got " + std::to_string(momentum));
  }
  const auto total = static_cast<std::size_t>(variance.size());
  const std::vector<EqualTrees> runs = checked_trees(trees);
  if (const std::uint64_t steps = steps_of(runs); steps != total) {
    throw py::value_error("out must have one element for each of the " + std::to_string(steps) +
                          " steps of the trees, got " + std::to_string(total));
  }
  double* out_variance = writable<double>(variance, total);
  double* out_smoothed = writable<double>(smoothed, total);
  if (out_variance < out_smoothed + total && out_smoothed < out_variance + total) {
    throw py::value_error("out must be two arrays that do not overlap");
  }
  const py::gil_scoped_release released;
  prefix_error(runs.data(), runs.size(), variant == "honaker", momentum, out_variance, out_smoothed);
}

}  // namespace

void bind_prefix_error(py::module_& m) {
  m.def("prefix_error", &run_error, py::arg("trees"), py::arg("variant"), py::arg("momentum"), py::arg("variance"),
        py::arg("smoothed"));
}

}  // namespace dpftrl::bindings
