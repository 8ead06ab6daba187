// SPDX-License-Identifier: Apache-2.0

// The stream by itself, each target by name: for audits and tests.

#include <string>

#include "arrays.hpp"
#include "bindings.hpp"
#include "dpftrl/infra/float_environment.hpp"
#include "dpftrl/noise/chacha.hpp"
#include "dpftrl/noise/gaussian.hpp"

namespace dpftrl::bindings {
namespace {

void check_rounds(int rounds) {
  if (!valid_rounds(rounds)) throw py::value_error("rounds must be 8, 12 or 20, got " + std::to_string(rounds));
}

template <class T>
void normals(const std::string& target, const py::bytes& key, int rounds, int purpose, std::uint32_t tree, int level,
             std::uint64_t index, std::uint64_t first, double scale, const py::array& out) {
  check_rounds(rounds);
  if (!(purpose >= 0 && purpose <= 255)) throw py::value_error("purpose must be in [0, 255]");
  // Node ids have 48 bits.
  if (!(level >= 0 && level <= 47 && index < (std::uint64_t{1} << (47 - level)))) {
    throw py::value_error("node must have a level in [0, 47] and an index in [0, 2**(47 - level))");
  }
  const auto size = static_cast<std::size_t>(out.size());
  T* data = writable<T>(out, size);
  if (!(first <= DtypeTraits<T>::max_coordinates && size <= DtypeTraits<T>::max_coordinates - first)) {
    throw py::value_error("coordinates out of range");
  }
  const NodeStream stream{key_from_bytes(key), rounds, static_cast<Purpose>(purpose), tree, node_id(level, index)};
  const TileKernels<T>& kernels = DtypeTraits<T>::kernels(*target_by_name(target));
  const FloatEnvironment guard;
  kernels.fill(stream, first, size, static_cast<T>(scale), data);
}

void keystream16(const std::string& target, const py::bytes& key, int rounds, const py::array_t<std::uint32_t>& counter,
                 const py::array& out) {
  check_rounds(rounds);
  if (counter.size() != 4) throw py::value_error("counter must have 4 words");
  if (!py::isinstance<py::array_t<std::uint32_t>>(out) || out.size() != 256 ||
      (out.flags() & py::array::c_style) == 0) {
    throw py::value_error("out must be a C-contiguous uint32 array of 256 elements");
  }
  Counter c;
  for (py::ssize_t i = 0; i < 4; ++i) c.words[i] = counter.at(i);
  target_by_name(target)->keystream16(key_from_bytes(key), c, rounds,
                                      static_cast<std::uint32_t*>(static_cast<py::array>(out).mutable_data()));
}

}  // namespace

void bind_stream(py::module_& m) {
  for (const bool f32 : {true, false}) {
    m.def(f32 ? "normals_f32" : "normals_f64", f32 ? &normals<float> : &normals<double>, py::arg("target"),
          py::arg("key"), py::arg("rounds"), py::arg("purpose"), py::arg("tree"), py::arg("level"), py::arg("index"),
          py::arg("first"), py::arg("scale"), py::arg("out"));
  }
  m.def("keystream16", &keystream16, py::arg("target"), py::arg("key"), py::arg("rounds"), py::arg("counter"),
        py::arg("out"));
  m.def(
      "normal_pair_f32",
      [](std::uint64_t radius, std::uint32_t angle) {
        const Pair32 z = normal_pair_f32(radius, angle);
        return py::make_tuple(z.first, z.second);
      },
      py::arg("radius"), py::arg("angle"));
  m.def(
      "normal_pair_f64",
      [](std::uint64_t radius, std::uint64_t angle, std::uint64_t extension) {
        const Pair64 z = normal_pair_f64(radius, angle, extension);
        return py::make_tuple(z.first, z.second);
      },
      py::arg("radius"), py::arg("angle"), py::arg("extension"));
}

}  // namespace dpftrl::bindings
