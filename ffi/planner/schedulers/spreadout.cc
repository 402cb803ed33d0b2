// Blocks go straight, one stage for each distance between devices.
#include <memory>

#include "planner/schedule.h"
#include "planner/straight.h"

namespace fastjax::planner {

constexpr SchedulerInfo kSpreadoutScheduler = {
    {"spreadout", "blocks go straight, in stages by distance",
     /*order=*/50, /*stages_rows=*/false, NicNeed::kEachDevice, Choosing::kConsidered},
    [](const Topology& topology, int64_t row_bytes) -> std::unique_ptr<Schedule> {
      return std::make_unique<Straight>(topology, row_bytes, true);
    },
    MaxEntriesOneTransferPerPeer,
    {700'000, /*block=*/800},  // measured like that of fast: within a tenth
    kStraightPricing,
};

}  // namespace fastjax::planner
