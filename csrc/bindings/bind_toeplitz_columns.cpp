// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/accounting/column_sums.hpp"
#include "dpftrl/accounting/toeplitz.hpp"
#include "signals.hpp"

namespace dpftrl::bindings {
namespace {

void banded(const py::array& band, const py::array& x, const py::array& out) {
  const auto n = static_cast<std::size_t>(x.size());
  const auto p = static_cast<std::size_t>(band.size());
  const double* const coefficients = readable<double>("band", band);
  const double* const from = readable<double>("x", x);
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
  const double* const decays = readable<double>("decay", decay);
  const double* const scales = readable<double>("scale", scale);
  const double* const from = readable<double>("x", x);
  double* const to = writable<double>(out, n);
  const py::gil_scoped_release release;
  solve_buffers(decays, scales, state.size(), from, n, to, state.data());
}

void column(const py::array& decay, const py::array& scale, const py::array& out) {
  const auto n = static_cast<std::size_t>(out.size());
  std::vector<double> power(buffers_of(decay, scale));
  const double* const decays = readable<double>("decay", decay);
  const double* const scales = readable<double>("scale", scale);
  double* const to = writable<double>(out, n);
  const py::gil_scoped_release release;
  buffers_column(decays, scales, power.size(), n, to, power.data());
}

Stretches checked_stretches(const py::array& lengths, const py::array& starts, const py::array& uses) {
  const auto count = static_cast<std::size_t>(lengths.size());
  const Stretches all{count, readable<std::int64_t>("lengths", lengths),
                      readable<std::int64_t>("starts", starts, count + 1), readable<std::int64_t>("uses", uses)};
  bool right = all.starts[0] == 0 && all.starts[count] == uses.size();
  for (std::size_t i = 0; i < count && right; ++i) {
    right = all.starts[i] < all.starts[i + 1] && all.starts[i + 1] <= uses.size();
    std::int64_t last = 0;
    for (std::int64_t at = all.starts[i]; right && at < all.starts[i + 1]; ++at) {
      right = last <= all.uses[at] && all.uses[at] < all.lengths[i];
      last = all.uses[at];
    }
  }
  if (!right) throw py::value_error("stretches must hold uses that never fall, in [0, length), at least one each");
  return all;
}

bool sums_of_columns(const py::array& column, const py::array& lengths, const py::array& starts, const py::array& uses,
                     std::int64_t work_limit, const py::array& out) {
  const double* const x = readable<double>("column", column);
  const Stretches all = checked_stretches(lengths, starts, uses);
  double* const to = writable<double>(out, all.count);
  const py::gil_scoped_release release;
  return column_sums(x, static_cast<std::size_t>(column.size()), all, work_limit, to, Signals{});
}

bool products_of_columns(const py::array& column, double slack, const py::array& lengths, const py::array& starts,
                         const py::array& uses, std::int64_t work_limit, const py::array& out) {
  const double* const x = readable<double>("column", column);
  const Stretches all = checked_stretches(lengths, starts, uses);
  double* const to = writable<double>(out, all.count);
  const py::gil_scoped_release release;
  return column_products(x, static_cast<std::size_t>(column.size()), slack, all, work_limit, to, Signals{});
}

void sums_of_buffers(const py::array& decay, const py::array& scale, const py::array& lengths, const py::array& starts,
                     const py::array& uses, const py::array& out) {
  const std::size_t k = buffers_of(decay, scale);
  const double* const decays = readable<double>("decay", decay);
  const double* const scales = readable<double>("scale", scale);
  const Stretches all = checked_stretches(lengths, starts, uses);
  double* const to = writable<double>(out, all.count);
  const py::gil_scoped_release release;
  buffer_sums(decays, scales, k, all, to, Signals{});
}

}  // namespace

void bind_toeplitz_columns(py::module_& m) {
  m.def("solve_banded", &banded, py::arg("band"), py::arg("x"), py::arg("out"));
  m.def("solve_buffers", &buffers, py::arg("decay"), py::arg("scale"), py::arg("x"), py::arg("out"));
  m.def("buffers_column", &column, py::arg("decay"), py::arg("scale"), py::arg("out"));
  m.def("column_sums", &sums_of_columns, py::arg("column"), py::arg("lengths"), py::arg("starts"), py::arg("uses"),
        py::arg("work_limit"), py::arg("out"));
  m.def("column_products", &products_of_columns, py::arg("column"), py::arg("slack"), py::arg("lengths"),
        py::arg("starts"), py::arg("uses"), py::arg("work_limit"), py::arg("out"));
  m.def("buffer_sums", &sums_of_buffers, py::arg("decay"), py::arg("scale"), py::arg("lengths"), py::arg("starts"),
        py::arg("uses"), py::arg("out"));
}

}  // namespace dpftrl::bindings
