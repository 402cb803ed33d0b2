#include "execution/prepared.h"

#include <algorithm>
#include <functional>

namespace fastjax {

Status Prepared::Load(const CallSite& site, int32_t group, const std::vector<ExchangeArgs>& args,
                      const ExchangeOptions& options, const std::vector<int32_t>& ranks, bool* found_by_all,
                      Launch* launch) {
  *found_by_all = true;
  row_bytes_ = args[site.position_at[ranks.front()]].row_bytes;
  if (Status status = traffic_.Load(site, group, args, options.reverse, options.drop); !status.ok()) return status;
  if (options.check_overlaps && !options.reverse) {
    if (Status status = traffic_.CheckDestinations(); !status.ok()) return status;
  }
  plans_.resize(static_cast<size_t>(site.group_size));
  for (DevicePlan& plan : plans_) plan.here = false;
  if (options.plan) return Plan(options, ranks, launch);
  *found_by_all = false;
  if (Status status = traffic_.CheckIndices(args); !status.ok()) return status;
  if (Status status = traffic_.CheckTables(args, options.transposed_table); !status.ok()) return status;
  for (const int32_t rank : ranks) {
    plans_[static_cast<size_t>(rank)].View(args[site.position_at[rank]].table, options.backwards());
  }
  return Status::Ok();
}

Status Prepared::Plan(const ExchangeOptions& options, const std::vector<int32_t>& ranks, Launch* launch) {
  const auto take_all = [&](planner::Planner* plan) {
    for (const int32_t rank : ranks) {
      planner::TransferRange transfers{};
      if (!once_ || rank == ranks.front()) transfers = plan->DeviceTransfers(once_ ? planner::kEveryDevice : rank);
      plans_[static_cast<size_t>(rank)].Take(*plan, rank, transfers, options.backwards());
    }
  };
  // A reference is small enough for std::function to hold without allocating.
  const TakePlan take = std::ref(take_all);
  return PlanRecorded([&](bool* made) { return options.plan(traffic_.sent(), take, made); }, launch);
}

LaunchSummary Prepared::summary() const {
  const auto own = std::find_if(plans_.begin(), plans_.end(), [](const DevicePlan& plan) { return plan.here; });
  if (own == plans_.end()) return {traffic_.sent(), row_bytes_, traffic_.dropped()};
  return {traffic_.sent(), row_bytes_, traffic_.dropped(), own->stages, static_cast<int32_t>(own->scheduler)};
}

}  // namespace fastjax
