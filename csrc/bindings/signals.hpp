// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace dpftrl::bindings {

// Lets a signal's handler (Ctrl-C) end a call that has released the GIL.
inline void check_signals() {
  const pybind11::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
}

}  // namespace dpftrl::bindings
