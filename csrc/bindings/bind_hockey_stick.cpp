// SPDX-License-Identifier: Apache-2.0

// The sensitivity comes as two doubles, so that an integer of 64 bits is not rounded.

#include <cmath>
#include <string>
#include <utility>

#include "bindings.hpp"
#include "dpftrl/accounting/hockey_stick.hpp"

namespace py = pybind11;

namespace dpftrl::bindings {
namespace {

void check(bool holds, const char* expected, double got) {
  if (!holds) throw py::value_error(std::string(expected) + ", got " + std::to_string(got));
}

void check_sigma(double x) { check(x > 0 && std::isfinite(x), "noise_multiplier must be a finite number > 0", x); }
void check_epsilon(double x) { check(x >= 0 && std::isfinite(x), "epsilon must be a finite number >= 0", x); }
void check_delta(double x) { check(x > 0 && x < 1, "delta must be a number with 0 < x < 1", x); }

DoubleDouble sensitivity(double high, double low) {
  check(high > 0 && std::isfinite(high) && high + low == high,
        "sensitivity_squared must be a finite number > 0 in two parts", high);
  return {high, low};
}

std::pair<double, bool> gaussian_delta(double sigma, double zeta, double zeta_low, double epsilon) {
  check_sigma(sigma);
  check_epsilon(epsilon);
  const DoubleDouble z = sensitivity(zeta, zeta_low);
  const py::gil_scoped_release released;
  const Certified found = smallest_delta(sigma, z, epsilon);
  return {found.value, found.certified};
}

std::pair<double, bool> gaussian_epsilon(double sigma, double zeta, double zeta_low, double delta) {
  check_sigma(sigma);
  check_delta(delta);
  const DoubleDouble z = sensitivity(zeta, zeta_low);
  const py::gil_scoped_release released;
  const Certified found = smallest_epsilon(sigma, z, delta);
  return {found.value, found.certified};
}

std::pair<double, bool> gaussian_noise_multiplier(double epsilon, double delta, double zeta, double zeta_low) {
  check_epsilon(epsilon);
  check_delta(delta);
  const DoubleDouble z = sensitivity(zeta, zeta_low);
  const py::gil_scoped_release released;
  const Certified found = smallest_noise_multiplier(epsilon, delta, z);
  return {found.value, found.certified};
}

}  // namespace

void bind_hockey_stick(py::module_& m) {
  m.def("gaussian_delta", &gaussian_delta, py::arg("noise_multiplier"), py::arg("sensitivity_squared"),
        py::arg("sensitivity_squared_low"), py::arg("epsilon"));
  m.def("gaussian_epsilon", &gaussian_epsilon, py::arg("noise_multiplier"), py::arg("sensitivity_squared"),
        py::arg("sensitivity_squared_low"), py::arg("delta"));
  m.def("gaussian_noise_multiplier", &gaussian_noise_multiplier, py::arg("epsilon"), py::arg("delta"),
        py::arg("sensitivity_squared"), py::arg("sensitivity_squared_low"));
}

}  // namespace dpftrl::bindings
