// What devices execute, from stage tables or by planners of their own.
#ifndef FASTJAX_TESTS_CPP_SUPPORT_DEVICE_PLANS_H_
#define FASTJAX_TESTS_CPP_SUPPORT_DEVICE_PLANS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange/operation.h"
#include "execution/device_plan.h"
#include "planner/planner.h"

namespace fastjax::test {

// `tables` by rank, null for devices of other processes.
inline void ViewTables(const std::vector<const int32_t*>& tables, bool backwards, DevicePlans* plans) {
  plans->resize(tables.size());
  for (size_t rank = 0; rank < tables.size(); ++rank) {
    (*plans)[rank].here = false;
    if (tables[rank] != nullptr) (*plans)[rank].View(tables[rank], backwards);
  }
}

// For an exchange that plans itself. Groups and launches may plan at once; a planner serves one at a time.
inline PlanFunction PlanSlices(const planner::Topology& topology, planner::Scheduler scheduler, int64_t row_bytes) {
  const auto planner = std::make_shared<planner::Planner>(topology, scheduler, std::max<int64_t>(row_bytes, 1));
  const auto mutex = std::make_shared<std::mutex>();
  return [planner, mutex](const int64_t* traffic, const TakePlan& take, bool* made) {
    const std::lock_guard<std::mutex> lock(*mutex);
    *made = !planner->planned(planner->HashWith(traffic));
    planner->Plan(traffic);
    if (!planner->fits_int32()) return Status::Internal("no slices");
    take(planner.get());
    return Status::Ok();
  };
}

}  // namespace fastjax::test

#endif  // FASTJAX_TESTS_CPP_SUPPORT_DEVICE_PLANS_H_
