// Levelling of experts on the host.
#include "planner/levelling.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "python/arguments.h"
#include "python/register.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

using Rows = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Of arguments that fastjax.host.levelling has checked.
nb::tuple LevelExperts(const Rows& rows, int32_t servers, int32_t devices, int32_t copies, int64_t cost_rows) {
  const auto experts = static_cast<int32_t>(rows.size());
  const planner::LevellingShape shape{servers, devices, experts / (servers * devices), copies};
  std::vector<int32_t> slots(static_cast<size_t>(shape.ranks()) * copies);
  std::vector<int32_t> levelled(rows.size() + slots.size());
  planner::Leveller(shape, cost_rows).Level(rows.data(), {slots.data(), levelled.data()});
  return nb::make_tuple(ToNumpy(slots), ToNumpy(levelled));
}

}  // namespace

void RegisterLevelling(nb::module_* module) {
  module->def("level_experts", &LevelExperts, nb::arg("rows"), nb::arg("servers"), nb::arg("devices"),
              nb::arg("copies"), nb::arg("cost_rows"),
              "The expert of each slot of each device, and the rows of each group of each device.");
}

}  // namespace fastjax::python
