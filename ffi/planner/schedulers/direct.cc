// Every block goes straight to its target, all at once.
#include <memory>

#include "planner/scheduler_info.h"
#include "planner/straight.h"

namespace fastjax::planner {
namespace {

std::unique_ptr<Schedule> Make(const Topology& topology, int64_t row_bytes) {
  return std::make_unique<Straight>(topology, row_bytes, false);
}

// Measured like that of fast: within a tenth.
Picoseconds PlanningTime(const Topology& topology) {
  const Wide devices = topology.devices();
  return 1000 * (600 + 14 * devices * devices / 25);
}

}  // namespace

constexpr SchedulerInfo kDirectScheduler = {
    {"direct", "every block goes straight to its target, all at once",
     /*order=*/60, /*stages_rows=*/false, /*single_stage=*/true, NicNeed::kEachDevice, Choosing::kConsidered},
    Make,
    MaxEntriesOneTransferPerPeer,
    PlanningTime,
    StraightPricingTime,
};

}  // namespace fastjax::planner
