// SPDX-License-Identifier: Apache-2.0

#include "bindings.hpp"

PYBIND11_MODULE(_core, m, pybind11::mod_gil_not_used()) {
  m.doc() = "The C++ core. Use it through dpftrl_fast.noise.tree.";
  dpftrl::bindings::bind_hockey_stick(m);
  dpftrl::bindings::bind_info(m);
  dpftrl::bindings::bind_prefix_error(m);
  dpftrl::bindings::bind_sensitivity(m);
  dpftrl::bindings::bind_stream(m);
  dpftrl::bindings::bind_toeplitz(m);
  dpftrl::bindings::bind_toeplitz_columns(m);
  dpftrl::bindings::bind_tree(m);
  dpftrl::bindings::bind_workload(m);
}
