// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace dpftrl::bindings {

void bind_hockey_stick(pybind11::module_& m);
void bind_info(pybind11::module_& m);
void bind_prefix_error(pybind11::module_& m);
void bind_sensitivity(pybind11::module_& m);
void bind_stream(pybind11::module_& m);
void bind_toeplitz(pybind11::module_& m);
void bind_toeplitz_columns(pybind11::module_& m);
void bind_tree(pybind11::module_& m);
void bind_workload(pybind11::module_& m);

}  // namespace dpftrl::bindings
