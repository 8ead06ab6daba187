// SPDX-License-Identifier: Apache-2.0

#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/accounting/toeplitz.hpp"

namespace dpftrl::bindings {
namespace {

// The elements of an array of float64 that is read.
const double* readable(const py::array& x, const char* name) {
  if (!py::isinstance<py::array_t<double>>(x) || x.ndim() != 1 || (x.flags() & py::array::c_style) == 0) {
    throw py::type_error(std::string(name) + " must be a one-dimensional C-contiguous float64 array");
  }
  return static_cast<const double*>(x.data());
}

void banded(const py::array& band, const py::array& x, const py::array& out) {
  const auto n = static_cast<std::size_t>(x.size());
  const auto p = static_cast<std::size_t>(band.size());
  const double* const coefficients = readable(band, "band");
  const double* const from = readable(x, "x");
  double* const to = writable<double>(out, n);
  if (p == 0) throw py::value_error("band must hold at least one coefficient, got none");
  const py::gil_scoped_release release;
  solve_banded(coefficients, p, from, n, to);
}

std::size_t buffers_of(const py::array& decay, const py::array& scale) {
  if (decay.size() != scale.size()) {
    throw py::value_error("decay and scale must be of one length, got " + std::to_string(decay.size()) + " and " +
                          std::to_string(scale.size()));
  }
  return static_cast<std::size_t>(decay.size());
}

void buffers(const py::array& decay, const py::array& scale, const py::array& x, const py::array& out) {
  const auto n = static_cast<std::size_t>(x.size());
  std::vector<double> state(buffers_of(decay, scale));
  const double* const decays = readable(decay, "decay");
  const double* const scales = readable(scale, "scale");
  const double* const from = readable(x, "x");
  double* const to = writable<double>(out, n);
  const py::gil_scoped_release release;
  solve_buffers(decays, scales, state.size(), from, n, to, state.data());
}

void column(const py::array& decay, const py::array& scale, const py::array& out) {
  const auto n = static_cast<std::size_t>(out.size());
  std::vector<double> power(buffers_of(decay, scale));
  const double* const decays = readable(decay, "decay");
  const double* const scales = readable(scale, "scale");
  double* const to = writable<double>(out, n);
  const py::gil_scoped_release release;
  buffers_column(decays, scales, power.size(), n, to, power.data());
}

}  // namespace

void bind_toeplitz_columns(py::module_& m) {
  m.def("solve_banded", &banded, py::arg("band"), py::arg("x"), py::arg("out"));
  m.def("solve_buffers", &buffers, py::arg("decay"), py::arg("scale"), py::arg("x"), py::arg("out"));
  m.def("buffers_column", &column, py::arg("decay"), py::arg("scale"), py::arg("out"));
}

}  // namespace dpftrl::bindings
