// Declares DevicePlan: the part of a plan that one device executes.
#ifndef FASTJAX_EXECUTION_DEVICE_PLAN_H_
#define FASTJAX_EXECUTION_DEVICE_PLAN_H_

#include <cstdint>
#include <vector>

#include "planner/table.h"
#include "planner/transfer.h"

namespace fastjax {

// Filled from a stage table that the user's program brought, or by the planner of an exchange that plans itself.
// Reused from exchange to exchange without allocating once it has seen the largest.
struct DevicePlan {
  bool here = false;         // False for devices of other processes: nothing else holds then.
  int32_t stages = 0;        // Scale-out stages of the whole plan.
  int64_t staging_rows = 0;  // Rows of staging that this device needs.
  // Which scheduler made the plan; the same for all devices. A table may hold a number that is no scheduler's.
  planner::Scheduler scheduler = planner::kFallback;
  std::vector<planner::Transfer> transfers;  // In the order of the plan, as rows travel in this exchange.

  // Whether rows may rest on devices between their origin and their target.
  bool stages_rows() const { return planner::StagesRows(scheduler); }

  // `backwards`: rows travel the other way than they were planned to.
  void Take(const planner::DeviceSlice& slice, bool backwards);
  // Does the same with a table that planner::TableView::Check found sound.
  void Decode(const int32_t* words, bool backwards);
};

// By rank, of all devices of a group.
using DevicePlans = std::vector<DevicePlan>;

}  // namespace fastjax

#endif  // FASTJAX_EXECUTION_DEVICE_PLAN_H_
