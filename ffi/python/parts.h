// The parts of the extension module, each in the file of its name, and how their arguments and results are converted.
#ifndef FASTJAX_PYTHON_PARTS_H_
#define FASTJAX_PYTHON_PARTS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "planner/topology.h"

namespace fastjax::python {

void RegisterGpu(nanobind::module_* module);
void RegisterNetwork(nanobind::module_* module);
void RegisterSimulation(nanobind::module_* module);
void RegisterStatistics(nanobind::module_* module);

using TopologyWords = std::vector<int64_t>;

inline planner::Topology ToTopology(const TopologyWords& words) {
  planner::Topology topology;
  const std::string wrong = planner::ReadTopology(words.data(), static_cast<int64_t>(words.size()), &topology);
  if (!wrong.empty()) throw std::invalid_argument(wrong);
  return topology;
}

// Adds a record of a packed dtype of numpy's: its fields, one behind the other.
template <typename... Fields>
void AddRecord(std::vector<uint8_t>* records, Fields... fields) {
  const auto add = [records](const auto& field) {
    const auto* const bytes = reinterpret_cast<const uint8_t*>(&field);
    records->insert(records->end(), bytes, bytes + sizeof(field));
  };
  (add(fields), ...);
}

template <typename T>
nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>> ToNumpy(std::vector<T> values) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  const size_t size = owned->size();
  const nanobind::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>(data, {size}, owner);
}

}  // namespace fastjax::python

#endif  // FASTJAX_PYTHON_PARTS_H_
