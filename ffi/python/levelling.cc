// Levelling of experts on the host.
#include "planner/levelling.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <vector>

#include "python/arguments.h"
#include "python/register.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

using Rows = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr int64_t kMost = std::numeric_limits<int32_t>::max();

planner::LevellingShape ToShape(int32_t servers, int32_t devices, int32_t copies, size_t experts) {
  const int64_t ranks = int64_t{servers} * devices;
  const auto count = static_cast<int64_t>(experts);
  if (servers < 1 || devices < 1 || copies < 1) throw std::invalid_argument("servers, devices and copies are positive");
  if (count == 0 || count > kMost || count % ranks != 0) {
    throw std::invalid_argument("experts are not a multiple of the devices");
  }
  return {servers, devices, static_cast<int32_t>(count / ranks), copies};
}

nb::tuple LevelExperts(const Rows& rows, int32_t servers, int32_t devices, int32_t copies, int64_t cost_rows) {
  const planner::LevellingShape shape = ToShape(servers, devices, copies, rows.size());
  if (cost_rows < 0 || cost_rows > kMost / copies)
    throw std::invalid_argument("copies do not cost less than 2^31 rows");
  std::vector<int32_t> narrow;
  int64_t total = 0;
  for (size_t e = 0; e < rows.size(); ++e) {
    if (rows.data()[e] < 0 || rows.data()[e] > kMost - total) {
      throw std::invalid_argument("rows are negative, or not less than 2^31 together");
    }
    total += rows.data()[e];
    narrow.push_back(static_cast<int32_t>(rows.data()[e]));
  }
  std::vector<int32_t> slots(static_cast<size_t>(shape.ranks()) * copies);
  std::vector<int32_t> levelled(narrow.size() + slots.size());
  planner::Leveller(shape, cost_rows).Level(narrow.data(), {slots.data(), levelled.data()});
  return nb::make_tuple(ToNumpy(slots), ToNumpy(levelled));
}

}  // namespace

void RegisterLevelling(nb::module_* module) {
  module->def("level_experts", &LevelExperts, nb::arg("rows"), nb::arg("servers"), nb::arg("devices"),
              nb::arg("copies"), nb::arg("cost_rows"),
              "The expert of each slot of each device, and the rows of each group of each device.");
}

}  // namespace fastjax::python
