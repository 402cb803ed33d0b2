#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "planner/scheduler_info.h"
#include "python/register.h"

namespace nb = nanobind;

namespace fastjax::python {
namespace {

using planner::Choosing;
using planner::NicNeed;
using planner::SchedulerTraits;

std::vector<std::string> SchedulerNames() {
  std::vector<std::string> names;
  for (const auto name : planner::SchedulerNames()) names.emplace_back(name);
  return names;
}

std::vector<SchedulerTraits> AllTraits() {
  std::vector<SchedulerTraits> all;
  all.reserve(static_cast<size_t>(planner::NumSchedulers()));
  for (int32_t number = 0; number < planner::NumSchedulers(); ++number) {
    all.push_back(planner::GetSchedulerInfo(static_cast<planner::Scheduler>(number)).traits);
  }
  return all;
}

}  // namespace

void RegisterSchedulers(nb::module_* module) {
  nb::class_<SchedulerTraits>(*module, "SchedulerTraits", "What other code must know of a scheduler.")
      .def_ro("name", &SchedulerTraits::name, "What scheduler= takes.")
      .def_ro("description", &SchedulerTraits::description, "What its plans do.")
      .def_ro("order", &SchedulerTraits::order, "Lists for users are sorted by it.")
      .def_prop_ro(
          "needs_own_nics", [](const SchedulerTraits& traits) { return traits.nics == NicNeed::kEachDevice; },
          "Whether every device's own NIC must work; rows go round those that have failed otherwise.")
      .def_prop_ro(
          "chooses", [](const SchedulerTraits& traits) { return traits.choosing == Choosing::kChooses; },
          "Whether its plans are those of another scheduler, which HostPlan.chosen names.");
  module->def("scheduler_names", &SchedulerNames, "The schedulers, in the order of their numbers.");
  module->def("scheduler_traits", &AllTraits, "What they are like, in the order of their numbers.");
  module->attr("fallback_scheduler") = static_cast<int32_t>(planner::kFallback);
}

}  // namespace fastjax::python
