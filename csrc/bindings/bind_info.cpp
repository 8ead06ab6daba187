// SPDX-License-Identifier: Apache-2.0

#include "bindings.hpp"
#include "dpftrl/build_info.hpp"
#include "dpftrl/noise/noise_kernel.hpp"
#include "dpftrl/noise/stream.hpp"

namespace py = pybind11;

namespace dpftrl::bindings {

void bind_info(py::module_& m) {
  m.attr("STREAM_VERSION") = kStreamVersion;
  const char* doc = R"(Return version, compiler, flags and active instruction set of the compiled core.

Examples
--------
>>> from dpftrl_fast import STREAM_VERSION, build_info
>>> info = build_info()
>>> info["stream_version"] == STREAM_VERSION, info["active_target"] in info["targets"]
(True, True)
)";
  const auto build_info = [] {
    py::list targets;
    const TargetList available = available_targets();
    for (std::size_t i = 0; i < available.count; ++i) targets.append(available.items[i]->name);
    py::dict info;
    info["version"] = build_facts::kVersion;
    info["stream_version"] = kStreamVersion;
    info["compiler"] = build_facts::kCompiler;
    info["flags"] = build_facts::kFlags;
    info["target_flags"] = build_facts::kIsaFlags;
    info["build_type"] = build_facts::kBuildType;
    info["system"] = build_facts::kSystem;
    info["targets"] = targets;
    info["active_target"] = active_kernels().name;
    info["rejected_target"] = rejected_target() != nullptr ? py::object(py::str(rejected_target())) : py::none();
    return info;
  };
  m.def("build_info", build_info, doc);
}

}  // namespace dpftrl::bindings
